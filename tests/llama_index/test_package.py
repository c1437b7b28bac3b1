"""The distribution is a namespace package with LlamaHub's metadata, like LlamaIndex's other packages."""

import importlib
import re
import sys
from pathlib import Path

import pytest
from llama_index.core.base.llms.base import BaseLLM
from llama_index.core.llms.function_calling import FunctionCallingLLM
from llama_index.llms.ragbias import RagBiasLLM

ROOT = Path(__file__).parents[2] / "integrations" / "llama-index"
PYPROJECT = (ROOT / "pyproject.toml").read_text()


def test_class_is_an_llm_of_llama_index():
    assert issubclass(RagBiasLLM, BaseLLM)
    assert issubclass(RagBiasLLM, FunctionCallingLLM)
    assert RagBiasLLM.class_name() == "RagBiasLLM"


def test_llamahub_finds_the_class():
    (path,) = re.findall(r'^import_path = "(.+)"$', PYPROJECT, re.MULTILINE)
    authors = PYPROJECT.split("[tool.llamahub.class_authors]")[1]
    names = re.findall(r"^(\w+) = ", authors, re.MULTILINE)
    assert names == ["RagBiasLLM"]
    assert all(hasattr(importlib.import_module(path), name) for name in names)
    assert "contains_example = false" in PYPROJECT


def test_the_llama_index_namespace_stays_open_and_typed():
    package = ROOT / "llama_index" / "llms" / "ragbias"
    assert not (package.parent / "__init__.py").exists()
    assert not (package.parents[1] / "__init__.py").exists()
    assert (package / "py.typed").exists()


def test_torch_is_imported_on_first_use(monkeypatch):
    package = importlib.import_module("llama_index.llms.ragbias")
    with monkeypatch.context() as patch:
        patch.setattr(importlib.import_module("llama_index.llms"), "ragbias", package)
        for name in [*sys.modules]:
            if name.partition(".")[0] == "ragbias" or name.startswith("llama_index.llms.ragbias"):
                patch.delitem(sys.modules, name)
        patch.setitem(sys.modules, "torch", None)  # its import fails
        fresh = importlib.import_module("llama_index.llms.ragbias")
        fresh.uninstall_listener()
        with pytest.raises(ImportError, match="torch"):
            getattr(fresh, "RagBiasLLM")  # noqa: B009
