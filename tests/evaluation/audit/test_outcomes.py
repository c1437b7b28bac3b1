"""Figures of the audit, against numbers computed by hand."""

import pytest
import torch

from ragbias import DebiasedLM, Prompt
from ragbias.data.intervals import Interval
from ragbias.data.questions import Question
from ragbias.generation import GenerationSettings
from ragbias.generation.recording import RecordedRequest
from ragbias.methods import CanonicalOrder, Method, NoMethod, PermutationVote, Pine, Segmented
from ragbias_eval.audit.cases import AuditCase, audit_orders, from_questions, generate_answers
from ragbias_eval.audit.outcomes import (
    Audit,
    Flips,
    Outcome,
    PositionPreference,
    answers_differ,
    audit,
    estimate_mean,
    measure_position_preference,
)
from ragbias_eval.audit.verdict import Verdict, decide_verdict, define_flip, recommend_method
from ragbias_eval.metrics import same_answer


def test_orders_are_distinct_from_retrieved_and_reversed_on():
    orders = audit_orders(5, 6, seed=3)
    assert orders[:2] == [[0, 1, 2, 3, 4], [4, 3, 2, 1, 0]]
    assert len({tuple(order) for order in orders}) == 6
    assert all(sorted(order) == [0, 1, 2, 3, 4] for order in orders)
    assert orders == audit_orders(5, 6, seed=3) != audit_orders(5, 6, seed=4)
    assert audit_orders(2, 6, seed=0) == [[0, 1], [1, 0]]


FORWARD, BACKWARD = [0, 1, 2, 3, 4], [4, 3, 2, 1, 0]


def test_answers_from_one_document_in_all_orders_are_unbiased():
    found = measure_position_preference([[0, 0]] * 6, [[FORWARD, BACKWARD]] * 6)
    assert [part.estimate for part in found.excess] == [0] * 5
    assert (found.answers, found.total) == (12, 12)


def test_answers_from_the_first_document_prefer_that_position():
    found = measure_position_preference([[0, 4]] * 5 + [[None, None]], [[FORWARD, BACKWARD]] * 6)
    # taken from the first position both times; of the four pairs of order and document two are there, two at the last
    assert [part.estimate for part in found.excess] == pytest.approx([0.5, 0, 0, 0, -0.5])
    assert (found.answers, found.total) == (10, 12)


def test_a_preference_needs_enough_questions_of_known_source():
    found = measure_position_preference([[0, 4]] * 4 + [[None, None]] * 9, [[FORWARD, BACKWARD]] * 13)
    assert (found.answers, found.excess) == (8, [])


def test_a_single_known_source_does_not_count_as_no_preference():
    alone = [[0, None]] * 20
    assert measure_position_preference(alone, [[FORWARD, BACKWARD]] * 20) == PositionPreference(0, 40, [])
    found = measure_position_preference([[0, 4]] * 5 + alone, [[FORWARD, BACKWARD]] * 25)
    assert [part.estimate for part in found.excess] == pytest.approx([0.5, 0, 0, 0, -0.5])
    assert (found.answers, found.total) == (10, 50)


def outcome(flips: list[float], floor: float = 0.0, method: Method | None = None, ran: float = 1.0) -> Outcome:
    found, zero = Flips.of(flips, [floor] * len(flips)), Interval(0, 0, 0)
    return Outcome(method or NoMethod(), found, None, PositionPreference(0, 0, []), None, zero, None, ran)


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
    assert decide_verdict(outcome(flips)) is expected


def test_tokenising_alone_is_shown_and_never_recommended():
    outcomes = {"none": outcome([1.0] * 30), "segmented": outcome([0.0] * 40, method=Segmented())}
    advice = recommend_method(Audit(outcomes, 30, 4), {})
    assert advice.method is None and "None of the methods tried helps enough (tried: none)" in advice.text


def test_flips_that_asking_again_makes_as_well_are_no_problem():
    assert decide_verdict(outcome([1.0] * 40, floor=1.0)) is Verdict.NO_PROBLEM


