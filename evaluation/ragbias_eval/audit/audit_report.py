"""Report an audit as terminal tables, JSON data or HTML."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from textwrap import shorten
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from markupsafe import Markup
from matplotlib.figure import Figure
from rich.console import Console

from ragbias.data.intervals import Interval
from ragbias.data.questions import Question
from ragbias.display import printable
from ragbias_eval.audit.outcomes import THRESHOLD, Audit, Outcome, answers_differ
from ragbias_eval.audit.verdict import Recommendation, Verdict, decide_verdict, define_flip
from ragbias_eval.cost import Cost
from ragbias_eval.report import figures
from ragbias_eval.report.html import Section, render_page
from ragbias_eval.report.tables import Grid, fit_terminal

Costs: TypeAlias = Mapping[str, Cost]

HTML_EXAMPLES = 10  # maximum number of example questions in the HTML file
HEADINGS = ("method", "flips", "same order", "beyond", "verdict", "changed", "time", "memory")
LEGEND = (
    "Flips: questions whose answer changes with the document order. Same order: questions whose answer changes when "
    "the retrieved order is repeated. Beyond: flips minus same order, with its 95% interval; at least "
    f"{THRESHOLD:.0%} is a problem. Changed: questions whose answer in the retrieved order differs from that of the "
    "first method. Time to the first token and peak memory are relative to the plain model."
)
PREFERENCE_LEGEND = (
    "Positions: share of answers that come from documents in each part of the prompt, minus the share expected if the "
    "order has no effect. Only questions with two or more answers of known source count. With too few questions, "
    "preferences are unknown."
)


class AuditReport(NamedTuple):
    """The results of an audit, the costs of each method, and the settings of the command."""

    audit: Audit
    costs: Costs
    advice: Recommendation
    settings: Mapping[str, Any]
    flipped: Sequence[FlippedQuestion]

    def as_dict(self) -> dict[str, Any]:
        """Convert all results to JSON data. Intervals are lists ``[estimate, low, high]``."""
        return {
            "model": self.settings["model"],
            "settings": dict(self.settings),
            "verdict": self.advice.verdict.value,
            "threshold": THRESHOLD,
            "flip": define_flip(self.audit),
            "recommended": self.advice.method,
            "recommendation": self.advice.text,
            "methods": {
                label: {
                    **outcome.as_dict(),
                    "verdict": decide_verdict(outcome).value,
                    "cost": self.costs.get(label),
                    "answers": [answers.by_order for answers in outcome.answers],
                    "answers_in_the_same_order": [answers.repeated for answers in outcome.answers],
                }
                for label, outcome in self.audit.outcomes.items()
            },
        }

    def as_html(self) -> str:
        """Render the report as one self-contained HTML page. The page shows some of the questions."""
        flips = (figures.data_url(draw_flips(self.audit), "flips"), "Share of questions that flip")
        text = [define_flip(self.audit), LEGEND, PREFERENCE_LEGEND]
        sections = [Section(figures=[flips], grids=build_tables(self.audit, self.costs), text=text)]
        if self.flipped:
            sections.append(_example_section(self.flipped, order_names(self.audit.orders)))
        values = [[name, str(value)] for name, value in self.settings.items()]
        sections.append(Section("Settings", grids=[Grid("", ["setting", "value"], values)]))
        title = f"{self.settings['model']}: does the order of the documents matter?"
        return render_page(title, sections, (self.advice.verdict.value, self.advice.text))

    def print(self, console: Console) -> None:
        """Print the tables, two examples of flips, and the recommendation."""
        for grid in build_tables(self.audit, self.costs):
            console.print(fit_terminal(grid))
        examples = [flipped.as_line() for flipped in self.flipped[:2]]
        for line in (define_flip(self.audit), *examples, "", self.advice.text):
            console.print(line, highlight=False)


def build_tables(audit: Audit, costs: Costs) -> list[Grid]:
    """Build tables of flips, of preferred positions and, if some questions have accepted answers, of accuracies."""
    title = f"{audit.questions} questions in up to {audit.orders} orders; in brackets 95% intervals (%)"
    parts = max(len(outcome.preference.excess) for outcome in audit.outcomes.values())
    flips, positions, right = [], [], []
    for label, outcome in audit.outcomes.items():
        found, preference = outcome.headline, outcome.preference
        shares = [format_percent(found.flips), f"{found.floor.estimate:.0%}", format_percent(found.excess)]
        names = ("prefill_ratio", "peak_ratio")
        ratios = [f"x{costs[label][name][0]:.2f}" if label in costs else "-" for name in names]
        flips.append([label, *shares, _format_verdict(outcome), f"{outcome.changed.estimate:.0%}", *ratios])
        counts = f"{preference.answers} of {preference.total}"
        if preference.excess:
            positions.append([label, counts, *(f"{part.estimate:+.1%}" for part in preference.excess)])
        else:
            positions.append([label, f"{counts}: too few", *["-"] * parts])
        if outcome.accuracy_by_order:
            right.append([label, *(f"{value:.2f}" for value in outcome.accuracy_by_order)])
    headings = ["method", "from answers", *(f"{part + 1}/{parts}" for part in range(parts))]
    grids = [
        Grid(title, HEADINGS, flips),
        Grid("Positions: answers from each part, minus the expected share", headings, positions),
    ]
    if right:
        grids.append(Grid("Share of right answers by order", ["method", *order_names(audit.orders)], right))
    return grids


def _format_verdict(outcome: Outcome) -> str:
    found = decide_verdict(outcome)
    if outcome.ran < 1:
        return f"{found.value} (ran on {outcome.ran:.0%})"
    return "order-invariant" if outcome.method.invariant and found is Verdict.NO_PROBLEM else found.value


def order_names(count: int) -> list[str]:
    return ["as retrieved", "reversed", *(f"shuffle {index}" for index in range(1, count - 1))]


def format_percent(interval: Interval) -> str:
    low, high = 100 * interval.low, 100 * interval.high
    return f"{interval.estimate:.0%} [{low:.0f}, {high:.0f}]"


def _example_section(flipped: Sequence[FlippedQuestion], orders: Sequence[str]) -> Section:
    examples, bold = flipped[:HTML_EXAMPLES], Markup("<strong>{}</strong>")
    rows = []
    for example in examples:
        question = example.question
        for label, answers in example.answers.items():
            cells = [bold.format(printable(answer)) if differs else answer for answer, differs in answers]
            rows.append([question, label, *cells])
            question = ""  # only the first row of a question contains the question
    text = (
        f"{len(examples)} of {len(flipped)} questions that flip with at least one method, beginning with the first "
        "method's. Answers that differ from the answer in the retrieved order are bold. --json writes all answers."
    )
    return Section("Questions that flip", grids=[Grid("", ["question", "method", *orders], rows, keys=2)], text=[text])


def draw_flips(audit: Audit) -> Figure:
    """Draw two bars per method: the shares of questions that flip between orders, and between repetitions."""
    outcomes = audit.outcomes.values()
    figure, (axis,) = figures.make_canvas(height=0.9 + 0.8 * len(outcomes))
    series = [
        (-0.2, "documents in other orders", "#9ecae1", [each.headline.flips for each in outcomes]),
        (0.2, "same order again (noise)", "white", [each.headline.floor for each in outcomes]),
    ]
    for shift, label, colour, shares in series:
        ys = [row + shift for row in range(len(shares))]
        estimates, lows, highs = zip(*shares, strict=True)
        errors = abs(np.subtract([lows, highs], estimates))
        look: dict[str, Any] = {"color": colour, "edgecolor": figures.INK, "ecolor": figures.PALE}
        bars = axis.barh(ys, estimates, 0.36, xerr=errors, capsize=3, label=label, **look)
        axis.bar_label(bars, [f"{estimate:.0%}" for estimate in estimates], padding=5, fontsize=8.5)
    axis.set_yticks(range(len(outcomes)), map(figures.panel_title, audit.outcomes))
    axis.invert_yaxis()
    axis.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    axis.margins(x=0.15)
    axis.grid(visible=False, axis="y")
    axis.axvline(THRESHOLD, color=figures.PALE, linestyle=":", linewidth=1.2)
    axis.set_xlabel(f"questions that flip (dotted: {THRESHOLD:.0%})")
    figures.draw_legend(figure, columns=2)
    return figure


class FlippedQuestion(NamedTuple):
    """A question whose answer changes with the document order."""

    question: str
    answers: dict[str, list[tuple[str, bool]]]  # by method and order: the answer, and whether it differs from the first

    def flips_with(self, label: str) -> bool:
        return any(differs for _, differs in self.answers[label])

    def as_line(self) -> str:
        """Format the question on one line, with two answers of the first method that flips."""
        answers = next(self.answers[label] for label in self.answers if self.flips_with(label))
        order, other = next((order, text) for order, (text, differs) in enumerate(answers) if differs)
        texts = (self.question, answers[0][0], other)
        question, first, second = (shorten(text, 60, placeholder=" ...") for text in texts)
        return f"{question}: as retrieved {first!r}, {order_names(len(answers))[order]} {second!r}"


def find_flipped_questions(audit: Audit, questions: Sequence[Question]) -> list[FlippedQuestion]:
    """Return the questions that flip with any method. The list begins with those that flip with the first method."""
    flipped = []
    for index, question in enumerate(questions[: audit.questions]):
        if audit.uses_accepted_answers and not question.answers:
            continue
        compared = question if audit.uses_accepted_answers else Question(question.question)
        answers = {}
        for label, outcome in audit.outcomes.items():
            texts = outcome.answers[index].by_order
            answers[label] = [(text, answers_differ(compared, (texts[0], text))) for text in texts]
        found = FlippedQuestion(question.question, answers)
        if any(map(found.flips_with, answers)):
            flipped.append(found)
    return sorted(flipped, key=lambda found: not found.flips_with(audit.unchanged_label))
