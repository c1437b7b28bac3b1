"""The pairwise judge of the examples gives the same verdict when the responses are swapped."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from langchain_ragbias import ChatRagBias

PATH = Path(__file__).parents[2] / "examples" / "judge_langchain.py"
PAIRS = [
    (f"The emblem of Heron Bridge is a silver {thing}.", f"Heron Bridge has a {colour} {thing}, they say.")
    for thing in ("key", "bell", "lamp")
    for colour in ("red", "blue", "green")
]


@pytest.fixture(scope="module")
def judge():
    spec = importlib.util.spec_from_file_location("judge_langchain", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.judge


def test_swapping_the_responses_changes_neither_verdict_nor_scores(judge, tiny_with_tools):
    llm = ChatRagBias(lm=tiny_with_tools, debias="pine")
    for pair in PAIRS:
        winner, means = judge(llm, "Which emblem does Heron Bridge have?", pair)
        swapped, swapped_means = judge(llm, "Which emblem does Heron Bridge have?", pair[::-1])
        assert pair[winner] == pair[::-1][swapped]
        assert means == swapped_means[::-1]


def test_the_plain_model_gives_other_scores_in_the_other_order(judge, tiny_with_tools):
    llm = ChatRagBias(lm=tiny_with_tools, debias="none")
    _, means = judge(llm, "Which emblem?", PAIRS[0])
    assert means != judge(llm, "Which emblem?", PAIRS[0][::-1])[1][::-1]


def test_one_response_is_no_pair(judge, tiny_with_tools):
    with pytest.raises(ValueError, match="two different"):
        judge(ChatRagBias(lm=tiny_with_tools), "Which?", ["one"])
