"""Recommendations depend only on intervals, and name their figures and evidence."""

from dataclasses import replace

import pytest

from studies.advice import (
    KINDS,
    LONG,
    LONG_CONTEXT,
    NO_EVIDENCE,
    Case,
    Effect,
    describe_coverage,
    describe_default,
    format_heading,
    give_reasons,
    rate_evidence,
    recommend,
    recommend_all,
)
from studies.evidence import advice_table, evidence_tables

ONE_FACT, SEVERAL, JUDGE, _ = KINDS


def effect(low, high, acts_on="attention", invariant=True, cost=None):
    """Make a method whose mean minus the plain mean has this interval."""
    mean = ((low + high) / 2, low, high)
    return Effect(acts_on, invariant, mean, worst=None, best=None, cost=cost)


def case(**changes):
    """Make a case of 120 questions about 10 documents, by log-probability, unless changed."""
    known = dict(
        study="made-up", model="m", task="mdqa", documents=10, measure="logprob", questions=120, tokens=800.0,
        gap=(1.0, 0.5, 1.5), effects={},
    )  # fmt: skip
    return Case(**{**known, **changes})


def method(*cases):
    found = recommend(ONE_FACT, cases)
    return found.method, found.others


def test_what_is_better_than_the_plain_mean_is_recommended():
    assert method(case(effects={"pine": effect(0.2, 0.9), "rotor": effect(-0.9, 0.2)})) == ("pine", ())


def test_an_invariant_methods_loss_stays_within_the_limit():
    assert method(case(effects={"pine": effect(-0.1, 0.4)})) == ("pine", ())
    assert method(case(effects={"pine": effect(-0.11, 0.4)})) == ("none", ())
    accurate = case(measure="accuracy", effects={"pine": effect(-0.02, 0.1)})
    assert method(accurate) == ("pine", ())
    assert method(replace(accurate, effects={"pine": effect(-0.021, 0.1)})) == ("none", ())


@pytest.mark.parametrize(
    ("acts_on", "invariant", "low", "taken"),
    [
        ("attention", False, -0.05, False),  # nothing gained
        ("attention", False, 0.05, True),
        ("order", True, -0.05, False),  # a fixed order only settles which document profits
        ("order", True, 0.05, True),
        ("answers", True, -0.05, True),
        ("nothing", False, 0.05, False),  # tokenising by document is no method
    ],
)
def test_what_is_not_invariant_inside_must_gain(acts_on, invariant, low, taken):
    found = case(effects={"m": effect(low, 0.5, acts_on, invariant)})
    assert method(found) == (("m" if taken else "none"), ())


def test_advice_ranks_invariant_then_better_then_surer_methods():
    effects = {
        "sorting": effect(0.8, 0.9, "order", invariant=False),
        "no worse": effect(-0.05, 0.9),
        "surest": effect(0.3, 0.5),
        "better": effect(0.2, 0.9),
    }
    assert method(case(effects=effects)) == ("surest", ("better", "no worse", "sorting"))


def test_it_must_hold_in_every_measured_case():
    first = case(effects={"pine": effect(0.2, 0.9), "rotor": effect(0.1, 0.3)})
    assert method(first, case(documents=20, effects={"pine": effect(-0.3, 0.1), "rotor": effect(0.1, 0.2)})) == (
        "rotor",
        (),
    )
    assert method(first, case(model="other", effects={"rotor": effect(-0.2, 0.2)})) == ("none", ())


def test_the_surer_of_two_measures_counts_and_neither_may_lose():
    sure = case(effects={"pine": effect(0.2, 0.9)})
    assert method(sure, case(measure="accuracy", effects={"pine": effect(-0.1, 0.1)})) == ("pine", ())
    assert method(sure, case(measure="accuracy", effects={"pine": effect(-0.2, -0.01)})) == ("none", ())
    assert method(sure, case(measure="accuracy", effects={"rotor": effect(0.0, 0.1)}))[0] == "pine"


def test_tasks_are_evidence_for_their_kind_and_long_contexts():
    cases = [
        case(effects={"pine": effect(0.2, 0.9)}),
        case(task="musique", tokens=LONG, effects={"rotor": effect(0.2, 0.9)}),
        case(task="arc_easy", effects={"pine": effect(0.2, 0.9)}),
    ]
    found = {each.kind: each for each in recommend_all(cases)}
    assert {kind: each.method for kind, each in found.items()} == {
        ONE_FACT: "pine", SEVERAL: "rotor", JUDGE: "none", LONG_CONTEXT: "rotor"
    }  # fmt: skip
    assert [len(each.cases) for each in found.values()] == [1, 1, 0, 1]
    assert found[JUDGE].strength == NO_EVIDENCE


