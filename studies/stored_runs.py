"""Store bench runs in ``docs/results``: settings, summary, report and compressed answers."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ragbias.data.intervals import MIN_QUESTIONS
from ragbias.errors import DataError, RunError
from ragbias_eval.measures.aggregates import setting_of
from ragbias_eval.report.combine import summarise_runs
from ragbias_eval.report.html import as_html
from ragbias_eval.runs import COST, GZIP_SUFFIX, NOISE, ROWS, SETTINGS, SUMMARY, Record, Run, as_json_lines, read_run

REPORT = "report.html"
LARGEST = 3_000_000  # maximum number of bytes of a stored run, and of the answers of all stored runs


def is_finished(run: Path) -> bool:
    """Whether the bench has finished. A bench writes ``summary.json`` last."""
    return (run / SUMMARY).is_file()


def store(folder: Path, stored: Path) -> None:
    """Copy the run in ``folder`` to the folder ``stored``. The same run always gives the same bytes.

    If the run is not finished, only questions that every method has answered are stored, and notes say so.

    Raises:
        RunError: too few questions for intervals, too much data, or answers of a finished run are missing.
        RunError, DataError: as in ``read_run``.
    """
    run = _remove_paths(read_run(folder), stored.name)
    if not is_finished(folder):
        run = _complete_questions(run)
    summary = {**summarise_runs([run]), "hours": _answer_hours(run)}
    if is_finished(folder) and _count_answers(summary) != _count_answers(read_stored(folder)):
        raise RunError(
            f"{folder} does not hold all answers of its {SUMMARY}; remove that file and run the bench again, which "
            "adds the missing answers"
        )
    for result in summary["results"]:
        questions = max(method["questions"] for method in result["methods"].values())
        if questions < MIN_QUESTIONS:
            raise RunError(
                f"{folder}: {questions} questions are too few for intervals; at least {MIN_QUESTIONS} are needed"
            )
        if not is_finished(folder):
            result["notes"].append(f"The run is not finished; these are its first {questions} questions.")
    files = {
        SUMMARY: _as_json(summary),
        SETTINGS: _as_json(run.settings),
        COST: _as_json(run.cost) if run.cost else b"",
        REPORT: as_html(summary, [run]).encode(),
        ROWS + GZIP_SUFFIX: _compress(run.records),
        NOISE + GZIP_SUFFIX: _compress(run.noise) if run.noise else b"",
    }
    if (size := sum(map(len, files.values()))) > LARGEST:
        raise RunError(f"{folder} would take {size:,} bytes of at most {LARGEST:,}; split the study")
    stored.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        if content:
            (stored / name).write_bytes(content)
        else:
            (stored / name).unlink(missing_ok=True)


def redraw_report(stored: Path) -> None:
    """Write the report of a stored run again."""
    run = replace(read_run(stored), folder=Path(stored.name))
    (stored / REPORT).write_text(as_html(read_stored(stored), [run]), encoding="utf-8")


def read_stored(stored: Path) -> dict[str, Any]:
    """Read the summary of a stored run or of a finished run.

    Raises:
        DataError: the summary is damaged.
    """
    try:
        summary: dict[str, Any] = json.loads((stored / SUMMARY).read_text(encoding="utf-8"))
        _count_answers(summary)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{stored / SUMMARY} is damaged ({type(error).__name__}: {error}); restore it") from error
    return summary


def _count_answers(summary: Mapping[str, Any]) -> dict[tuple[Any, ...], int]:
    """Count the answers by setting and method."""
    return {
        (result["model"], result["task"], result["documents"], label): method["rows"]
        for result in summary["results"]
        for label, method in result["methods"].items()
    }


def answers_size(results: Path) -> int:
    """Return the size of all compressed answers, in bytes."""
    return sum(path.stat().st_size for path in results.glob(f"*/*{GZIP_SUFFIX}"))


def _remove_paths(run: Run, name: str) -> Run:
    """Rename a run, and replace absolute paths in its settings by file names."""

    def bare(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: bare(item) for key, item in value.items()}
        if isinstance(value, list):
            return [bare(item) for item in value]
        return Path(value).name if isinstance(value, str) and Path(value).is_absolute() else value

    return replace(run, folder=Path(name), settings=bare(run.settings))


def _complete_questions(run: Run) -> Run:
    """Drop questions with fewer records than other questions of the same model, task and number of documents."""

    def question(record: Record) -> tuple[object, ...]:
        return *setting_of(record), record.question

    counts = Counter(map(question, run.records))
    most: Counter[tuple[object, ...]] = Counter()
    for (*setting, _), count in counts.items():
        most[tuple(setting)] = max(most[tuple(setting)], count)

    def whole(record: Record) -> bool:
        return counts[question(record)] == most[setting_of(record)]

    return replace(run, records=list(filter(whole, run.records)), noise=list(filter(whole, run.noise)))


def _answer_hours(run: Run) -> float:
    """Return the hours that all answers took, without copied answers."""
    return round(sum(record.seconds for record in (*run.records, *run.noise) if not record.copied) / 3600, 2)


def _as_json(data: Any) -> bytes:
    return (json.dumps(data, indent=1, ensure_ascii=False) + "\n").encode()


def _compress(records: list[Record]) -> bytes:
    return gzip.compress(as_json_lines(records).encode(), mtime=0)
