"""Tables of the studies, made from their summaries. Every figure has an interval."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ragbias.evaluation import ACCURACY, REFERENCE
from ragbias.evaluation.measures.aggregates import figures_of
from ragbias.evaluation.report import tables
from ragbias.methods import DEFAULT_METHOD
from studies.advice import MEASURES

NOTHING_YET = "No study is stored yet.\n"
MINUS = f"mean - {REFERENCE}, 95% interval"
Summaries = Mapping[str, Mapping[str, Any]]


def tables_of(summaries: Summaries, purposes: Mapping[str, str]) -> str:
    """Make an overview of all studies, and the tables of each study with its purpose, in Markdown."""
    if not summaries:
        return NOTHING_YET
    parts = [_overview(summaries)]
    for study, result, measure in _cases(summaries):
        notes = "".join(f"- {tables.escape_markdown(note)}\n" for note in result["notes"])
        parts += [
            f"### {study}: {tables.escape_markdown(tables.format_title(result, measure))}\n",
            f"{purposes[study]} {_source(study, summaries[study]['hours'])}\n",
            _table(result, measure),
            *([notes] if notes else []),
        ]
    return "\n".join(parts)


def with_costs(summaries: Summaries) -> Summaries:
    """Add costs that another study measured for the same model, task and number of documents."""
    known = {
        (*_setting(result), label): method["cost"]
        for summary in summaries.values()
        for result in summary["results"]
        for label, method in result["methods"].items()
        if "cost" in method
    }

    def timed(result: Mapping[str, Any]) -> dict[str, Any]:
        methods = {
            label: {**({"cost": cost} if (cost := known.get((*_setting(result), label))) else {}), **method}
            for label, method in result["methods"].items()
        }
        return {**result, "methods": methods}

    return {
        study: {**summary, "results": [timed(result) for result in summary["results"]]}
        for study, summary in summaries.items()
    }


def _setting(result: Mapping[str, Any]) -> tuple[str, str, int]:
    return result["model"], result["task"], result["documents"]


def _cases(summaries: Summaries) -> Iterator[tuple[str, Mapping[str, Any], str]]:
    for study, summary in summaries.items():
        for result in summary["results"]:
            for measure in result["measures"]:
                yield study, result, measure


def _overview(summaries: Summaries) -> str:
    """Make a table with a row for each study and measure."""
    head = ["study", "measure", "questions", "plain gap", f"{DEFAULT_METHOD} - plain mean, 95% interval"]
    head += ["methods better", "methods worse"]
    body = []
    for study, result, measure in _cases(summaries):
        figures = {label: figures_of(method, measure) for label, method in result["methods"].items()}
        minus = {label: (each.get("minus_plain") or {}).get("mean") for label, each in figures.items()}
        known = [mean for label, mean in minus.items() if label != REFERENCE and mean and None not in mean]
        body.append(
            [
                study,
                MEASURES[measure],
                str(max(method["questions"] for method in result["methods"].values())),
                _estimate(figures.get(REFERENCE, {}).get("gap")),
                only_with_interval(minus.get(DEFAULT_METHOD), "+.2f"),
                f"{sum(low > 0 for _, low, _ in known)} of {len(known)}",
                f"{sum(high < 0 for _, _, high in known)} of {len(known)}",
            ]
        )
    return tables.markdown_table(head, body) + "\n"


def _source(study: str, hours: float) -> str:
    links = f"See the [report with curves]({study}/report.html) and the [settings](real/{study}.yaml)."
    return f"{links} The study took {hours:.1f} hours on one machine."


def _table(result: Mapping[str, Any], measure: str) -> str:
    """Make a table with a row for each method. Leave out columns without any interval."""
    body = []
    accuracy = measure == ACCURACY
    costs = tables.prefill_costs(result)
    for label, method in tables.rank_methods(result, measure):
        if not (figures := figures_of(method, measure)):
            continue
        cells = {
            "method": label,
            "worst": _estimate(figures["worst"]),
            "best": _estimate(figures["best"]),
            "mean": _estimate(figures["mean"]),
            MINUS: only_with_interval((figures["minus_plain"] or {}).get("mean"), "+.2f")
            if label != REFERENCE
            else tables.NO_VALUE,
            "flips" if accuracy else "agree": _estimate(figures["flip_rate" if accuracy else "agreement"], ".0%"),
            "prefill": _estimate(costs.get(label), prefix="x"),
        }
        body.append(cells)
    shown = [name for name in body[0] if any(cells[name] != tables.NO_VALUE for cells in body)]
    return tables.markdown_table(shown, [[cells[name] for name in shown] for cells in body]) + "\n"


def _estimate(figure: tables.Figure, form: str = ".2f", prefix: str = "") -> str:
    """Format the estimate of a figure if the figure has an interval."""
    return tables.NO_VALUE if not figure or None in figure else tables.format_estimate(figure, form, prefix)


def only_with_interval(figure: tables.Figure, form: str = ".2f", prefix: str = "") -> str:
    """Format a figure like ``with_interval``, or as ``NOTHING`` if it has no interval."""
    return tables.NO_VALUE if not figure or None in figure else tables.format_figure(figure, form, prefix)
