"""Verdicts and reports of audits, for hand-made outcomes."""

import io

import pytest
from rich.console import Console

from ragbias.data.intervals import Interval
from ragbias.data.questions import Question
from ragbias.methods import NoMethod, Pine
from ragbias_eval.audit.audit_report import (
    HTML_EXAMPLES,
    AuditReport,
    build_tables,
    describe_flips,
)
from ragbias_eval.audit.outcomes import Answers, Audit, Flips, Outcome, PositionPreference
from ragbias_eval.audit.verdict import Verdict, recommend_method
from ragbias_eval.report.tables import as_terminal_tables

QUIET, LOUD = ["Oak", "oak."], ["Oak", "Elm"]
ZERO = Interval(0, 0, 0)
COST = {"prefill_ratio": [1.0, 1.0, 1.0], "peak_ratio": [1.0, 1.0, 1.0]}


def outcome(method, answers, preference=None):
    flips = [float(given is LOUD) for given in answers]
    preference = preference or PositionPreference(0, 2 * len(flips), [])
    given = [Answers(texts, texts, True) for texts in answers]
    return Outcome(method, Flips.of(flips, [0.0] * len(flips)), None, preference, None, ZERO, None, 1.0, given)


def audit_of(answers, preferences=None):
    """Make an audit from the answers to each question in two orders, by label."""
    methods = {label: NoMethod() if label == "none" else Pine() for label in answers}
    known = preferences or {}
    found = {label: outcome(methods[label], own, known.get(label)) for label, own in answers.items()}
    return Audit(found, len(next(iter(answers.values()))), 2)


def reported(answers):
    return recommend_method(audit_of(answers), {"as is: pine": 2.4})


def html_of(audit):
    flipped = describe_flips(audit, [Question(f"Question {index}?") for index in range(audit.questions)])
    costs = dict.fromkeys(audit.outcomes, COST)
    return AuditReport(audit, costs, recommend_method(audit, {}), {"model": "oak"}, flipped).as_html()


def test_a_model_without_bias_has_nothing_to_pay_for():
    advice = reported({"none": [QUIET] * 40, "pine": [QUIET] * 40})
    assert advice.verdict is Verdict.NO_PROBLEM
    assert "No method is worth its cost here" in advice.text


def test_a_method_that_the_pipeline_needs_stays():
    advice = reported({"as is: pine": [QUIET] * 40, "none": [LOUD] * 20 + [QUIET] * 20})
    assert (advice.verdict, advice.method) == (Verdict.NO_PROBLEM, None)
    assert "With pine, which your pipeline already uses, you do not have this problem" in advice.text
    assert "Without it, 50% (" in advice.text and advice.text.endswith("changes 0% (verdict: problem).")
    assert "worth its cost" not in advice.text


def test_the_verdict_of_an_invariant_method_says_so():
    audit = audit_of({"none": [LOUD] + [QUIET] * 4, "pine": [QUIET] * 5})
    assert [row[4] for row in build_tables(audit, {})[0].rows] == ["too few examples", "order-invariant"]


@pytest.mark.parametrize(
    ("without", "words"),
    [
        ([QUIET] * 40, "(verdict: no problem)"),
        ([LOUD] * 2 + [QUIET] * 10, "(verdict: too few examples)"),
        (None, "add none to --methods"),
    ],
)
def test_an_unknown_or_needless_pipeline_method_is_reported(without, words):
    answers = {"as is: pine": [QUIET] * (len(without) if without else 40)}
    text = reported(answers | ({"none": without} if without else {})).text
    assert words in text
    assert "keep it" not in text


def test_examples_hold_flips_of_every_method_first_line_first():
    answers = {"none": [QUIET, QUIET, LOUD, QUIET, QUIET], "pine": [QUIET, LOUD, QUIET, QUIET, QUIET]}
    found = describe_flips(audit_of(answers), [Question(name) for name in "abcde"])
    assert found == ["c: as retrieved 'Oak', reversed 'Elm'", "b: as retrieved 'Oak', reversed 'Elm'"]


def test_html_shows_and_counts_changes_without_the_method():
    text = html_of(audit_of({"as is: pine": [QUIET] * 40, "none": [LOUD] * 16 + [QUIET] * 24}))
    assert "10 of 16 questions that flip" in text
    assert text.count("reversed &#39;Elm&#39;") == HTML_EXAMPLES
    few = html_of(audit_of({"as is: pine": [QUIET] * 40, "none": [LOUD] * 3 + [QUIET] * 37}))
    assert "3 of 3 questions that flip" in few and few.count("reversed &#39;Elm&#39;") == 3


def test_too_few_known_sources_are_no_flat_line():
    parts = [Interval(share, share, share) for share in (0.2, 0, 0, 0, -0.2)]
    preferences = {"none": PositionPreference(70, 80, parts), "pine": PositionPreference(6, 80, [])}
    found = audit_of({"none": [LOUD] * 40, "pine": [QUIET] * 40}, preferences)
    none, pine = build_tables(found, {})[1].rows
    assert none == ["none", "70 of 80", "+20.0%", "+0.0%", "+0.0%", "+0.0%", "-20.0%"]
    assert pine == ["pine", "6 of 80: too few"] + ["-"] * 5
    text = html_of(found)
    assert "<td>70 of 80</td>" in text and "<td>6 of 80: too few</td>" in text


@pytest.mark.parametrize("label", ["pine", "attention-sorting(rounds=2)"])
def test_a_terminal_of_80_columns_shows_every_figure(label):
    found = audit_of({"none": [LOUD] * 20 + [QUIET] * 20, label: [LOUD] * 40})
    console = Console(width=80, file=io.StringIO())
    console.print(as_terminal_tables(build_tables(found, dict.fromkeys(found.outcomes, COST))[0]))
    shown = console.file.getvalue()
    assert max(map(len, shown.splitlines())) <= 80
    assert shown.count("x1.00") == 4 and label in shown and "memory" in shown


def test_preferences_are_reported_absent_without_known_sources():
    text = html_of(audit_of({"none": [LOUD] * 40}))
    assert "preferences are unknown" in text
