"""Reports of an audit: tables for the terminal, plain data for JSON, and HTML."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from textwrap import shorten
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from markupsafe import Markup

from ragbias.data.questions import Question
from ragbias.display import printable
from ragbias.evaluation.audit.outcomes import WORTH, Audit, Outcome, differ
from ragbias.evaluation.audit.verdict import Recommendation, Verdict, definition, verdict
from ragbias.evaluation.cost import Cost
from ragbias.evaluation.measures.bootstrap import Interval
from ragbias.evaluation.report.figures import PALE, address, bars, canvas, legend, line, styles_of
from ragbias.evaluation.report.html import Section, page
from ragbias.evaluation.report.tables import Grid

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Costs: TypeAlias = Mapping[str, Cost]

EXAMPLES = 10  # maximum number of questions whose answers the HTML shows
IN_TEXT = 2  # number of example questions in the JSON file
HEADINGS = ("method", "flips", "same order", "beyond", "verdict", "changed", "time", "memory")
LEGEND = (
    "Flips: questions whose answer changes with the document order. Same order: questions whose answer changes when "
    "the retrieved order is repeated. Beyond: the difference of the two, with its 95% interval; a problem from "
    f"{WORTH:.0%} on. Changed: answers in the retrieved order that differ from those of the first method. Time to the "
    "first token and peak memory are in units of the plain model."
)
PREFERENCE_LEGEND = (
    "How often answers come from each part of the positions, minus how often they would if order did not matter. "
    "Without an effect of order, the curve is flat at 0. Only questions with known documents in several orders count."
)
NO_PREFERENCE = "Not shown: too few answers have a known document. This does not mean that no position is preferred."


def as_dict(
    audit: Audit,
    costs: Costs,
    advice: Recommendation,
    settings: Mapping[str, Any],
    examples: Sequence[FlippedQuestion],
) -> dict[str, Any]:
    """Return all figures as plain data for JSON. Intervals are lists ``[estimate, low, high]``."""
    return {
        "model": settings["model"],
        "settings": dict(settings),
        "verdict": advice.verdict.value,
        "threshold": WORTH,
        "flip": {"definition": definition(audit), "examples": [example.example() for example in examples[:IN_TEXT]]},
        "recommended": advice.method,
        "recommendation": advice.text,
        "methods": {
            label: {
                **outcome.as_dict(),
                "verdict": verdict(outcome).value,
                "cost": costs.get(label),
                "answers": [answers.by_order for answers in outcome.answers],
                "answers_in_the_same_order": [answers.repeated for answers in outcome.answers],
            }
            for label, outcome in audit.outcomes.items()
        },
    }


def tables(audit: Audit, costs: Costs) -> dict[str, Grid]:
    """Build the tables ``flips`` and ``positions``, and ``right`` if questions have accepted answers."""
    title = f"{audit.questions} questions in up to {audit.orders} orders; in brackets 95% intervals (%)"
    flips = [
        [
            label,
            percent(outcome.headline.flips),
            f"{outcome.headline.floor.estimate:.0%}",
            percent(outcome.headline.excess),
            _verdict_of(outcome),
            f"{outcome.changed.estimate:.0%}",
            f"x{costs[label]['prefill_ratio'][0]:.2f}" if label in costs else "-",
            f"x{costs[label]['peak_ratio'][0]:.2f}" if label in costs else "-",
        ]
        for label, outcome in audit.outcomes.items()
    ]
    grids = {"flips": Grid(title, HEADINGS, flips)}
    parts = max(len(outcome.preference.excess) for outcome in audit.outcomes.values())
    preferences = []
    for label, outcome in audit.outcomes.items():
        preference = outcome.preference
        shares = [f"{part.estimate:+.1%}" for part in preference.excess] or ["-"] * parts
        counts = f"{preference.answer_count} of {preference.total_count}"
        preferences.append([label, counts if preference.excess else f"{counts}: too few", *shares])
    headings = ["method", "from answers", *(f"{part + 1}/{parts}" for part in range(parts))]
    grids["positions"] = Grid("Positions: answers from each part, beyond chance", headings, preferences)
    right = [
        [label, *(f"{value:.2f}" for value in outcome.accuracy_by_order)]
        for label, outcome in audit.outcomes.items()
        if outcome.accuracy_by_order
    ]
    if right:
        grids["right"] = Grid("Share of right answers by order", ["method", *order_names(audit.orders)], right)
    return grids


def _verdict_of(outcome: Outcome) -> str:
    found = verdict(outcome)
    if outcome.ran < 1:
        return f"{found.value} (ran on {outcome.ran:.0%})"
    return "order-invariant" if outcome.method.invariant and found is Verdict.NO_PROBLEM else found.value


def order_names(count: int) -> list[str]:
    return ["as retrieved", "reversed", *(f"shuffle {index}" for index in range(1, count - 1))]


def percent(interval: Interval) -> str:
    low, high = 100 * interval.low, 100 * interval.high
    return f"{interval.estimate:.0%} [{low:.0f}, {high:.0f}]"


def as_html(
    audit: Audit,
    costs: Costs,
    advice: Recommendation,
    settings: Mapping[str, Any],
    flipped: Sequence[FlippedQuestion],
) -> str:
    """Render the report as one HTML file without links, including the questions."""
    grids = {name: replace(grid, title="") for name, grid in tables(audit, costs).items()}
    flips = (address(flip_figure(audit), "flips"), "Share of questions that flip")
    sections = [Section("Flips", figures=[flips], grids=[grids["flips"]], text=[definition(audit), LEGEND])]
    pictures, text = [], NO_PREFERENCE
    if any(outcome.preference.excess for outcome in audit.outcomes.values()):
        pictures = [(address(preference_figure(audit), "preferences"), "Positions that answers come from")]
        text = PREFERENCE_LEGEND
    sections.append(Section("Preferred positions", figures=pictures, grids=[grids["positions"]], text=[text]))
    if "right" in grids:
        sections.append(Section("Right answers by order", grids=[grids["right"]]))
    if flipped:
        sections.append(_examples(flipped, order_names(audit.orders)))
    values = [[name, str(value)] for name, value in settings.items()]
    sections.append(Section("Settings", grids=[Grid("", ["setting", "value"], values)]))
    title = f"{settings['model']}: does the order of the documents matter?"
    return page(title, sections, (advice.headline, advice.text))


def _examples(flipped: Sequence[FlippedQuestion], orders: Sequence[str]) -> Section:
    """Build a table of flipped questions. Answers that differ from the answer in retrieved order are bold."""
    examples, bold = flipped[:EXAMPLES], Markup("<strong>{}</strong>")
    rows = []
    for example in examples:
        question = example.question
        for label, answers in example.answers.items():
            cells = [bold.format(printable(answer)) if differs else answer for answer, differs in answers]
            rows.append([question, label, *cells])
            question = ""  # empty in the other rows of the question
    text = (
        f"{len(examples)} of {len(flipped)} questions that flip with at least one method. Answers that differ from the "
        "retrieved order's are bold."
    )
    if len(examples) < len(flipped):
        text += " Questions that flip with the first method come first. The file of --json contains all answers."
    return Section("Questions that flip", grids=[Grid("", ["question", "method", *orders], rows, keys=2)], text=[text])


def flip_figure(audit: Audit) -> Figure:
    """Draw two bars per method: flips between orders, and flips between repetitions."""
    figure, (axis,) = canvas(height=0.9 + 0.8 * len(audit.outcomes))
    outcomes = audit.outcomes.values()
    series = {
        "documents in other orders": [outcome.headline.flips.as_list() for outcome in outcomes],
        "same order again (noise)": [outcome.headline.floor.as_list() for outcome in outcomes],
    }
    bars(axis, list(audit.outcomes), series)
    axis.axvline(WORTH, color=PALE, linestyle=":", linewidth=1.2)
    axis.set_xlabel(f"questions that flip (dotted: {WORTH:.0%})")
    legend(figure, columns=2)
    return figure


def preference_figure(audit: Audit) -> Figure:
    """Draw one curve per method: the excess of answers from each part of the positions."""
    figure, (axis,) = canvas(height=3.2)
    styles = styles_of(audit.outcomes)
    for index, (label, outcome) in enumerate(audit.outcomes.items()):
        if excess := outcome.preference.excess:
            at = [position + 0.05 * index for position in range(len(excess))]  # equal curves would overlap
            line(axis, at, [value.as_list() for value in excess], styles[label], label, band=False)
    parts = max(len(outcome.preference.excess) for outcome in audit.outcomes.values())
    axis.set_xticks(range(parts), [f"{part + 1}/{parts}" for part in range(parts)])
    axis.set(xlabel="part of the positions, from first to last", ylabel="answers from this part, beyond chance")
    axis.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    axis.axhline(0, color=PALE, linewidth=0.8, zorder=0)
    legend(figure)
    return figure


class FlippedQuestion(NamedTuple):
    """A question whose answer changes with the document order.

    Attributes:
        answers: for each method, a pair per order: the answer, and whether it differs from the first answer.
        flips: the methods whose answers change.
    """

    question: str
    answers: dict[str, list[tuple[str, bool]]]
    flips: list[str]

    def example(self) -> str:
        """Format the question and two different answers on one line."""
        answers = self.answers[self.flips[0]]
        order, other = next((index, text) for index, (text, differs) in enumerate(answers) if differs)
        name = order_names(len(answers))[order]
        texts = (self.question, answers[0][0], other)
        question, first, second = (shorten(text, 60, placeholder=" ...") for text in texts)
        return f"{question}: as retrieved {first!r}, {name} {second!r}"


def flipped_questions(audit: Audit, questions: Sequence[Question]) -> list[FlippedQuestion]:
    """Return the questions that flip with any method. Questions that flip with the first method come first."""
    flipped = []
    for index, question in enumerate(questions[: audit.questions]):
        compared = question if audit.labelled else Question(question.question)
        if audit.labelled and not question.answers:
            continue
        answers = {}
        for label, outcome in audit.outcomes.items():
            texts = outcome.answers[index].by_order
            answers[label] = [(text, differ(compared, (texts[0], text))) for text in texts]
        flips = [label for label, row in answers.items() if any(differs for _, differs in row)]
        if flips:
            flipped.append(FlippedQuestion(question.question, answers, flips))
    return sorted(flipped, key=lambda example: audit.as_it_is not in example.flips)
