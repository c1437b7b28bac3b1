"""The tables of what was found on which model, written from the summaries; they show nothing without an interval."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ragbias.evaluation.advice.wording import MEASURES
from ragbias.evaluation.measures.estimates import figures_of
from ragbias.evaluation.names import REFERENCE
from ragbias.evaluation.report import tables
from ragbias.methods import DEFAULT_METHOD

NOTHING_YET = "No study is kept here yet.\n"
Summaries = Mapping[str, Mapping[str, Any]]


def tables_of(summaries: Summaries, purposes: Mapping[str, str]) -> str:
    """An overview of all studies, and the tables of each with its purpose, in Markdown."""
    if not summaries:
        return NOTHING_YET
    parts = [_overview(summaries)]
    for study, result, measure in _cases(summaries):
        notes = "".join(f"- {tables.in_markdown(note)}\n" for note in result["notes"])
        parts += [
            f"### {study}: {tables.in_markdown(tables.title(result, measure))}\n",
            f"{purposes[study]} {_source(study, summaries[study]['hours'])}\n",
            _table(result, measure),
            *([notes] if notes else []),
        ]
    return "\n".join(parts)


def with_costs(summaries: Summaries) -> Summaries:
    """The summaries with the costs that another study measured for the same model, task and number of documents."""
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
    """One row for each study, model, task, number of documents and measure."""
    head = ["study", "model", "task", "documents", "measure", "questions", "plain model: best - worst position"]
    head += [f"{DEFAULT_METHOD} - plain {name}" for name in ("mean", "worst", "best")]
    head += ["better than the plain mean", "worse"]
    body = []
    for study, result, measure in _cases(summaries):
        figures = {label: figures_of(method, measure) for label, method in result["methods"].items()}
        plain, default = figures.get(REFERENCE, {}), (figures.get(DEFAULT_METHOD, {}).get("minus_plain") or {})
        means = {
            label: mean
            for label, each in figures.items()
            if label != REFERENCE and (mean := (each.get("minus_plain") or {}).get("mean")) and None not in mean
        }
        body.append(
            [
                study,
                result["model"],
                result["task"],
                str(result["documents"]),
                MEASURES[measure],
                str(max(method["questions"] for method in result["methods"].values())),
                tables.only_with_interval(plain.get("gap")),
                *(tables.only_with_interval(default.get(name), "+.2f") for name in ("mean", "worst", "best")),
                ", ".join(label for label, (_, low, _) in means.items() if low > 0) or tables.NOTHING,
                ", ".join(label for label, (_, _, high) in means.items() if high < 0) or tables.NOTHING,
            ]
        )
    return tables.markdown_table(head, body) + "\n"


def _source(study: str, hours: float) -> str:
    return (
        f"[Report with curves]({study}/report.html), [settings](real/{study}.yaml). "
        f"Answering took {hours:.1f} hours on one machine."
    )


def _table(result: Mapping[str, Any], measure: str) -> str:
    """The report's table, without the columns in which nothing has an interval."""
    columns = zip(
        tables.headings(result, measure),
        *tables.lines(result, measure, tables.only_with_interval),
        strict=True,
    )
    shown = [column for column in columns if set(column[1:]) != {tables.NOTHING}]
    head, *body = map(list, zip(*shown, strict=True))
    return tables.markdown_table(head, body) + "\n"