def test_invariance_counts_only_if_the_method_always_ran():
    assert decide_verdict(outcome([0.0] * 6, method=Pine())) is Verdict.NO_PROBLEM
    assert decide_verdict(outcome([0.0] * 6, method=Pine(), ran=0.5)) is Verdict.TOO_FEW
    assert decide_verdict(outcome([1.0] * 6, method=Pine())) is Verdict.PROBLEM


def test_agreeing_questions_do_not_rule_out_a_rate_above_zero():
    found = estimate_mean([0.0] * 10)
    assert (found.estimate, found.low) == (0, 0)
    assert (1 - found.high) ** 10 == pytest.approx(0.05)


def case_of(lm, question="Who?", documents=("A tin owl.\n", "Brass whales.\n"), answers=(), **settings):
    prompt = Prompt("Read:\n", list(documents), question)
    return AuditCase(
        Question(question, answers=answers),
        RecordedRequest(lm, lm.prepare(prompt, method="none"), GenerationSettings(**settings)),
    )


def test_each_attempt_at_a_sampled_answer_has_another_seed(lm):
    case = case_of(lm, max_new_tokens=6, temperature=1.0, seed=7)
    found = [each.token_ids for each in generate_answers(case, [case.request()] * 2)]
    assert found == [each.token_ids for each in generate_answers(case, [case.request()] * 2)]
    assert found[0] != found[1]
    assert generate_answers(case, [case.request()], first_attempt=1)[0].token_ids == found[1]
    expected = lm.batch([case.request()], max_new_tokens=6, temperature=1.0, seed=8)
    assert found[1] == expected[0].token_ids
    assert case.recorded.settings.seed == 7


@pytest.fixture
def batches(monkeypatch):
    """Record the number of prompts in each batch of the model."""
    sizes, answer = [], DebiasedLM.answer

    def counted(self, requests, settings):
        sizes.append(len(requests))
        return answer(self, requests, settings)

    monkeypatch.setattr(DebiasedLM, "answer", counted)
    return sizes


DOCUMENTS = ("A tin owl.\n", "Brass whales.\n", "Iron cats.\n")


def test_the_orders_of_a_question_run_once_in_one_batch(lm, batches):
    """``none`` runs three orders, and each invariant method runs one, unless its prompt ran before."""
    cases = [case_of(lm, f"Who{'?' * index}", DOCUMENTS, max_new_tokens=2) for index in range(5)]
    vote = PermutationVote(samples=2)
    methods = {
        "none": NoMethod(),
        "segmented": Segmented(),
        "pine": Pine(),
        "vote": vote,
        "canonical": CanonicalOrder(),
    }
    calls = []
    found = audit(cases, methods, orders=3, progress=lambda *numbers: calls.append(numbers))
    assert batches[:3] == [3, 1, 1]  # the byte tokenizer gives ``segmented`` the tokens of ``none``
    assert 5 * (3 + 1 + 1) <= sum(batches) <= 5 * (3 + 1 + 1 + 1)
    assert {len(each.by_order) for label in methods for each in found.outcomes[label].answers} == {3}
    assert {len(set(each.by_order)) for each in found.outcomes["pine"].answers} == {1}
    assert calls[:3] == [(0, 100), (3, 100), (4, 100)] and calls[-1] == (100, 100)  # three orders, one of them again


def test_answers_are_repeated_where_rounding_may_change_them(batches):
    rough = DebiasedLM.from_pretrained("tiny", "none", dtype=torch.bfloat16)
    cases = [case_of(rough, f"Who{'?' * index}", DOCUMENTS, max_new_tokens=2) for index in range(5)]
    found = audit(cases, {"none": NoMethod(), "pine": Pine()}, orders=3)
    assert batches == [3, 1, 1] * 5  # three orders, one of them again, and ``pine``
    assert {len(each.repeated) for each in found.outcomes["none"].answers} == {2}