@pytest.mark.parametrize(
    ("models", "questions", "word"),
    [(0, 120, NO_EVIDENCE), (1, 120, "weak"), (2, 120, "fair"), (3, 120, "fair"), (4, 120, "good"), (4, 99, "weak")],
)
def test_evidence_is_as_strong_as_its_models_and_questions(models, questions, word):
    assert rate_evidence([case(model=f"m{n}", questions=questions) for n in range(models)]) == word


# in words

PINE = Effect("attention", True, (0.57, 0.21, 0.91), (1.4, 0.99, 1.81), (-0.59, -1.06, -0.16), 1.5)
VOTE = Effect("answers", True, (0.3, 0.1, 0.5), None, None, 4.7)
SCALED = Effect("channels", False, (0.19, 0.12, 0.26), None, None, None)
LOSES = Effect("attention", True, (-0.5, -0.9, -0.004), None, None, None)


def reported_case(**changes):
    return case(**{"gap": (1.99, 1.5, 2.52), "effects": {"pine": PINE, "permutation-vote": VOTE}, **changes})


def test_a_recommendation_names_figures_evidence_and_others():
    found = recommend(ONE_FACT, [reported_case()])
    assert format_heading(found) == "one fact in one passage: pine (weak evidence: 1 model, 120 questions)"
    assert list(give_reasons(found)) == ["It is order-invariant.", "Also qualified: permutation-vote (prefill x4.70)."]
    row = "| made-up | log-probability | 120 | pine | +0.57 (+0.21 to +0.91) | +1.40 | x1.50 |"
    assert evidence_tables([found]).splitlines()[-1] == row


def test_a_method_that_leaves_order_dependence_is_reported():
    found = recommend(ONE_FACT, [reported_case(effects={"channel-scaling": SCALED})])
    assert next(give_reasons(found)) == "The answer still depends on the order of the documents."
    assert "| channel-scaling | no | weak" in advice_table([found])


def test_questions_without_an_answer_of_the_method_do_not_count():
    found = recommend(ONE_FACT, [reported_case(), reported_case(study="depth", questions=60, effects={"rotor": LOSES})])
    assert format_heading(found).endswith("pine (weak evidence: 1 model, 120 questions)")
    assert "depth" not in evidence_tables([found])


def test_a_measure_missing_for_the_method_is_no_evidence():
    found = recommend(ONE_FACT, [reported_case(), reported_case(measure="accuracy", effects={"rotor": LOSES})])
    table = evidence_tables([found])
    assert found.method == "pine" and "log-probability" in table and "accuracy" not in table


def test_without_a_gain_the_nearest_method_and_loss_are_named():
    found = recommend(ONE_FACT, [reported_case(gap=None, effects={"pine": LOSES})])
    assert format_heading(found).startswith("one fact in one passage: none (")
    assert list(give_reasons(found)) == ["No method is clearly as good as the plain model."]
    assert "(closest to qualifying)" in evidence_tables([found])
    assert "| pine | -0.50 (-0.90 to +0.00) |" in evidence_tables([found])


def test_where_models_differ_each_is_named():
    found = recommend(ONE_FACT, [reported_case(), reported_case(model="other", questions=60, effects={"pine": LOSES})])
    assert format_heading(found) == "one fact in one passage: none (weak evidence: 2 models, 60 to 120 questions)"
    assert list(give_reasons(found))[-1] == "On m alone: pine."


def test_no_evidence_is_called_so_and_is_no_recommendation():
    found = recommend(ONE_FACT, [])
    assert format_heading(found) == "one fact in one passage: no evidence"
    assert advice_table([found]).splitlines()[-1] == "| one fact in one passage | - | - | no evidence |"
    assert next(give_reasons(found)).startswith("Nothing was measured; compare methods on your own questions")


def test_the_models_that_the_advice_covers_are_named():
    words = describe_coverage([recommend(ONE_FACT, [reported_case(), reported_case(model="a")]), recommend(JUDGE, [])])
    assert words.startswith("The recommendations cover studies of a and m without readers. A later study measured ")


def test_evidence_for_the_default_is_reported():
    good, bad, none = (
        recommend("a", [reported_case()]),
        recommend("b", [reported_case(effects={"pine": LOSES})]),
        recommend("c", []),
    )
    begin, end = "The default method, pine, ", "; use it if answers must not depend on the order."
    assert describe_default([good, bad, none]) == f"{begin}qualifies for a{end}"
    assert describe_default([bad, none]) == f"{begin}qualifies for none of these tasks{end}"
    assert describe_default([none]) == f"{begin}was not measured."


def test_the_table_has_a_row_for_each_kind_of_task():
    lines = advice_table([recommend(kind, [reported_case()]) for kind in KINDS]).splitlines()
    assert len(lines) == 2 + len(KINDS) and {line.count("|") for line in lines} == {5}
    assert lines[2] == ("| one fact in one passage | pine | yes | weak evidence: 1 model, 120 questions |")
