"""The log-probability of gold answers, and a method's effect on the next token."""

from dataclasses import replace
from itertools import groupby

import pytest
import torch

from ragbias import DebiasedLM, DocumentCache
from ragbias.errors import PromptTooLongError
from ragbias.generation.scoring import kl
from ragbias.methods import CanonicalOrder, NoMethod, Pine, get
from ragbias_eval.tasks import TinyQA
from ragbias_eval.tasks.task import score_gold

TASK = TinyQA(documents=(4,), positions=(0, 3), limit=2)
CASES = list(TASK.cases())
PLAIN = NoMethod()


def test_a_right_answer_is_far_more_probable_than_a_wrong_one(tiny):
    right = score_gold(tiny, TASK, CASES[0], PLAIN)
    wrong = score_gold(tiny, TASK, replace(CASES[0], answers=("herring chowder",)), PLAIN)
    assert right.logprob > -1 and wrong.logprob < -5
    assert right.answer.prediction == "" and right.answer.prompt_tokens > 50 and right.seconds > 0


def test_of_several_gold_answers_the_most_probable_counts(tiny):
    own = CASES[0].answers
    alone = score_gold(tiny, TASK, CASES[0], PLAIN)
    among = score_gold(tiny, TASK, replace(CASES[0], answers=("herring chowder", *own, "Otter")), PLAIN)
    assert (among.logprob, among.tokens) == (pytest.approx(alone.logprob, abs=1e-4), alone.tokens)


def test_an_invariant_method_gives_all_orders_one_probability(tiny):
    for _, cases in groupby(CASES, key=lambda case: case.question):
        pair = list(cases)
        assert len({score_gold(tiny, TASK, case, Pine()).logprob for case in pair}) == 1
        assert len({score_gold(tiny, TASK, case, PLAIN).logprob for case in pair}) == 2


def test_divergence_is_that_of_the_next_token(tiny):
    plain = score_gold(tiny, TASK, CASES[0], PLAIN)
    assert kl(plain.next_token, plain.next_token) == 0
    # a method's answer may be equally certain here, up to rounding that differs between processors
    logits = torch.randn(plain.next_token.shape, generator=torch.Generator().manual_seed(0))
    other = logits.log_softmax(-1)
    p, log_q = plain.next_token.double().exp(), other.double()
    found = kl(plain.next_token, other)
    assert found == pytest.approx(float((p * (p.log() - log_q)).sum()), rel=1e-3) and found > 0


def test_methods_that_reorder_show_their_order(tiny):
    orders = {score_gold(tiny, TASK, case, CanonicalOrder()).answer.report.order for case in CASES[:2]}
    assert len(orders) == 2 and all(sorted(order) == [0, 1, 2, 3] for order in orders)


def test_votes_and_experts_count_the_tokens_of_every_prompt(tiny):
    plain = score_gold(tiny, TASK, CASES[0], PLAIN).answer.prompt_tokens
    assert score_gold(tiny, TASK, CASES[0], get("permutation-vote")).answer.prompt_tokens == 5 * plain
    assert plain < score_gold(tiny, TASK, CASES[0], get("pced")).answer.prompt_tokens < 5 * plain


def test_an_answer_beyond_the_window_is_refused(tiny):
    case = replace(CASES[0], answers=("long " * tiny.window,))
    with pytest.raises(PromptTooLongError, match=r"too many for an answer of \d+"):
        score_gold(tiny, TASK, case, PLAIN)


@pytest.mark.parametrize("method", ["pcw", "ape", "pced"])
def test_cached_documents_are_used_and_change_no_bit(tiny, method):
    cached = DebiasedLM(tiny.model, tiny.tokenizer, method, cache=DocumentCache())
    expected, cold, warm = (score_gold(lm, TASK, CASES[0], get(method)) for lm in (tiny, cached, cached))
    assert expected.logprob == cold.logprob == warm.logprob
    assert torch.equal(expected.next_token, cold.next_token) and torch.equal(expected.next_token, warm.next_token)
    assert cached.cache is not None and cached.cache.stats().memory_hits > 0