def test_segmented_has_the_tokens_of_the_plain_stock_prompt(lm):
    (case,) = from_questions(lm, [Question("Who?", ("A tin owl.", "Brass whales."))])
    for order in ([0, 1], [1, 0]):
        plain, segmented = (case.request(order, method).tokens.ids for method in (NoMethod(), Segmented()))
        assert plain == segmented


def test_an_interrupted_audit_reports_the_finished_questions(lm):
    cases = [case_of(lm, f"Who{'?' * index}", max_new_tokens=1) for index in range(8)]

    def stop(after):
        def progress(done, total):
            if done > 3 * after:  # two orders, one of them again
                raise KeyboardInterrupt

        return progress

    assert audit(cases, {"none": NoMethod()}, progress=stop(6)).questions == 6
    with pytest.raises(KeyboardInterrupt):
        audit(cases, {"none": NoMethod()}, progress=stop(4))


def test_flips_are_changes_of_rightness_where_answers_are_known():
    question = Question("Capital?", answers=("Paris",))
    assert not answers_differ(question, ["It is Paris.", "Paris, of course"])
    assert not answers_differ(question, ["Lyon", "Rome"]) and answers_differ(question, ["Paris", "Rome"])


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        ("Paris", "It is Paris.", True),
        ("The  Oak", "oak!", True),
        ("Paris", "Lyon", False),
        ("art", "party", False),
        ("", "Paris", False),
    ],
)
def test_answers_without_labels_are_compared_by_their_words(first, second, same):
    assert same_answer(first, second) is same
    assert answers_differ(Question("Capital?"), [first, second]) is not same


def labelled(flips, better, method=None):
    """Make an outcome whose correctness flips for each of 100 questions, and the change of accuracy."""
    rates = Flips.of(flips, [0.0] * len(flips))
    quiet = Flips.of([1.0] * len(flips), [0.0] * len(flips))  # the wording of every answer changes
    interval = Interval(*better)
    return Outcome(
        method or NoMethod(), quiet, rates, PositionPreference(0, 1, []), [0.6], estimate_mean([0.0]), interval, 1.0
    )


def test_without_right_answers_all_changes_of_answers_count(lm):
    never = [case_of(lm, f"Who{'?' * index}", answers=("no such name",), max_new_tokens=2) for index in range(5)]
    found = audit(never, {"none": NoMethod()}, orders=2)
    outcome = found.outcomes["none"]
    assert outcome.accuracy_by_order == [0, 0] and outcome.rightness is None
    assert outcome.headline == outcome.answer_flips
    assert "'Lyon' are a flip" in define_flip(found) and "no answer is right in any order" in define_flip(found)


@pytest.mark.parametrize("better", [(-0.3, -0.5, 0.1), (0.1, -0.05, 0.25), (-0.01, -0.015, 0.0)])
def test_a_method_that_may_lose_accuracy_is_for_consistency(better):
    outcomes = {"none": labelled([1.0] * 40 + [0.0] * 60, (0, 0, 0)), "pine": labelled([0.0] * 100, better, Pine())}
    found = Audit(outcomes, 100, 4)
    advice = recommend_method(found, {})
    assert advice.verdict is Verdict.PROBLEM and advice.method is None
    assert "40% (" in advice.text and "change between right and wrong" in advice.text  # not the 100% of wordings
    assert "No method is recommended: pine reduces this share to 0% and changes the share of right" in advice.text
    asked_for = recommend_method(found, {}, consistent=True)
    assert asked_for.method == "pine" and "It may be right less often" in asked_for.text


def test_a_method_without_loss_of_accuracy_is_recommended():
    gain = labelled([0.0] * 100, (0.05, -0.01, 0.1), Pine())
    found = Audit({"none": labelled([1.0] * 40 + [0.0] * 60, (0, 0, 0)), "pine": gain}, 100, 4)
    assert recommend_method(found, {}).method == "pine"
    assert define_flip(found).startswith("A flip: the answer is right in one order and wrong in another")
