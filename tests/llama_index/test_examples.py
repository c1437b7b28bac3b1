"""The examples run as they stand, with a model by path and, where its weights are there, with the embedded one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from llama_index.core import VectorStoreIndex
from llama_index.llms.ragbias import RagBiasLLM
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from ragbias import tiny
from ragbias.tiny.world import Passage, held_out_questions

EXAMPLES = Path(__file__).parents[2] / "examples"

needs_tiny = pytest.mark.skipif(not tiny.path().exists(), reason="the embedded model's weights are not there")


def run(script: str, *arguments: str) -> str:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, str(EXAMPLES / script), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def saved(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("model")
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.mark.slow
@pytest.mark.parametrize("llm", ["stock", "ragbias"])
def test_faiss_example_answers_in_both_orders(saved: str, llm: str) -> None:
    output = run("llama_index_faiss_qa.py", "--model", saved, "--llm", llm, "--questions", "2", "--top-k", "4")
    assert output.count("reverse order:") == 2
    assert ("0 of 2 answers changed" in output) == (llm == "ragbias")


@pytest.mark.slow
def test_faiss_example_reads_the_users_files(saved: str, tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / f"{name}.txt").write_text(f"The gate of house {name} is red.")
    arguments = ["--documents", str(tmp_path), "--question", "Which gate is red?"]
    assert "0 of 1 answers changed" in run("llama_index_faiss_qa.py", "--model", saved, *arguments)


@pytest.mark.slow
def test_transformers_example_shows_that_pine_does_not_see_the_order(saved: str) -> None:
    plain, pine = run("transformers_generate.py", "--model", saved).split("\nnone: ")[1].split("\npine: ")
    assert "two orders is 0\n" not in plain
    assert "two orders is 0\n" in pine


@needs_tiny
def test_embedded_model_is_the_default_and_answers_from_the_index(
    index: VectorStoreIndex, corpus: list[Passage]
) -> None:
    llm = RagBiasLLM(max_new_tokens=16)
    engine = index.as_query_engine(llm=llm, similarity_top_k=5)
    questions = held_out_questions(corpus, 8, seed=0)
    right = sum(asked.answer.lower() in str(engine.query(asked.question)).lower() for asked in questions)
    assert llm.last_report is not None
    assert llm.last_report["method_ran"] == "pine"
    assert right >= 4
