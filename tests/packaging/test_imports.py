"""Packages export what their stubs name. `make lint` checks that imports follow the layers."""

from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("stub", sorted((ROOT / "ragbias").rglob("__init__.pyi")), ids=lambda stub: stub.parent.name)
def test_every_name_of_a_stub_is_there(stub):
    package = import_module(".".join(stub.parent.relative_to(ROOT).parts))
    names = [line.split()[-1] for line in stub.read_text().splitlines() if line.startswith("from")]
    assert set(package.__all__) <= {*names} <= {*dir(package)}
    assert all(getattr(package, name) is not None for name in names)
    with pytest.raises(AttributeError, match="no_such_name"):
        getattr(package, "no_such_name")  # noqa: B009
