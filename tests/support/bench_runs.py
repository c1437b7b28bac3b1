"""Run the bench without a progress bar, and read records for comparisons between runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.progress import Progress

from ragbias.evaluation.bench.configuration import BenchConfiguration
from ragbias.evaluation.bench.run import run
from ragbias.evaluation.runs import Record, read_records


def silently(chosen: BenchConfiguration) -> dict[str, Any]:
    """Run a bench without output and return its summary."""
    return run(chosen, Progress(disable=True))


def untimed(path: Path) -> list[Record]:
    """Read the records of a file without times, which differ between runs."""
    return [replace(record, seconds=0) for record in read_records(path)]
