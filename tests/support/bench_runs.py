"""Runs of the bench without a progress bar, and what is compared of two of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.progress import Progress

from ragbias.evaluation.bench.configuration import BenchConfiguration
from ragbias.evaluation.bench.run import run
from ragbias.evaluation.data.records import Record, read_records


def silently(chosen: BenchConfiguration) -> dict[str, Any]:
    """The summary of a run that shows nothing."""
    return run(chosen, Progress(disable=True))


def untimed(path: Path) -> list[Record]:
    """The records of a file without their times, which differ from run to run."""
    return [replace(record, seconds=0) for record in read_records(path)]
