"""Report an audit as terminal tables, JSON data or HTML."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from rich.console import Console

from ragbias.data.intervals import Interval
from ragbias.data.questions import Question
from ragbias_eval.audit.outcomes import THRESHOLD, Audit, Outcome, answers_differ
from ragbias_eval.audit.verdict import Recommendation, Verdict, decide_verdict, define_flip
from ragbias_eval.cost import Cost
from ragbias_eval.report.html import Section, render_page
from ragbias_eval.report.tables import Grid, as_terminal_tables

Costs: TypeAlias = Mapping[str, Cost]

HTML_EXAMPLES = 10  # maximum number of example questions in the HTML file
HEADINGS = ("method", "flips", "noise", "beyond", "verdict", "changed", "time", "memory")
LEGEND = (
    "Flips: questions whose answer changes with the document order. Noise: questions whose answer changes when the "
    "retrieved order is repeated. Beyond: flips minus noise, with its 95% interval; at least "
    f"{THRESHOLD:.0%} is a problem. Changed: questions whose answer in the retrieved order differs from that of the "
    "first method. Time to the first token and peak memory are relative to the plain model."
)
PREFERENCE_LEGEND = (
    "Positions: share of answers that come from documents in each part of the prompt, minus the share expected if the "
    "order has no effect. Only questions with two or more answers of known source count. With too few questions, "
    "preferences are unknown."
)


class AuditReport(NamedTuple):
    """The results of an audit, the costs of each method, the settings of the command, and lines about flips."""

    audit: Audit
    costs: Costs
    advice: Recommendation
    settings: Mapping[str, Any]
    flipped: Sequence[str]  # see ``describe_flips``

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
        text = [define_flip(self.audit), LEGEND, PREFERENCE_LEGEND]
        sections = [Section(grids=build_tables(self.audit, self.costs), text=text)]
        if self.flipped:
            examples = self.flipped[:HTML_EXAMPLES]
            title = f"{len(examples)} of {len(self.flipped)} questions that flip; --json writes all answers"
            sections.append(Section(title, notes=examples))
        values = [[name, str(value)] for name, value in self.settings.items()]
        sections.append(Section("Settings", grids=[Grid("", ["setting", "value"], values)]))
        title = f"{self.settings['model']}: does the order of the documents matter?"
        return render_page(title, sections, (self.advice.verdict.value, self.advice.text))

    def print(self, console: Console) -> None:
        """Print the tables, two examples of flips, and the recommendation."""
        for grid in build_tables(self.audit, self.costs):
            console.print(as_terminal_tables(grid))
        for line in (define_flip(self.audit), *self.flipped[:2], "", self.advice.text):
            console.print(line, highlight=False)


def build_tables(audit: Audit, costs: Costs) -> list[Grid]:
    """Build tables of flips, of preferred positions and, if some questions have accepted answers, of accuracies."""
    title = f"{audit.questions} questions in up to {audit.orders} orders [95% intervals]"
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
        Grid(title, HEADINGS, flips, columns=4),
        Grid("Positions: answers from each part, minus the expected share", headings, positions),
    ]
    if right:
        grids.append(Grid("Share of right answers by order", ["method", *order_names(audit.orders)], right, columns=4))
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


def _shorten(text: str, most: int = 60) -> str:
    text = " ".join(text.split())
    return text if len(text) <= most else f"{text[: most - 4]} ..."


def describe_flips(audit: Audit, questions: Sequence[Question]) -> list[str]:
    """Return a line with two answers for each question that flips. Flips of the first method come first."""
    lines: list[tuple[bool, str]] = []
    for index, question in enumerate(questions[: audit.questions]):
        if audit.uses_accepted_answers and not question.answers:
            continue
        compared = question if audit.uses_accepted_answers else Question(question.question)
        for label, outcome in audit.outcomes.items():
            first, *others = outcome.answers[index].by_order
            names = order_names(1 + len(others))[1:]
            different = [pair for pair in zip(names, others, strict=True) if answers_differ(compared, (first, pair[1]))]
            if different:
                order, other = different[0]
                text, one, two = map(_shorten, (question.question, first, other))
                lines.append((label != audit.unchanged_label, f"{text}: as retrieved {one!r}, {order} {two!r}"))
                break
    return [line for _, line in sorted(lines, key=lambda entry: entry[0])]
