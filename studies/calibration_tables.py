"""Make tables of calibrations from their records."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ragbias.errors import DataError
from ragbias.files import write_atomically
from studies.markdown import markdown_table

NOTHING_YET = "No calibration is stored yet.\n"
NORMAL = 1.96  # half the width of a 95% interval in standard errors
CHECKED = ("checked on", "change of the loss, 95% interval", "beats plain")
YES_OR_NO = {True: "yes", False: "no", None: "-"}  # None: the loss was not used to choose
Record = Mapping[str, Any]
Records = Mapping[str, Record]


def store_calibrations(made: Path, stored: Path) -> list[str]:
    """Copy the finished calibrations of a folder and return their names.

    Raises:
        DataError: a calibration is damaged. Then nothing is copied.
    """
    finished = sorted(path for path in made.glob("*.json") if not path.name.endswith(".partial.json"))
    for record in finished:
        _read_record(record)
    stored.mkdir(parents=True, exist_ok=True)
    for record in finished:
        write_atomically(stored / record.name, record.read_bytes())
    return [path.stem for path in finished]


def read_calibrations(stored: Path) -> Records:
    """Read the stored records by name.

    Raises:
        DataError: a record is damaged.
    """
    return {path.stem: _read_record(path) for path in sorted(stored.glob("*.json"))}


def _read_record(path: Path) -> Record:
    try:
        record: Record = json.loads(path.read_text(encoding="utf-8"))
        calibration_tables({path.stem: record})
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise DataError(
            f"{path} is not a record of a calibration ({type(error).__name__}: {error}); restore it, or remove it and "
            "calibrate again"
        ) from error
    return record


def calibration_tables(records: Records) -> str:
    """Make Markdown tables of the channels and of the parameters of other methods."""
    channels = {name: record for name, record in records.items() if "channel" in record}
    others = {name: record for name, record in records.items() if "channel" not in record}
    parts = [
        table(found.values()) for table, found in ((_channel_table, channels), (_parameter_table, others)) if found
    ]
    links = ", ".join(f"[{name}](calibration/{name}.json)" for name in records)
    return "\n".join([*parts, f"All measurements: {links}.\n"]) if records else NOTHING_YET


def _channel_table(records: Iterable[Record]) -> str:
    head = ["model, variant", "channel, factor", "layers", "correlation", *CHECKED]
    body = []
    for record in records:
        correlation = record["channel_search"]["position_correlation"]
        followed = max(map(abs, correlation[str(record["channel"])].values()))
        body.append(
            [
                f"{record['model']}, {record['settings']['variant']}",
                f"{record['channel']}, {record['factor']:g}",
                " to ".join(map(str, record["layers"])),
                f"{followed:.2f}",
                _describe_check(record),
                _format_change(record["check"]),
                YES_OR_NO[record["beats_plain"]],
            ]
        )
    return markdown_table(head, body) + "\n"


def _parameter_table(records: Iterable[Record]) -> str:
    head = ["model", "found", "minimised", "settings tried", *CHECKED]
    body = [
        [
            record["model"],
            record["method"],
            record["by"],
            str(len(record["tried"])),
            _describe_check(record),
            _format_change(record["check"]["best"]),
            YES_OR_NO[record["beats_plain"]],
        ]
        for record in records
    ]
    return markdown_table(head, body) + "\n"


def _describe_check(record: Record) -> str:
    return f"{record['settings']['check_samples'] // record['settings']['depths']} questions"


def _format_change(against_plain: Mapping[str, float]) -> str:
    """Format the difference in loss, with a 95% interval."""
    difference, margin = against_plain["difference"], NORMAL * against_plain["standard_error"]
    return f"{difference:+.2f} ({difference - margin:+.2f} to {difference + margin:+.2f})"
