"""Results of finished runs: settings, summary, report and compressed answers."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ragbias.errors import DataError, RunError
from ragbias.evaluation.data.records import PACKED, Record, as_lines
from ragbias.evaluation.data.run_folder import COST, NOISE, ROWS, SETTINGS, SUMMARY
from ragbias.evaluation.measures.aggregates import setting_of
from ragbias.evaluation.measures.bootstrap import FEWEST
from ragbias.evaluation.report.html import as_html
from ragbias.evaluation.report.read_runs import Run, read_run, summary_of

REPORT = "report.html"
LARGEST = 3_000_000  # bytes of what is kept of a run, and of the answers of all runs together


def is_finished(run: Path) -> bool:
    """Whether the bench has come to its end; it writes the summary last."""
    return (run / SUMMARY).is_file()


def keep(folder: Path, kept: Path) -> None:
    """Write ``kept`` from the folder of a run; the same run gives the same bytes.

    Of a run that is not finished, the questions are kept that every method has answered, and notes say so.

    Raises:
        RunError: too few questions for intervals, too large to be kept, or answers of a finished run are lost.
        RunError, DataError: as ``read_run``.
    """
    run = _without_paths(read_run(folder), kept.name)
    if not is_finished(folder):
        run = _whole_questions(run)
    summary = {**summary_of([run]), "hours": _hours(run)}
    if is_finished(folder) and _rows(summary) != _rows(read_kept(folder)):
        raise RunError(
            f"{folder} does not hold the answers that its {SUMMARY} was made of; remove that file and run the bench "
            "again, it goes on with what is missing"
        )
    for result in summary["results"]:
        questions = max(method["questions"] for method in result["methods"].values())
        if questions < FEWEST:
            raise RunError(f"{folder}: {questions} questions are too few for intervals; at least {FEWEST} are needed")
        if not is_finished(folder):
            result["notes"].append(f"The run is not finished; these are its first {questions} questions.")
    files = {
        SUMMARY: _json(summary),
        SETTINGS: _json(run.settings),
        COST: _json(run.cost) if run.cost else b"",
        REPORT: as_html(summary, [run]).encode(),
        ROWS + PACKED: _packed(run.records),
        NOISE + PACKED: _packed(run.noise) if run.noise else b"",
    }
    if (size := sum(map(len, files.values()))) > LARGEST:
        raise RunError(f"{folder} would take {size:,} bytes of at most {LARGEST:,}; split the study")
    kept.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        if content:
            (kept / name).write_bytes(content)
        else:
            (kept / name).unlink(missing_ok=True)


def redraw(kept: Path) -> None:
    """Write the report of a kept run again."""
    (kept / REPORT).write_text(
        as_html(read_kept(kept), [replace(read_run(kept), folder=Path(kept.name))]), encoding="utf-8"
    )


def read_kept(kept: Path) -> dict[str, Any]:
    """The summary of a folder that ``keep`` has written, or of a finished run.

    Raises:
        DataError: it is damaged.
    """
    try:
        found: dict[str, Any] = json.loads((kept / SUMMARY).read_text(encoding="utf-8"))
        _rows(found)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{kept / SUMMARY} is damaged ({type(error).__name__}: {error}); put the file back") from error
    return found


def _rows(summary: Mapping[str, Any]) -> dict[tuple[Any, ...], int]:
    """The numbers of answers by setting and method."""
    return {
        (result["model"], result["task"], result["documents"], label): method["rows"]
        for result in summary["results"]
        for label, method in result["methods"].items()
    }


def answers_size(results: Path) -> int:
    """Bytes of the compressed answers of all results."""
    return sum(path.stat().st_size for path in results.glob(f"*/*{PACKED}"))


def _without_paths(run: Run, name: str) -> Run:
    """The run under this name, without the folders of the machine that it ran on."""

    def bare(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: bare(each) for key, each in value.items()}
        if isinstance(value, list):
            return [bare(each) for each in value]
        return Path(value).name if isinstance(value, str) and Path(value).is_absolute() else value

    return replace(run, folder=Path(name), settings=bare(run.settings))


def _whole_questions(run: Run) -> Run:
    """The run with those questions alone that have as many records as any other of their setting."""

    def question(record: Record) -> tuple[object, ...]:
        return *setting_of(record), record.question

    counts = Counter(map(question, run.records))
    most: Counter[tuple[object, ...]] = Counter()
    for (*setting, _), count in counts.items():
        most[tuple(setting)] = max(most[tuple(setting)], count)

    def whole(record: Record) -> bool:
        return counts[question(record)] == most[setting_of(record)]

    return replace(run, records=[each for each in run.records if whole(each)], noise=list(filter(whole, run.noise)))


def _hours(run: Run) -> float:
    """Of answering, without what was copied."""
    return round(sum(each.seconds for each in (*run.records, *run.noise) if not each.copied) / 3600, 2)


def _json(data: Any) -> bytes:
    return (json.dumps(data, indent=1, ensure_ascii=False) + "\n").encode()


def _packed(records: list[Record]) -> bytes:
    return gzip.compress(as_lines(records).encode(), mtime=0)
