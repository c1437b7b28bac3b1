"""What the audit computes, against numbers worked out by hand."""

import pytest

from ragbias import DebiasedLM, Prompt, binding
from ragbias.evaluation.audit.cases import AuditCase, answers, answers_again, audit_orders
from ragbias.evaluation.audit.outcomes import (
    Audit,
    Outcome,
    PositionPreference,
    arrangements,
    logprob_by_position,
    position_preference,
    rate,
)
from ragbias.evaluation.audit.verdict import Verdict, recommendation, verdict
from ragbias.evaluation.data.questions import Question
from ragbias.evaluation.measures.bootstrap import Interval
from ragbias.generation import reuse
from ragbias.generation.request import Recorded
from ragbias.methods import Method, NoMethod, Pine, Segmented


def test_orders_begin_as_retrieved_and_reversed_and_are_all_different():
    orders = audit_orders(5, 6, seed=3)
    assert orders[:2] == [[0, 1, 2, 3, 4], [4, 3, 2, 1, 0]]
    assert len({tuple(order) for order in orders}) == 6
    assert all(sorted(order) == [0, 1, 2, 3, 4] for order in orders)
    assert orders == audit_orders(5, 6, seed=3) != audit_orders(5, 6, seed=4)
    assert audit_orders(2, 6, seed=0) == [[0, 1], [1, 0]]


FORWARD, BACKWARD = [0, 1, 2, 3, 4], [4, 3, 2, 1, 0]


def test_answers_from_the_same_document_in_every_order_show_no_preference():
    found = position_preference([[0, 0]] * 6, [[FORWARD, BACKWARD]] * 6)
    assert [part.estimate for part in found.excess] == [0] * 5
    assert (found.answers, found.asked, found.questions) == (12, 12, 6)


def test_answers_from_whatever_stands_first_prefer_the_first_position():
    found = position_preference([[0, 4]] * 5 + [[None, None]], [[FORWARD, BACKWARD]] * 6)
    # taken from the first position both times; of the four pairs of order and document two are there, two at the last
    assert [part.estimate for part in found.excess] == pytest.approx([0.5, 0, 0, 0, -0.5])
    assert (found.answers, found.asked, found.questions) == (10, 12, 5)


def test_a_preference_needs_enough_questions_with_a_known_source():
    found = position_preference([[0, 4]] * 4 + [[None, None]] * 9, [[FORWARD, BACKWARD]] * 13)
    assert (found.answers, found.questions, found.excess) == (8, 4, [])


def test_a_single_known_source_of_a_question_does_not_count_as_no_preference():
    alone = [[0, None]] * 20
    assert position_preference(alone, [[FORWARD, BACKWARD]] * 20) == PositionPreference(0, 40, 0, [])
    found = position_preference([[0, 4]] * 5 + alone, [[FORWARD, BACKWARD]] * 25)
    assert [part.estimate for part in found.excess] == pytest.approx([0.5, 0, 0, 0, -0.5])
    assert (found.answers, found.asked, found.questions) == (10, 50, 5)


def test_a_document_is_put_first_in_the_middle_and_last():
    assert arrangements(1, 5) == [[1, 0, 2, 3, 4], [0, 2, 1, 3, 4], [0, 2, 3, 4, 1]]


def test_the_moved_document_is_scored_on_the_models_own_backend(lm, monkeypatch):
    backends = []

    def attach(*arguments, backend="auto", **settings):
        backends.append(backend)
        return binding.attach(*arguments, backend=backend, **settings)

    lm = DebiasedLM(lm.model, lm.tokenizer, method="pine", backend="torch")
    asked = Recorded(lm, lm.prepare(Prompt("Read:\n", ["A tin owl.\n", "Brass whales.\n"], "Who?")), {})
    answer = lm.batch([asked.request], max_new_tokens=2)[0]
    monkeypatch.setattr(reuse, "attach", attach)
    logprob_by_position([AuditCase(Question("Who?"), asked)], [answer], [0], Pine())
    assert backends == ["torch"] * 3


