"""Make tables of the studies from their summaries. Every number has an interval."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ragbias.data.intervals import NO_VALUE, format_estimate, format_figure
from ragbias.methods import DEFAULT_METHOD
from ragbias_eval import ACCURACY, REFERENCE
from ragbias_eval.measures.aggregates import figures_of
from ragbias_eval.report import tables
from studies.advice import MEASURES
from studies.markdown import escape_markdown, markdown_table

NOTHING_YET = "No study is stored yet.\n"
MINUS = f"mean - {REFERENCE}, 95% interval"
Summaries = Mapping[str, Mapping[str, Any]]


def make_tables(summaries: Summaries, purposes: Mapping[str, str]) -> str:
    """Make an overview of all studies, and the tables of each study with its purpose, in Markdown."""
    if not summaries:
        return NOTHING_YET
    parts = [_overview_table(summaries)]
    for study, result, measure in _count_cases(summaries):
        notes = "".join(f"- {escape_markdown(note)}\n" for note in result["notes"])
        parts += [
            f"### {study}: {escape_markdown(tables.format_title(result, measure))}\n",
            f"{purposes[study]} {_describe_source(study, summaries[study]['hours'])}\n",
            _method_table(result, measure),
            *([notes] if notes else []),
        ]
    return "\n".join(parts)


def add_costs(summaries: Summaries) -> Summaries:
    """Add costs that another study measured for the same model, task and number of documents."""
    known = {
        (*_result_setting(result), label): method["cost"]
        for summary in summaries.values()
        for result in summary["results"]
        for label, method in result["methods"].items()
        if "cost" in method
    }

    def timed(result: Mapping[str, Any]) -> dict[str, Any]:
        methods = {
            label: {**({"cost": cost} if (cost := known.get((*_result_setting(result), label))) else {}), **method}
            for label, method in result["methods"].items()
        }
        return {**result, "methods": methods}

    return {
        study: {**summary, "results": [timed(result) for result in summary["results"]]}
        for study, summary in summaries.items()
    }


def _result_setting(result: Mapping[str, Any]) -> tuple[str, str, int]:
    return result["model"], result["task"], result["documents"]


def _count_cases(summaries: Summaries) -> Iterator[tuple[str, Mapping[str, Any], str]]:
    for study, summary in summaries.items():
        for result in summary["results"]:
            for measure in result["measures"]:
                yield study, result, measure


def _overview_table(summaries: Summaries) -> str:
    """Make a table with a row for each study and measure."""
    head = ["study", "measure", "questions", "plain gap", f"{DEFAULT_METHOD} - plain mean, 95% interval"]
    head += ["methods better", "methods worse"]
    body = []
    for study, result, measure in _count_cases(summaries):
        figures = {label: figures_of(method, measure) for label, method in result["methods"].items()}
        minus = {label: (each.get("minus_plain") or {}).get("mean") for label, each in figures.items()}
        known = [mean for label, mean in minus.items() if label != REFERENCE and mean and None not in mean]
        body.append(
            [
                study,
                MEASURES[measure],
                str(max(method["questions"] for method in result["methods"].values())),
                _format_estimate(figures.get(REFERENCE, {}).get("gap")),
                format_interval(minus.get(DEFAULT_METHOD), "+.2f"),
                f"{sum(low > 0 for _, low, _ in known)} of {len(known)}",
                f"{sum(high < 0 for _, _, high in known)} of {len(known)}",
            ]
        )
    return markdown_table(head, body) + "\n"


def _describe_source(study: str, hours: float) -> str:
    links = f"See the [report with curves]({study}/report.html) and the [settings](real/{study}.yaml)."
    return f"{links} The study took {hours:.1f} hours on one machine."


def _method_table(result: Mapping[str, Any], measure: str) -> str:
    """Make a table with a row for each method. Leave out columns without any interval."""
    body = []
    accuracy = measure == ACCURACY
    costs = tables.prefill_costs(result)
    for label, method in tables.rank_methods(result, measure):
        if not (figures := figures_of(method, measure)):
            continue
        cells = {
            "method": label,
            "worst": _format_estimate(figures["worst"]),
            "best": _format_estimate(figures["best"]),
            "mean": _format_estimate(figures["mean"]),
            MINUS: format_interval((figures["minus_plain"] or {}).get("mean"), "+.2f")
            if label != REFERENCE
            else NO_VALUE,
            "flips" if accuracy else "agree": _format_estimate(
                figures["flip_rate" if accuracy else "agreement"], ".0%"
            ),
            "prefill": _format_estimate(costs.get(label), prefix="x"),
        }
        body.append(cells)
    shown = [name for name in body[0] if any(cells[name] != NO_VALUE for cells in body)]
    return markdown_table(shown, [[cells[name] for name in shown] for cells in body]) + "\n"


def _format_estimate(figure: tables.Figure, form: str = ".2f", prefix: str = "") -> str:
    """Format an estimate if it has an interval."""
    return NO_VALUE if not figure or None in figure else format_estimate(figure, form, prefix)


def format_interval(figure: tables.Figure, form: str = ".2f", prefix: str = "") -> str:
    """Format an estimate and its interval like ``format_figure``, or ``NO_VALUE`` without an interval."""
    return NO_VALUE if not figure or None in figure else format_figure(figure, form, prefix)
