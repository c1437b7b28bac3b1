"""Advice names its figures, its evidence, and what else there is."""

from ragbias.evaluation.advice.evidence import Case, Effect
from ragbias.evaluation.advice.rule import KINDS, advice
from ragbias.evaluation.advice.wording import as_markdown, default_in_words, heading, reasons

ONE_FACT, *_ = KINDS
PINE = Effect("attention", True, (0.57, 0.21, 0.91), (1.4, 0.99, 1.81), (-0.59, -1.06, -0.16), 1.5)
VOTE = Effect("answers", True, (0.3, 0.1, 0.5), None, None, 4.7)
SCALED = Effect("channels", False, (0.19, 0.12, 0.26), None, None, None)
LOSES = Effect("attention", True, (-0.5, -0.9, -0.004), None, None, None)


def case(**changes):
    known = dict(
        study="made-up", model="m", task="mdqa", documents=10, measure="logprob", questions=120, tokens=800.0,
        gap=(1.99, 1.5, 2.52), effects={"pine": PINE, "permutation-vote": VOTE},
    )  # fmt: skip
    return Case(**{**known, **changes})


def test_a_recommendation_names_its_figures_its_evidence_and_what_qualifies_beside_it():
    found = advice(ONE_FACT, [case()])
    assert heading(found) == "one fact in one passage: pine (weak evidence: 1 model, 120 questions)"
    assert list(reasons(found)) == [
        "It gives one answer for all orders of the documents.",
        "made-up: m, mdqa, 10 documents, 120 questions, log-probability: +0.57 (+0.21 to +0.91) against the mean, "
        "+1.40 (+0.99 to +1.81) against the worst position, -0.59 (-1.06 to -0.16) against the best position "
        "of the plain model (whose best position is 1.99 (1.50 to 2.52) above its worst); prefill x1.50.",
        "These qualify as well: permutation-vote (prefill x4.70).",
    ]


def test_a_method_that_leaves_the_answer_dependent_on_the_order_is_said_to_do_so():
    found = advice(ONE_FACT, [case(effects={"channel-scaling": SCALED})])
    assert next(reasons(found)) == "The answer still depends on the order of the documents."
    assert "| `channel-scaling` | no | weak" in as_markdown([found])


def test_questions_that_the_method_was_not_asked_do_not_count():
    found = advice(ONE_FACT, [case(), case(study="depth", questions=60, effects={"rotor": LOSES})])
    assert heading(found).endswith("pine (weak evidence: 1 model, 120 questions)")
    assert "depth" not in " ".join(reasons(found))


def test_a_measure_that_the_method_was_not_measured_by_says_nothing():
    found = advice(ONE_FACT, [case(), case(measure="accuracy", effects={"rotor": LOSES})])
    told = " ".join(reasons(found))
    assert found.method == "pine" and "log-probability" in told and "accuracy" not in told


def test_where_nothing_pays_the_loss_that_is_borne_and_the_nearest_method_are_named():
    found = advice(ONE_FACT, [case(gap=None, effects={"pine": LOSES})])
    assert heading(found).startswith("one fact in one passage: none (")
    rule, told = reasons(found)
    assert "to lose no more than 0.1 nats, or 0.02 of the accuracy" in rule
    assert told.endswith(": the nearest is pine, -0.50 (-0.90 to -0.00) against the mean of the plain model.")


def test_where_models_differ_each_is_named():
    found = advice(ONE_FACT, [case(), case(model="other", questions=60, effects={"pine": LOSES})])
    assert heading(found) == "one fact in one passage: none (weak evidence: 2 models, 60 to 120 questions)"
    assert list(reasons(found))[-1] == "On m alone: pine."


def test_no_evidence_is_called_so_and_is_no_recommendation():
    found = advice(ONE_FACT, [])
    assert heading(found) == "one fact in one passage: no evidence"
    assert (
        as_markdown([found]).splitlines()[-1].startswith("| one fact in one passage | - | - | no evidence | Nothing ")
    )


def test_whether_the_evidence_is_for_the_default_is_said():
    good, bad, none = advice("a", [case()]), advice("b", [case(effects={"pine": LOSES})]), advice("c", [])
    begin = "The default everywhere is pine: "
    assert default_in_words([good, bad, none]) == f"{begin}it qualifies for a and it does not qualify for b."
    assert default_in_words([good, none]) == f"{begin}it qualifies for a."
    assert default_in_words([none]) == f"{begin}nothing was measured of it."


def test_the_table_has_a_row_for_each_kind_of_task():
    lines = as_markdown([advice(kind, [case()]) for kind in KINDS]).splitlines()
    assert len(lines) == 2 + len(KINDS) and {line.count("|") for line in lines} == {6}
    assert lines[2].startswith("| one fact in one passage | `pine` | yes | weak evidence: 1 model, 120 questions | It ")
