"""The reference pages list every command, report field and error."""

import ast
import inspect
import re
import runpy
from collections.abc import Iterator
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import pytest

from ragbias import errors
from ragbias.generation import Report
from ragbias.methods import get
from ragbias.readers import check_readers

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs" / "reference"
PAGES = ("api.md", "extending.md", "integrations.md")  # the pages of the Python interface
HOOKS = runpy.run_path(str(ROOT / "docs" / "hooks.py"))
COMMANDS = HOOKS["commands"]()
OWN = re.compile(r"(?:ragbias|ragbias_eval|langchain_ragbias|llama_index\.llms\.ragbias)\b")
PACKAGE_READMES = [
    "evaluation/README.md",
    *(f"integrations/{name}/README.md" for name in ("langchain", "llama-index", "vllm")),
]
ENTRY = re.compile(
    r"^::: ([\w.]+)(?:\n    options:\n(?:      (?!members:).*\n)*      members: \[(.*)\])?", re.MULTILINE
)
CLI = (REFERENCE / "cli.md").read_text(encoding="utf-8")


def listed_objects() -> Iterator[tuple[Any, list[str] | None]]:
    """Return the classes and functions on the pages of the Python interface, with the members that a page selects.

    A module stands for its public classes and functions.
    """
    for page in PAGES:
        for path, members in ENTRY.findall((REFERENCE / page).read_text()):
            listed = resolve_name(path)
            if inspect.ismodule(listed):
                names = getattr(listed, "__all__", [name for name in vars(listed) if not name.startswith("_")])
                objects = (getattr(listed, name) for name in names)
                yield from ((each, None) for each in objects if getattr(each, "__module__", "").startswith(path))
            else:
                yield listed, re.findall(r"\w+", members) if members else None


def signatures(listed: Any, selected: list[str] | None) -> Iterator[Any]:
    """Return a function's signature, or those of a class: selected ones, or ``__init__`` and all public ones."""
    members = vars(listed).items() if inspect.isclass(listed) else [("function", listed)]
    for name, member in members:
        if name in selected if selected is not None else name == "__init__" or not name.startswith("_"):
            function = inspect.unwrap(getattr(member, "fget", None) or getattr(member, "__func__", member))
            if inspect.isfunction(function):
                yield function


def own_classes(function: Any) -> Iterator[type]:
    """Return this repository's classes in a function's annotations."""
    for annotation in function.__annotations__.values():
        for name in re.findall(r"[A-Za-z_]\w*", annotation if isinstance(annotation, str) else repr(annotation)):
            named = function.__globals__.get(name)
            if inspect.isclass(named) and OWN.match(named.__module__):
                yield named


def test_every_class_in_a_public_signature_is_on_the_page():
    functions = [function for entry in listed_objects() for function in signatures(*entry)]
    uses = [(function.__qualname__, named) for function in functions for named in own_classes(function)]
    listed = [each for each, _ in listed_objects()]
    assert any(named.__name__ == "Stream" for _, named in uses)
    assert sorted({f"{named.__name__}, used by {user}" for user, named in uses if named not in listed}) == []


def test_selected_members_exist():
    selected = [(listed, name) for listed, members in listed_objects() for name in members or ()]
    assert ("Request", "report") in [(listed.__name__, name) for listed, name in selected]
    assert [each for each in selected if not hasattr(*each) and each[1] not in each[0].__annotations__] == []


@pytest.mark.parametrize(("page", "limit"), [("api.md", 46), ("extending.md", 65)])
def test_the_public_interface_stays_small(page, limit):
    """Raise the limit if users need another name."""
    assert len(ENTRY.findall((REFERENCE / page).read_text())) <= limit


def test_the_page_has_exactly_the_commands():
    assert sorted(re.findall(r"^## (.+)$", CLI, re.MULTILINE)) == sorted(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_an_example_and_its_options(name):
    section = CLI.split(f"\n## {name}\n")[1].split("\n## ")[0]
    assert f"\nragbias {name}" in section
    assert f"<!-- options: {name} -->" in section
    built = HOOKS["on_page_markdown"](section)
    assert "<!-- options" not in built
    for parameter in COMMANDS[name].params:
        assert f"| `{max(parameter.opts, key=len)}`" in built or f"| `{parameter.name.upper()}`" in built
        assert parameter.help, f"{name}: {parameter.name} has no help"


def test_every_field_of_a_report_is_explained():
    _, table = (REFERENCE / "report.md").read_text().split("| field |")
    explained = re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)
    assert explained == [field.name for field in fields(Report)]


