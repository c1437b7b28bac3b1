"""Recommendations follow from intervals, and from nothing else."""

from dataclasses import replace

import pytest

from ragbias.evaluation.advice.evidence import Case, Effect
from ragbias.evaluation.advice.rule import KINDS, LONG, LONG_CONTEXT, NO_EVIDENCE, advice, advised, strength

ONE_FACT, SEVERAL, JUDGE, _ = KINDS


def effect(low, high, acts_on="attention", invariant=True, cost=None):
    """A method whose mean less the plain mean has this interval."""
    mean = ((low + high) / 2, low, high)
    return Effect(acts_on, invariant, mean, worst=None, best=None, cost=cost)


def case(**changes):
    """120 questions about 10 documents, by log-probability, unless changed."""
    known = dict(
        study="made-up", model="m", task="mdqa", documents=10, measure="logprob", questions=120, tokens=800.0,
        gap=(1.0, 0.5, 1.5), effects={},
    )  # fmt: skip
    return Case(**{**known, **changes})


def method(*cases):
    found = advice(ONE_FACT, cases)
    return found.method, found.others


def test_what_is_better_than_the_plain_mean_is_recommended():
    assert method(case(effects={"pine": effect(0.2, 0.9), "rotor": effect(-0.9, 0.2)})) == ("pine", ())


def test_an_invariant_method_may_be_no_worse_but_not_by_more_than_is_borne():
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


def test_invariant_methods_go_first_then_what_is_better_then_the_surest():
    effects = {
        "sorting": effect(0.8, 0.9, "order", invariant=False),
        "no worse": effect(-0.05, 0.9),
        "surest": effect(0.3, 0.5),
        "better": effect(0.2, 0.9),
    }
    assert method(case(effects=effects)) == ("surest", ("better", "no worse", "sorting"))


def test_it_must_hold_in_every_case_in_which_anything_was_measured():
    first = case(effects={"pine": effect(0.2, 0.9), "rotor": effect(0.1, 0.3)})
    assert method(first, case(documents=20, effects={"pine": effect(-0.3, 0.1), "rotor": effect(0.1, 0.2)})) == (
        "rotor",
        (),
    )
    assert method(first, case(model="other", effects={"rotor": effect(-0.2, 0.2)})) == ("none", ())


def test_of_two_measures_of_one_case_the_surer_counts_and_neither_may_show_a_loss():
    sure = case(effects={"pine": effect(0.2, 0.9)})
    assert method(sure, case(measure="accuracy", effects={"pine": effect(-0.1, 0.1)})) == ("pine", ())
    assert method(sure, case(measure="accuracy", effects={"pine": effect(-0.2, -0.01)})) == ("none", ())
    assert method(sure, case(measure="accuracy", effects={"rotor": effect(0.0, 0.1)}))[0] == "pine"


def test_tasks_are_evidence_for_their_kind_and_long_prompts_for_long_contexts_too():
    cases = [
        case(effects={"pine": effect(0.2, 0.9)}),
        case(task="musique", tokens=LONG, effects={"rotor": effect(0.2, 0.9)}),
        case(task="arc_easy", effects={"pine": effect(0.2, 0.9)}),
    ]
    found = {each.kind: each for each in advised(cases)}
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
    assert strength([case(model=f"m{n}", questions=questions) for n in range(models)]) == word
