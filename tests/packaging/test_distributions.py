"""The five distributions: contents and metadata of their wheels, which are built from the sdists."""

import importlib.metadata
import re
import subprocess
import sys
import tarfile
from pathlib import Path
from zipfile import ZipFile

import pytest
from packaging.requirements import Requirement

import ragbias
from ragbias.extras import EXTRAS

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
FOLDERS = {
    "ragbias": ROOT,
    "ragbias_eval": ROOT / "evaluation",
    "langchain_ragbias": ROOT / "integrations" / "langchain",
    "llama_index/llms/ragbias": ROOT / "integrations" / "llama-index",
    "ragbias_vllm": ROOT / "integrations" / "vllm",
}


def project(folder):
    return tomllib.loads((folder / "pyproject.toml").read_text())["project"]


def built(target, folder, out):
    """Build an sdist or a wheel of a folder and return its path."""
    build = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(out)]
    subprocess.run(build, cwd=folder, check=True, capture_output=True)
    (path,) = (path for path in out.iterdir() if path.is_file())
    return path


@pytest.fixture(scope="module", params=FOLDERS)
def wheel(request, tmp_path_factory):
    """The package of a distribution, its files in the wheel built from the sdist, and the metadata there.

    The sdists of the integrations lack the file that contains the version in the repository.
    """
    sdist = built("sdist", FOLDERS[request.param], tmp_path_factory.mktemp("sdist"))
    unpacked = tmp_path_factory.mktemp("unpacked")
    with tarfile.open(sdist) as archive:
        archive.extractall(unpacked, filter="data")
    (root,) = unpacked.iterdir()
    with ZipFile(built("wheel", root, tmp_path_factory.mktemp("wheel"))) as archive:
        names = archive.namelist()
        (metadata,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        return request.param, names, archive.read(metadata).decode()


@pytest.mark.slow
def test_a_wheel_holds_its_package_alone(wheel):
    package, names, _ = wheel
    assert all(name.startswith(f"{package}/") or ".dist-info/" in name for name in names)
    assert f"{package}/py.typed" in names
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)
    tracked = subprocess.run(
        ["git", "ls-files", package], cwd=FOLDERS[package], capture_output=True, text=True, check=True
    )
    assert {name for name in names if ".dist-info/" not in name} == set(tracked.stdout.split())


@pytest.mark.slow
def test_a_wheel_says_what_it_is(wheel):
    _, _, metadata = wheel
    for line in (
        "Author: The ragbias authors",
        "License-Expression: Apache-2.0",
        "License-File: LICENSE",
        f"Version: {ragbias.__version__}",
        "Requires-Python: >=3.10",
        "Classifier: Typing :: Typed",
        *(f"Classifier: Programming Language :: Python :: 3.{minor}" for minor in range(10, 15)),
    ):
        assert line in metadata.splitlines()
    urls = {"Homepage", "Documentation", "Source", "Issues", "Changelog"}
    assert urls == set(re.findall(r"^Project-URL: (\w+),", metadata, re.M))
    assert "Description-Content-Type: text/markdown" in metadata


@pytest.mark.slow
def test_a_description_has_no_relative_link(wheel):
    """The package index shows the description without the repository's files."""
    _, _, metadata = wheel
    _, description = metadata.split("\n\n", 1)
    prose = re.sub(r"^```.*?^```", "", description, flags=re.M | re.S)
    targets = re.findall(r"\]\(([^)]*)\)", prose) + re.findall(r"(?:href|src|srcset)=[\"']([^\"']*)", prose)
    assert targets and [target for target in targets if not target.startswith("https://")] == []


def test_all_distributions_carry_the_same_licence_and_version():
    assert len({(folder / "LICENSE").read_bytes() for folder in FOLDERS.values()}) == 1
    for folder in FOLDERS.values():
        version = tomllib.loads((folder / "pyproject.toml").read_text())["tool"]["hatch"]["version"]["path"]
        assert (folder / version).resolve() == ROOT / "ragbias" / "__init__.py"


def test_other_distributions_pin_this_version_of_ragbias():
    for folder in (folder for folder in FOLDERS.values() if folder != ROOT):
        about = project(folder)
        extras = about.get("optional-dependencies", {}).values()
        requirements = map(Requirement, [*about["dependencies"], *(each for extra in extras for each in extra)])
        pins = {str(each.specifier) for each in requirements if each.name == "ragbias" and each.specifier}
        assert pins == {f"=={ragbias.__version__}"}, f"{folder.name} pins another version; see CONTRIBUTING.md, Release"


def test_the_command_line_knows_the_modules_of_every_extra():
    declared = project(ROOT)["optional-dependencies"]
    assert set(EXTRAS) == set(declared)
    installed = importlib.metadata.packages_distributions()
    for extra, modules in EXTRAS.items():
        provided = {_normal(each) for module in modules for each in (module, *installed.get(module, ()))}
        requirements = list(map(Requirement, declared[extra]))
        for own in (each for each in requirements if each.name == "ragbias"):
            requirements += [Requirement(each) for name in own.extras for each in declared[name]]
        named = {_normal(each.name) for each in requirements if each.name != "ragbias"}
        # several distributions may share a namespace, of which not all are installed
        missing = {name for name in named - provided if not name.startswith(tuple(map(_normal, modules)))}
        assert not missing


def _normal(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def test_extras_refer_to_other_extras_that_are_declared():
    declared = {
        project(folder)["name"]: project(folder).get("optional-dependencies", {}) for folder in FOLDERS.values()
    }
    own = {_normal(name): name for name in declared}
    for name, extras in declared.items():
        for extra, requirements in extras.items():
            for each in map(Requirement, requirements):
                if _normal(each.name) in own:
                    others = declared[own[_normal(each.name)]].keys() - ({extra} if each.name == name else set())
                    assert each.extras and each.extras <= others
