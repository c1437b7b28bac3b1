"""Swapping two answers never changes the judge's verdict, but changes the stock evaluator's."""

import warnings
from typing import Any

import pytest
from llama_index.core.evaluation import PairwiseComparisonEvaluator
from llama_index.core.llms import MockLLM
from llama_index.llms.ragbias import RagBiasLLM
from llama_index.llms.ragbias.judge import VERDICTS, PairwiseJudge

from ragbias import DebiasedLM, DocumentCache
from ragbias.errors import ArgumentError, DocumentCacheWarning, RagBiasError
from ragbias.generation import allow_only
from ragbias.models.tiny.world import Passage, held_out_questions

Judge = PairwiseComparisonEvaluator


@pytest.fixture(scope="module")
def pairs(corpus: list[Passage]) -> list[tuple[str, str, str]]:
    """Questions, each with two answers."""
    questions = held_out_questions(corpus, 12, seed=3)
    return [
        (one.question, f"It is {one.answer}.", f"I think that it is {other.answer}.")
        for one, other in zip(questions, questions[1:] + questions[:1], strict=True)
    ]


async def verdicts(judge: Judge, pairs: list[tuple[str, str, str]]) -> tuple[list[Any], list[Any]]:
    """Return the scores of each pair's first answer, shown first and shown second."""
    first, second = [], []
    for query, one, two in pairs:
        first.append((await judge.aevaluate(query=query, response=one, second_response=two)).score)
        swapped = (await judge.aevaluate(query=query, response=two, second_response=one)).score
        second.append(None if swapped is None else 1 - swapped)
    return first, second


@pytest.mark.parametrize("method", ["pine", "canonical-order"])
@pytest.mark.parametrize("consensus", [True, False])
async def test_swapping_the_answers_never_changes_the_verdict(make_llm, pairs, method, consensus):
    judge = PairwiseJudge(make_llm(method=method), enforce_consensus=consensus, explain=False)
    first, second = await verdicts(judge, pairs)
    assert first == second
    if not consensus:
        assert set(first) <= {1.0, 0.5, 0.0}
        assert len(set(first)) > 1  # it does not always say the same


async def test_swapping_changes_some_of_the_stock_evaluators_verdicts(make_llm, pairs):
    only = {"prefix_allowed_tokens_fn": allow_only(VERDICTS, make_llm().lm.tokenizer)}
    stock = PairwiseComparisonEvaluator(make_llm(method="none", generate_kwargs=only), enforce_consensus=False)
    first, second = await verdicts(stock, pairs)
    assert first != second


async def test_swapping_changes_some_verdicts_of_the_plain_model(make_llm, pairs):
    judge = PairwiseJudge(make_llm(method="none"), enforce_consensus=False, explain=False)
    first, second = await verdicts(judge, pairs)
    assert first != second


async def test_explanation_is_the_same_text_in_both_orders(make_llm, pairs):
    judge = PairwiseJudge(
        make_llm(max_new_tokens=24), parser_function=lambda _: (True, 1.0, ""), enforce_consensus=False
    )
    for query, one, two in pairs[:4]:
        there = await judge.aevaluate(query=query, response=one, second_response=two)
        back = await judge.aevaluate(query=query, response=two, second_response=one)
        assert there.feedback == back.feedback
        assert there.score + back.score == 1


@pytest.mark.parametrize("is_chat_model", [True, False])
async def test_letters_belong_to_answers_and_occur_in_their_documents(make_llm, is_chat_model, monkeypatch):
    llm = make_llm(is_chat_model=is_chat_model)
    seen: list[tuple[str, Any]] = []
    prepare = llm.lm.prepare

    def recorded(prompt: str, **settings: Any) -> Any:
        seen.append((prompt, settings["boundaries"]))
        return prepare(prompt, **settings)

    monkeypatch.setattr(llm.lm, "prepare", recorded)
    judge = PairwiseJudge(llm, enforce_consensus=False, explain=False)
    for answers in (("Red {x}.", "Blue."), ("Blue.", "Red {x}.")):
        await judge.aevaluate(query="Which?", response=answers[0], second_response=answers[1])
    documents = [[prompt[begin:end] for begin, end in found.spans] for prompt, found in seen]
    assert len(documents[0]) == 2
    assert documents[0] == documents[1][::-1]
    assert {"A's Answer" in each for each in documents[0]} == {True, False}


async def test_consensus_exchanges_the_letters(make_llm, pairs):
    always_a = PairwiseJudge(make_llm(), parser_function=lambda _: (True, 1.0, ""))
    query, one, two = pairs[0]
    result = await always_a.aevaluate(query=query, response=one, second_response=two)
    assert (result.score, result.passing, result.pairwise_source) == (0.5, None, "neither")


async def test_equal_answers_are_a_tie(make_llm):
    judge = PairwiseJudge(make_llm(), parser_function=lambda _: pytest.fail("was asked"))
    result = await judge.aevaluate(query="Which?", response="Red.", second_response="Red.")
    assert (result.score, result.passing) == (0.5, None)


def test_a_missing_answer_is_named(make_llm):
    with pytest.raises(ArgumentError, match="query, response or second_response is None; give all three"):
        PairwiseJudge(make_llm()).evaluate(query="Which?", response="Red.")


def test_sync_form_and_unparsable_text(make_llm):
    result = PairwiseJudge(make_llm()).evaluate(query="Which?", response="Red.", second_response="Blue.")
    assert result.invalid_result
    assert result.invalid_reason == "Output cannot be parsed"


def test_a_template_that_reveals_the_order_is_refused(make_llm):
    with pytest.raises(RagBiasError, match="between"):
        PairwiseJudge(make_llm(), eval_template="{query}\nFirst: {answer_1}\nSecond: {answer_2}")
    with pytest.raises(RagBiasError, match="MockLLM.*expected a RagBiasLLM"):
        PairwiseJudge(MockLLM())  # type: ignore[arg-type]


async def test_template_that_rewrites_the_answers_is_an_error(make_llm):
    from llama_index.core import PromptTemplate

    shouted = PromptTemplate(
        "{query}\n{answer_1}\n{answer_2}", function_mappings={"answer_1": lambda **given: given["answer_1"].upper()}
    )
    judge = PairwiseJudge(make_llm(on_missing="ignore"), eval_template=shouted)
    with pytest.raises(RagBiasError, match="pine did not run on the two answers"):
        await judge.aevaluate(query="Which?", response="Red.", second_response="Blue.")


def test_a_judge_that_reuses_documents_is_warned(lm):
    cache = DocumentCache()
    reusing = DebiasedLM(lm.model, lm.tokenizer, "ape", cache=cache)
    with pytest.warns(DocumentCacheWarning, match="ape computes the two answers separately"):
        PairwiseJudge(RagBiasLLM(lm=reusing))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        PairwiseJudge(RagBiasLLM(lm=lm, method="ape"))
        PairwiseJudge(RagBiasLLM(lm=reusing, method="pine"))
