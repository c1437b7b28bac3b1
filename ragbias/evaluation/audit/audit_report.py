"""An audit as tables for the terminal, as plain data, and as one HTML file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from rich.table import Table

from ragbias.evaluation.audit.asking import AuditCase
from ragbias.evaluation.audit.charts import flip_figure, preference_figure
from ragbias.evaluation.audit.outcomes import Audit, Outcome
from ragbias.evaluation.audit.position_preference import POSITIONS
from ragbias.evaluation.audit.reuse_gate import ReuseGate
from ragbias.evaluation.audit.reuse_report import HEADINGS as REUSE_HEADINGS
from ragbias.evaluation.audit.reuse_report import advice as reuse_advice
from ragbias.evaluation.audit.reuse_report import rows as reuse_rows
from ragbias.evaluation.audit.verdict import WORTH, Recommendation, verdict
from ragbias.evaluation.cost.generation_cost import GenerationCost, measure_costs
from ragbias.evaluation.measures.bootstrap import FEWEST, Interval
from ragbias.evaluation.measures.metrics import normalised
from ragbias.evaluation.report.html import address, finalized
from ragbias.evaluation.report.plain_table import plain_table
from ragbias.methods import Method

ROUNDS = 3  # in which costs are measured
EXAMPLES = 10  # questions whose answers the HTML shows
HEADINGS = ("flips", "same order", "beyond", "verdict", "changed", "time", "memory")


def costs_of(cases: Sequence[AuditCase], methods: Mapping[str, Method]) -> dict[str, GenerationCost]:
    """What each method costs on the first prompts, by label."""
    return measure_costs(cases[0].asked.lm, [each.prompt for each in cases[:ROUNDS]], methods, ROUNDS)


def as_dict(
    audit: Audit, costs: Mapping[str, GenerationCost], advice: Recommendation, settings: dict[str, Any]
) -> dict[str, Any]:
    """All figures as plain data; intervals are ``[estimate, low, high]``, as in a bench."""
    return {
        "settings": settings,
        "verdict": advice.verdict.value,
        "threshold": WORTH,
        "recommended": advice.method,
        "recommendation": advice.text,
        "methods": {
            label: {
                **outcome.as_dict(),
                "verdict": verdict(outcome).value,
                "cost": costs[label].as_dict() if label in costs else None,
                "answers": audit.answers[label],
                "answers_in_the_same_order": audit.repeats[label],
            }
            for label, outcome in audit.outcomes.items()
        },
    }


def table(audit: Audit, costs: Mapping[str, GenerationCost]) -> list[Table]:
    """The tables for the terminal."""
    title = f"{audit.questions} questions in up to {audit.orders} orders; in brackets 95% intervals (%)"
    flips = _table(title, HEADINGS, {label: flip_row(each, costs.get(label)) for label, each in audit.outcomes.items()})
    found = [flips]
    preferences = preference_rows(audit)
    title = "Positions: log-probability of the answer with its document moved; answers from each part, beyond chance"
    parts = max(map(len, preferences.values())) - len(POSITIONS) - 1
    headings = [*POSITIONS, "from answers", *(f"{part + 1}/{parts}" for part in range(parts))]
    found.append(_table(title, headings, preferences))
    right = {label: each.accuracy_by_order for label, each in audit.outcomes.items() if each.accuracy_by_order}
    if right:
        headings = order_names(audit.orders)
        rows = {label: [f"{value:.2f}" for value in values] for label, values in right.items()}
        found.append(_table("Share of right answers by order", headings, rows))
    return found


def flip_row(outcome: Outcome, cost: GenerationCost | None) -> list[str]:
    """One line of the first table; without a cost where it was not measured."""
    return [
        percent(outcome.flips),
        f"{outcome.floor.estimate:.0%}",
        percent(outcome.excess),
        verdict(outcome).value + (f" (ran on {outcome.ran:.0%})" if outcome.ran < 1 else ""),
        f"{outcome.changed.estimate:.0%}",
        "-" if cost is None else f"x{cost.prefill_ratio[0]:.2f}",
        "-" if cost is None else f"x{cost.peak_ratio[0]:.2f}",
    ]


def preference_rows(audit: Audit) -> dict[str, list[str]]:
    """What is known of preferred positions, by label: ``POSITIONS``, the answers that the parts rest on, the parts."""
    parts = max(len(each.preference.excess) for each in audit.outcomes.values())
    rows = {}
    for label, each in audit.outcomes.items():
        by_position, found = each.logprob_by_position, each.preference
        moved = [f"{by_position[position].estimate:+.2f}" if by_position else "-" for position in POSITIONS]
        shares = [f"{part.estimate:+.1%}" for part in found.excess] or ["-"] * parts
        few = "" if found.excess else ": too few"
        rows[label] = [*moved, f"{found.answers} of {found.asked}{few}", *shares]
    return rows


def rests_on(outcome: Outcome) -> str:
    """What the figures of preferred positions rest on, and which of them are missing."""
    found = outcome.preference
    told = f"the document of {found.answers} of {found.asked} answers could be told, in {found.questions} questions"
    if not found.excess:
        told += f"; that is too few for shares by part, which need {FEWEST} questions"
    return told if outcome.logprob_by_position else f"{told}; no log-probabilities"


def order_names(count: int) -> list[str]:
    return ["as retrieved", "reversed", *(f"shuffle {index}" for index in range(1, count - 1))]


def percent(interval: Interval) -> str:
    low, high = 100 * interval.low, 100 * interval.high
    return f"{interval.estimate:.0%} [{low:.0f}, {high:.0f}]"


def _table(title: str, headings: Sequence[str], rows: Mapping[str, Sequence[str]]) -> Table:
    made = plain_table(title, "method", *headings, wrap=True)
    made.columns[0].min_width = max(map(len, rows))
    for label, cells in rows.items():
        made.add_row(label, *cells)
    return made


def as_html(
    audit: Audit,
    costs: Mapping[str, GenerationCost],
    advice: Recommendation,
    settings: dict[str, Any],
    questions: Sequence[str],
    gates: Mapping[str, ReuseGate] | None = None,
) -> str:
    """One file without links to others; ``questions`` are their texts, ``gates`` what reuse changes, if measured."""
    preferred = any(each.preference.excess or each.logprob_by_position for each in audit.outcomes.values())
    flipped = flipped_questions(audit, questions)
    loader = ChoiceLoader([PackageLoader(f"ragbias.evaluation.{name}", ".") for name in ("audit", "report")])
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, finalize=finalized)
    return environment.get_template("audit.html.j2").render(
        advice=advice,
        headings=HEADINGS,
        rows={label: flip_row(each, costs.get(label)) for label, each in audit.outcomes.items()},
        flips=address(flip_figure(audit), "flips"),
        preferences=address(preference_figure(audit), "preferences") if preferred else None,
        rests_on={label: rests_on(each) for label, each in audit.outcomes.items()},
        orders=order_names(audit.orders),
        accuracy={label: each.accuracy_by_order for label, each in audit.outcomes.items() if each.accuracy_by_order},
        examples=flipped[:EXAMPLES],
        flipped=len(flipped),
        threshold=f"{WORTH:.0%}",
        reuse={"headings": REUSE_HEADINGS, "rows": reuse_rows(gates), "advice": reuse_advice(gates)} if gates else None,
        settings=settings,
    )


@dataclass(frozen=True)
class FlippedQuestion:
    """A question that some method answers differently in different orders.

    Attributes:
        answers: every method's, by label, one for each order, and whether it is another one than in the first order.
        flips: labels of the methods whose answers differ.
    """

    question: str
    answers: dict[str, list[tuple[str, bool]]]
    flips: list[str]


def flipped_questions(audit: Audit, questions: Sequence[str]) -> list[FlippedQuestion]:
    """All questions that any method answers differently in different orders; first those that the first one does."""
    found = []
    for index, question in enumerate(questions):
        answers = {
            label: [(answer, normalised(answer) != normalised(given[index][0])) for answer in given[index]]
            for label, given in audit.answers.items()
        }
        flips = [label for label, given in answers.items() if any(other for _, other in given)]
        if flips:
            found.append(FlippedQuestion(question, answers, flips))
    return sorted(found, key=lambda example: audit.as_it_is not in example.flips)