def test_every_error_and_warning_is_explained():
    defined = [each for _, each in inspect.getmembers(errors, inspect.isclass) if each.__module__ == errors.__name__]
    known = {each.__name__: each.__bases__[0].__name__ for each in defined}
    warned = {name for name, base in known.items() if base == "UserWarning"}
    known = {name: base for name, base in known.items() if name not in warned}
    page = (REFERENCE / "errors.md").read_text()
    assert set(re.findall(r"^\| `(\w+Warning)` \|", page, re.M)) == warned
    rows = re.findall(r"^\| `(\w+)` \| `(\w+)` \| ([^|]+) \| ([^|]+) \|$", page, re.M)
    assert {name: base for name, base, *_ in rows} == known
    assert all(cause.strip() and remedy.strip() for *_, cause, remedy in rows)


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", *PACKAGE_READMES])
def test_what_a_page_outside_the_site_links_to_is_there(page):
    """Links inside the site are checked by ``mkdocs build --strict``."""
    links = re.findall(r"\]\(([^)#]+)", (ROOT / page).read_text())
    paths = [link.removeprefix("https://github.com/ragbias/ragbias/blob/main/") for link in links]
    assert paths and [path for path in paths if not (ROOT / path).exists()] == []


def listed_paths() -> set[str]:
    """Return the public paths: those on the pages of the Python interface, their packages, and all errors."""
    pages = "".join((REFERENCE / page).read_text() for page in PAGES)
    paths = re.findall(r"^::: ([\w.]+)", pages, re.MULTILINE)
    return {*paths, *(path.rpartition(".")[0] for path in paths), *(f"ragbias.errors.{name}" for name in vars(errors))}


PACKAGES = ["adaptation", "attention", "binding", "boundaries", "cache", "frameworks", "generation"]
FOR_OWN_INTEGRATIONS = {  # no page promises them
    "BACKENDS", "GrowingText", "RESERVED", "Source", "States", "WarnedLines", "allow_only", "block_document",
    "call_id", "check_dict", "check_length", "check_names", "check_orders_text", "check_text", "compute_jointly",
    "computes_documents_separately", "encodings_of", "generation_config", "has_fixed_encodings", "identity_of",
    "join_reasons", "key_of", "parse_arguments", "parse_tool_choice", "remember_call_site", "rename_max_tokens", "warn",
}  # fmt: skip


@pytest.mark.parametrize("package", PACKAGES)
def test_the_api_page_lists_what_a_package_exports(package):
    module = import_module(f"ragbias.{package}")
    exported = {name for name in module.__all__ if not inspect.ismodule(getattr(module, name))} - FOR_OWN_INTEGRATIONS
    listed = listed_paths()
    assert [name for name in exported if not {f"ragbias.{package}.{name}", f"ragbias.{name}"} & listed] == []


def imported(text: str) -> Iterator[str]:
    """Return this repository's paths that a program imports."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and OWN.match(node.module or ""):
            yield from (f"{node.module}.{each.name}" for each in node.names)


@pytest.mark.parametrize("name", ["langchain", "llama-index"])
def test_integrations_import_listed_names(name):
    files = (ROOT / "integrations" / name).rglob("*.py")
    paths = {path for file in files for path in imported(file.read_text()) if path.startswith("ragbias.")}
    unlisted = {path.rpartition(".")[2] for path in paths - listed_paths()}
    assert unlisted - FOR_OWN_INTEGRATIONS == set()


def test_add_a_framework_names_everything_for_frameworks():
    page = (ROOT / "docs" / "how-to" / "add-a-framework.md").read_text()
    names = set(re.findall(r"`(\w+)`", " ".join(re.findall(r"^\| (`.+`) \|", page, re.M))))
    assert names == {*import_module("ragbias.frameworks").__all__} - FOR_OWN_INTEGRATIONS


INTERNAL = re.compile(r"ragbias\.(cli|models\.tiny)\.")  # of the page's own commands, and the world of `tiny`


def test_the_api_page_lists_what_the_docs_import():
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / page for page in PACKAGE_READMES)]
    blocks = [block for page in pages for block in re.findall(r"^```python\n(.*?)^```", page.read_text(), re.M | re.S)]
    paths = {path for block in blocks for path in imported(block) if not INTERNAL.match(path)}
    assert len(paths) > 20
    assert paths - listed_paths() == set()


@pytest.mark.parametrize("page", ["adapt.md", "choose-a-method.md"])
def test_the_guides_show_how_to_load_the_reader_that_ships(page):
    text = (ROOT / "docs/how-to" / page).read_text(encoding="utf-8")
    assert 'DebiasedLM.from_pretrained("smollm2", method="mixture", reader="smollm2-mixture")' in text
    check_readers([get("mixture", reader="smollm2-mixture")])
