"""An audit as tables for the terminal, as plain data, and as one HTML file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from markupsafe import Markup
from rich.table import Table

from ragbias.display import printable
from ragbias.evaluation.audit.cases import AuditCase
from ragbias.evaluation.audit.outcomes import POSITIONS, WORTH, Audit, Outcome
from ragbias.evaluation.audit.reuse_gate import ReuseGate
from ragbias.evaluation.audit.verdict import Recommendation, nats, reuse_advice, verdict
from ragbias.evaluation.cost.measuring import GenerationCost, measure_costs
from ragbias.evaluation.measures.bootstrap import FEWEST, Interval
from ragbias.evaluation.measures.metrics import normalised
from ragbias.evaluation.report.figures import PALE, address, bars, canvas, legend, line, styles_of
from ragbias.evaluation.report.html import Grid, Section, page
from ragbias.evaluation.report.tables import plain_table
from ragbias.methods import Method

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ROUNDS = 3  # in which costs are measured
EXAMPLES = 10  # questions whose answers the HTML shows
HEADINGS = ("method", "flips", "same order", "beyond", "verdict", "changed", "time", "memory")
REUSE_TITLE = "May documents be computed once?"
REUSE_HEADINGS = ("method", "against", "agrees", "KL", "reversed", "KL", "known answers", "cached", "again", "reuse")
LEGEND = (
    "Flips: questions whose answer differs between orders of the documents. Same order: the same, repeated as often in "
    "the retrieved order. Beyond: the difference, with its 95% interval. Changed: answers in the retrieved order that "
    "differ from those of the first line. Time to the first token and peak memory are in units of the plain model. "
    f"From {WORTH:.0%} on it is a problem."
)
PREFERENCE_LEGEND = (
    "Left: the log-probability of the answer with its document first, in the middle and last, the other documents in "
    "their order. Right: how much more often answers come from each part of the positions than if only the documents "
    "mattered. Both are flat where the order does not matter. The right side counts questions whose document is known "
    "in two orders or more."
)
NO_PREFERENCE = "Not shown: too few answers have a known document. This does not mean that no position is preferred."
REUSE_LEGEND = (
    "Agrees: questions whose most probable next token is the same as without reuse; reversed: the same for the method "
    "without reuse, with its documents reversed; KL in nats. Known answers: change of their log-probability. Cached: "
    "tokens of the prompts that need no computation once the documents are cached; again: those of them that occur "
    "again among these questions."
)


def costs_of(cases: Sequence[AuditCase], methods: Mapping[str, Method]) -> dict[str, GenerationCost]:
    """The cost of each method on the first prompts, by label."""
    return measure_costs(cases[0].recorded.lm, [each.prompt for each in cases[:ROUNDS]], methods, ROUNDS)


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


def tables(audit: Audit, costs: Mapping[str, GenerationCost], gates: Mapping[str, ReuseGate]) -> dict[str, Grid]:
    """Tables for the terminal and HTML reports, keyed by name.

    The names are ``flips``, ``positions``, and, if measured, ``right`` and ``reuse``.
    """
    title = f"{audit.questions} questions in up to {audit.orders} orders; in brackets 95% intervals (%)"
    flips = [
        [
            label,
            percent(each.flips),
            f"{each.floor.estimate:.0%}",
            percent(each.excess),
            verdict(each).value + (f" (ran on {each.ran:.0%})" if each.ran < 1 else ""),
            f"{each.changed.estimate:.0%}",
            f"x{costs[label].prefill_ratio[0]:.2f}" if label in costs else "-",
            f"x{costs[label].peak_ratio[0]:.2f}" if label in costs else "-",
        ]
        for label, each in audit.outcomes.items()
    ]
    found = {"flips": Grid(title, HEADINGS, flips)}
    preferences = [[label, *cells] for label, cells in preference_rows(audit).items()]
    title = "Positions: log-probability of the answer with its document moved; answers from each part, beyond chance"
    parts = len(preferences[0]) - len(POSITIONS) - 2
    headings = ["method", *POSITIONS, "from answers", *(f"{part + 1}/{parts}" for part in range(parts))]
    found["positions"] = Grid(title, headings, preferences)
    right = [
        [label, *(f"{value:.2f}" for value in each.accuracy_by_order)]
        for label, each in audit.outcomes.items()
        if each.accuracy_by_order
    ]
    if right:
        found["right"] = Grid("Share of right answers by order", ["method", *order_names(audit.orders)], right)
    if gates:
        reuse = [
            [
                label,
                gate.against,
                percent(gate.agreement),
                f"{gate.divergence.estimate:.3f}",
                percent(gate.reversed_agreement),
                f"{gate.reversed_divergence.estimate:.3f}",
                nats(gate.known) if gate.known else "-",
                f"{gate.kept:.0%}",
                f"{gate.again:.0%}",
                gate.verdict,
            ]
            for label, gate in gates.items()
        ]
        found["reuse"] = Grid(f"{REUSE_TITLE} The next token against the method without reuse", REUSE_HEADINGS, reuse)
    return found


def on_terminal(grid: Grid) -> Table:
    """A table whose columns of figures wrap and whose names do not."""
    made = plain_table(grid.title, *grid.head, wrap=True)
    made.columns[0].min_width = max(len(row[0]) for row in grid.rows)
    for row in grid.rows:
        made.add_row(*row)
    return made


def preference_rows(audit: Audit) -> dict[str, list[str]]:
    """Preferred positions by label: ``POSITIONS``, the number of answers with a known document, the parts."""
    parts = max(len(each.preference.excess) for each in audit.outcomes.values())
    rows = {}
    for label, each in audit.outcomes.items():
        by_position, found = each.logprob_by_position, each.preference
        moved = [f"{by_position[position].estimate:+.2f}" if by_position else "-" for position in POSITIONS]
        shares = [f"{part.estimate:+.1%}" for part in found.excess] or ["-"] * parts
        few = "" if found.excess else ": too few"
        rows[label] = [*moved, f"{found.answers} of {found.asked}{few}", *shares]
    return rows


def _known_documents(outcome: Outcome) -> str:
    """How many answers the figures of preferred positions rest on, and which figures are missing."""
    found = outcome.preference
    text = f"the document of {found.answers} of {found.asked} answers is known, in {found.questions} questions"
    if not found.excess:
        text += f"; that is too few for shares by part, which need {FEWEST} questions"
    return text if outcome.logprob_by_position else f"{text}; no log-probabilities"


def order_names(count: int) -> list[str]:
    return ["as retrieved", "reversed", *(f"shuffle {index}" for index in range(1, count - 1))]


def percent(interval: Interval) -> str:
    low, high = 100 * interval.low, 100 * interval.high
    return f"{interval.estimate:.0%} [{low:.0f}, {high:.0f}]"


def as_html(
    audit: Audit,
    costs: Mapping[str, GenerationCost],
    advice: Recommendation,
    settings: dict[str, Any],
    questions: Sequence[str],
    gates: Mapping[str, ReuseGate] | None = None,
) -> str:
    """One file without links, with the texts of the questions and the effect of reuse, if measured."""
    grids = {name: replace(grid, title="") for name, grid in tables(audit, costs, gates or {}).items()}
    flips = (address(flip_figure(audit), "flips"), "Share of questions whose answer changes")
    sections = [Section("Answers that change", figures=[flips], grids=[grids["flips"]], text=[LEGEND])]
    notes = [f"{label}: {_known_documents(each)}." for label, each in audit.outcomes.items()]
    if any(each.preference.excess or each.logprob_by_position for each in audit.outcomes.values()):
        picture = (address(preference_figure(audit), "preferences"), "Positions that answers come from")
        sections.append(Section("Preferred positions", figures=[picture], text=[PREFERENCE_LEGEND], notes=notes))
    else:
        sections.append(Section("Preferred positions", text=[NO_PREFERENCE], notes=notes))
    if "right" in grids:
        sections.append(Section("Right answers by order", grids=[grids["right"]]))
    if gates:
        sections.append(Section(REUSE_TITLE, grids=[grids["reuse"]], text=[reuse_advice(gates), REUSE_LEGEND]))
    if flipped := flipped_questions(audit, questions):
        sections.append(_examples(flipped, order_names(audit.orders)))
    values = [[name, str(value)] for name, value in settings.items()]
    sections.append(Section("Settings", grids=[Grid("", ["setting", "value"], values)]))
    return page("Does the order of the documents matter?", sections, (advice.headline, advice.text))


def _examples(flipped: Sequence[FlippedQuestion], orders: Sequence[str]) -> Section:
    """The first questions whose answer changes, answers other than in the retrieved order in bold."""
    shown, bold = flipped[:EXAMPLES], Markup("<strong>{}</strong>")
    rows = []
    for each in shown:
        question = each.question
        for label, answers in each.answers.items():
            rows.append(
                [
                    question,
                    label,
                    *(bold.format(printable(answer)) if differs else answer for answer, differs in answers),
                ]
            )
            question = ""  # in the first of its rows only
    text = (
        f"{len(shown)} of {len(flipped)} questions that at least one method answers differently in different orders. "
        "In bold: answers other than in the retrieved order."
    )
    if len(shown) < len(flipped):
        text += " Those of the first method come first; the file of --json holds all answers."
    return Section(
        "Questions whose answer changes", grids=[Grid("", ["question", "method", *orders], rows)], text=[text]
    )


def flip_figure(audit: Audit) -> Figure:
    """Flips under several orders beside those in the same order, for each method."""
    figure, (axis,) = canvas(height=0.9 + 0.8 * len(audit.outcomes))
    outcomes = audit.outcomes.values()
    series = {
        "documents in other orders": [each.flips.as_list() for each in outcomes],
        "same order again (noise)": [each.floor.as_list() for each in outcomes],
    }
    bars(axis, list(audit.outcomes), series)
    axis.axvline(WORTH, color=PALE, linestyle=":", linewidth=1.2)
    axis.set_xlabel(f"questions whose answer changes (dotted: {WORTH:.0%})")
    legend(figure, columns=2)
    return figure


def preference_figure(audit: Audit) -> Figure:
    """Log-probability of the answer with its document moved, and positions that answers come from beyond chance."""
    figure, (moved, taken) = canvas(2, height=3.2)
    styles = styles_of(audit.outcomes)
    for index, (label, outcome) in enumerate(audit.outcomes.items()):
        by_position, aside = outcome.logprob_by_position, 0.05 * index  # so that equal ones do not overlap
        columns = [by_position[position] for position in POSITIONS] if by_position else []
        for axis, values in ((moved, columns), (taken, outcome.preference.excess)):
            if values:
                at = [position + aside for position in range(len(values))]
                line(axis, at, [value.as_list() for value in values], styles[label], label, band=False)
    parts = max(len(each.preference.excess) for each in audit.outcomes.values())
    moved.set_xticks(range(len(POSITIONS)), POSITIONS)
    moved.set(xlabel="position of the answer's document", ylabel="log-probability of the answer,\nminus the mean")
    taken.set_xticks(range(parts), [f"{part + 1}/{parts}" for part in range(parts)])
    taken.set(xlabel="part of the positions, from first to last", ylabel="answers from there, beyond chance")
    taken.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    for axis in (moved, taken):
        axis.axhline(0, color=PALE, linewidth=0.8, zorder=0)
        if not axis.get_legend_handles_labels()[1]:
            text = "too few answers with\na known document"
            axis.text(0.5, 0.5, text, transform=axis.transAxes, ha="center", va="center")
            axis.set_yticks([])
    legend(figure)
    return figure


class FlippedQuestion(NamedTuple):
    """A question with the answers of each method by order, each with whether it differs from the first one.

    ``flips`` are the methods whose answers differ.
    """

    question: str
    answers: dict[str, list[tuple[str, bool]]]
    flips: list[str]


def flipped_questions(audit: Audit, questions: Sequence[str]) -> list[FlippedQuestion]:
    """Questions that any method answers differently in different orders; those of the first method first."""
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
