"""Packages export what their stubs name. `make lint` checks that imports follow the layers."""

import re
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = {
    "ragbias": ROOT,
    "langchain_ragbias": ROOT / "integrations" / "langchain",
    "llama_index": ROOT / "integrations" / "llama-index",
}
STUBS = {
    ".".join(stub.parent.relative_to(folder).parts): stub
    for name, folder in FOLDERS.items()
    for stub in sorted((folder / name).rglob("__init__.pyi"))
}


@pytest.mark.parametrize(("name", "stub"), STUBS.items(), ids=STUBS)
def test_every_name_of_a_stub_is_there(name, stub):
    package = import_module(name)
    names = [line.split()[-1] for line in stub.read_text().splitlines() if line.startswith("from")]
    assert set(package.__all__) <= {*names} <= {*dir(package)}
    assert all(getattr(package, name) is not None for name in names)
    with pytest.raises(AttributeError, match="no_such_name"):
        getattr(package, "no_such_name")  # noqa: B009


@pytest.mark.parametrize("path", sorted((ROOT / "ragbias" / "methods").rglob("*.py")), ids=lambda path: path.stem)
def test_methods_use_exported_names_of_attention(path):
    """Submodules of ``attention`` are imported on first use, so that other names exist only in some processes."""
    used = set(re.findall(r"\battention\.(\w+)", path.read_text()))
    assert used <= set(import_module("ragbias.attention").__all__)