def outcome(flips: list[float], floor: float = 0.0, method: Method | None = None, ran: float = 1.0) -> Outcome:
    rates = rate(flips), rate([floor] * len(flips)), rate([flip - floor for flip in flips], least=-1)
    zero = Interval(0, 0, 0)
    return Outcome(method or NoMethod(), *rates, PositionPreference(0, 0, 0, []), None, None, zero, None, ran)


@pytest.mark.parametrize(
    ("flips", "expected"),
    [
        ([0.0] * 30, Verdict.NO_PROBLEM),
        ([0.0] * 20, Verdict.TOO_FEW),  # 20 agreeing questions do not rule out 14%
        ([1.0] * 8 + [0.0] * 12, Verdict.PROBLEM),
        ([1.0] * 5, Verdict.PROBLEM),
        ([1.0] + [0.0] * 9, Verdict.TOO_FEW),
        ([1.0] * 2 + [0.0] * 98, Verdict.NO_PROBLEM),
    ],
)
def test_verdict_follows_the_interval(flips, expected):
    assert verdict(outcome(flips)) is expected


def test_tokenising_alone_is_shown_and_never_recommended():
    outcomes = {"none": outcome([1.0] * 30), "segmented": outcome([0.0] * 40, method=Segmented())}
    advice = recommendation(Audit(outcomes, 30, 4, {}, {}), {})
    assert advice.method is None and "None of the methods tried helps enough (tried: none)" in advice.text


def test_flips_that_asking_again_makes_as_well_are_no_problem():
    assert verdict(outcome([1.0] * 40, floor=1.0)) is Verdict.NO_PROBLEM


def test_invariance_counts_only_where_the_method_ran_on_every_question():
    assert verdict(outcome([0.0] * 6, method=Pine())) is Verdict.NO_PROBLEM
    assert verdict(outcome([0.0] * 6, method=Pine(), ran=0.5)) is Verdict.TOO_FEW
    assert verdict(outcome([1.0] * 6, method=Pine())) is Verdict.PROBLEM


def test_interval_of_agreeing_questions_is_what_they_do_not_rule_out():
    found = rate([0.0] * 10)
    assert (found.estimate, found.low) == (0, 0)
    assert (1 - found.high) ** 10 == pytest.approx(0.05)


def test_settings_of_what_is_sampled_get_another_seed_for_each_attempt(lm):
    prompt = Prompt("Read:\n", ["A tin owl.\n", "Brass whales.\n"], "Who?")
    settings = {"max_new_tokens": 6, "temperature": 1.0, "seed": 7}
    cases = [AuditCase(Question(f"q{index}"), Recorded(lm, lm.prepare(prompt), settings)) for index in range(3)]
    requests = [case.request() for case in cases]
    first, same, other = ([each.token_ids for each in answers(cases, requests, attempt)] for attempt in (0, 0, 1))
    assert first == same != other
    expected = lm.batch(requests, max_new_tokens=6, temperature=1.0, seed=8)
    assert other == [each.token_ids for each in expected]
    assert settings["seed"] == 7


def test_asking_again_keeps_answers_with_their_questions(lm):
    prompts = [Prompt("Read:\n", ["A tin owl.\n", "Brass whales.\n"], "Who" + "?" * index) for index in range(5)]
    asked = [Recorded(lm, lm.prepare(prompt), {"max_new_tokens": 4}) for prompt in prompts]
    cases = [AuditCase(Question(f"q{index}"), each) for index, each in enumerate(asked)]
    requests = [case.request() for case in cases]
    plain, again = answers(cases, requests, 0), answers_again(cases, requests, 2)
    assert [each.usage.prompt_tokens for each in again] == [each.usage.prompt_tokens for each in plain]
    assert len({each.usage.prompt_tokens for each in again}) == 5
