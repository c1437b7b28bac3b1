"""The pairwise judge of the examples gives the same verdict when the responses are swapped."""

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
    return module.PairwiseJudge


def both_ways(judge, pair, question="Which emblem does Heron Bridge have?", **known):
    """Return the judge's results for a pair and for the swapped pair."""
    return [
        judge.evaluate_string_pairs(prediction=one, prediction_b=other, input=question, **known)
        for one, other in (pair, pair[::-1])
    ]


@pytest.mark.parametrize("known", [{}, {"reference": "A silver key."}])
def test_swapped_responses_change_neither_verdict_nor_scores(judge, tiny_with_tools, known):
    pairwise = judge(ChatRagBias(lm=tiny_with_tools, method="pine"), labeled=bool(known))
    for pair in PAIRS:
        there, back = both_ways(pairwise, pair, **known)
        assert {there["value"], back["value"]} == {"A", "B"}
        assert there["score"] == 1 - back["score"] == (there["value"] == "A")
        assert there["log_probabilities"] == back["log_probabilities"][::-1]


def test_the_plain_model_gives_other_scores_in_the_other_order(judge, tiny_with_tools):
    there, back = both_ways(judge(ChatRagBias(lm=tiny_with_tools, method="none")), PAIRS[0])
    assert there["log_probabilities"] != back["log_probabilities"][::-1]


async def test_it_is_an_evaluator_of_langchain(judge, tiny_with_tools):
    pairwise = judge(ChatRagBias(lm=tiny_with_tools))
    one, other = PAIRS[0]
    result = await pairwise.aevaluate_string_pairs(prediction=one, prediction_b=other, input="Which?")
    assert result == pairwise.evaluate_string_pairs(prediction=one, prediction_b=other, input="Which?")
    with pytest.raises(ValueError, match="requires an input"):
        pairwise.evaluate_string_pairs(prediction=one, prediction_b=other)


def test_equal_responses_are_a_tie(judge, tiny_with_tools):
    (result, _) = both_ways(judge(ChatRagBias(lm=tiny_with_tools)), ("It is a key.", "It is a key."))
    assert (result["value"], result["score"]) == (None, 0.5)
