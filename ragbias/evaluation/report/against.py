"""Every method of a result against any chosen one; summaries compare with the plain model alone."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any

from rich.table import Table
from rich.text import Text

from ragbias.errors import RunError
from ragbias.evaluation.measures.aggregates import answered, setting_of
from ragbias.evaluation.measures.bootstrap import Scores
from ragbias.evaluation.measures.estimates import Estimate, differences
from ragbias.evaluation.measures.per_question import grouped
from ragbias.evaluation.names import ACCURACY
from ragbias.evaluation.report import tables
from ragbias.evaluation.report.plain_table import MethodName, plain_table
from ragbias.evaluation.report.read_runs import Run

FIGURES = {"mean": ("mean", "mean"), "worst": ("worst", "worst")}  # over positions


def minus_method(result: Mapping[str, Any], runs: Sequence[Run], label: str) -> dict[str, dict[str, Any]]:
    """By measure and method ``{"mean": ..., "worst": ...}`` minus the same of ``label``, paired; the best mean first.

    A measure that ``label`` was not run with has no methods.

    Raises:
        RunError: the result has no such method.
    """
    setting = result["model"], result["task"], result["documents"]
    records = [record for run in runs for record in run.records if setting_of(record) == setting]
    if label not in result["methods"]:
        known = ", ".join(map(repr, result["methods"]))
        raise RunError(f"{label!r} was not run for {tables.title(result)}; expected one of {known}")
    found = {}
    for measure in result["measures"]:
        own = answered(records) if measure == ACCURACY else records
        field, most = ("score", 1.0) if measure == ACCURACY else (measure, math.inf)
        scores = {name: Scores.of(part, field) for name, part in grouped(own, attrgetter("method")).items()}
        minus = {
            name: figures
            for name, each in scores.items()
            if name != label and label in scores and (figures := differences(each, scores[label], FIGURES, most))
        }
        found[measure] = dict(sorted(minus.items(), key=lambda item: -_value(item[1]["mean"])))
    return found


def as_tables_against(result: Mapping[str, Any], minus: Mapping[str, Any], label: str) -> Iterator[Table]:
    """For a terminal, one for each measure."""
    for measure, methods in minus.items():
        headings = [f"{name} - {label}'s" for name in FIGURES]
        table = plain_table(tables.title(result, measure), "method", *headings)
        for name, figures in methods.items():
            cells = (Text(tables.with_interval(figures[each], "+.2f")) for each in FIGURES)
            table.add_row(MethodName(name), *cells)
        yield table


def _value(figure: Estimate) -> float:
    return -math.inf if figure[0] is None else figure[0]
