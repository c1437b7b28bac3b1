"""The figures of all methods as comma-separated values, with each end of an interval in a separate column."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping
from typing import Any

from ragbias.display import no_formula
from ragbias.evaluation.names import REFERENCE
from ragbias.evaluation.report.tables import JUDGE_FIGURES, ranked

BY_POSITION = ("accuracy_at_", "logprob_at_")  # columns, which go last


def as_csv(summary: Mapping[str, Any]) -> str:
    """One line for each method of each result; positions counted from 0."""
    rows = [_csv_row(result, label, method) for result in summary["results"] for label, method in ranked(result)]
    names = list(dict.fromkeys(name for row in rows for name in row))
    positions = sorted((name for name in names if name.startswith(BY_POSITION)), key=_position)
    written = io.StringIO()
    writer = csv.DictWriter(written, [name for name in names if name not in positions] + positions, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return written.getvalue()


def _position(name: str) -> tuple[str, int]:
    measure, _, rest = name.partition("_at_")
    return measure, int(rest.partition("_")[0])


def _csv_row(result: Mapping[str, Any], label: str, method: Mapping[str, Any]) -> dict[str, Any]:
    row: dict[str, Any] = {"model": no_formula(result["model"]), "task": no_formula(result["task"])}
    row |= {
        "documents": result["documents"],
        "method": no_formula(label),
        "questions": method["questions"],
        "rows": method["rows"],
    }
    for name in ("mean", "worst", "best", "gap", "flip_rate", "noise_floor"):
        row |= _columns(name, method[name])
    row["gap_by_chance"] = method["gap_by_chance"]
    row |= _columns("kendall_tau", method["kendall_tau"])
    for name, figure in (method["difference"] or {}).items():
        row |= _columns(f"{name}_minus_{REFERENCE}", figure)
    for name in ("worst", "best"):
        row |= _columns(f"mean_minus_{REFERENCE}_{name}", (method["minus_plain"] or {}).get(name))
    for name in ("prompt_tokens", "completion_tokens", "seconds"):
        row[name] = method[name]
    for name, figure in method.get("cost", {}).items():
        row |= _columns(name, figure)
    if judge := method.get("judge"):
        for name in JUDGE_FIGURES:
            row |= _columns(name, judge[name])
        row["undecided"] = judge["undecided"]
        for section, figure in judge["sections"].items():
            row |= _columns(f"section_{section.lower().replace(' ', '_')}", figure)
    row |= _logprob_columns(method["logprob"]) if method["logprob"] else {}
    for position, figure in method["accuracy_by_position"].items():
        row |= _columns(f"accuracy_at_{position}", figure)
    return row


def _logprob_columns(figures: Mapping[str, Any]) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for name in ("mean", "worst", "best", "gap", "spread", "kl", "agreement"):
        row |= _columns(f"logprob_{name}" if name not in ("kl", "agreement") else name, figures[name])
    minus = figures["minus_plain"] or {}
    for name in ("mean", "worst", "best"):
        row |= _columns(f"logprob_mean_minus_{REFERENCE}_{name}", minus.get(name))
    for position, figure in figures["by_position"].items():
        row |= _columns(f"logprob_at_{position}", figure)
    return row


def _columns(name: str, figure: Iterable[float | None] | None) -> dict[str, float | None]:
    return dict(zip((name, f"{name}_low", f"{name}_high"), figure or (None, None, None), strict=True))
