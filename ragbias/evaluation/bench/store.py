"""Write the folder of a run. Only one process can write at a time."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import platform
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from ragbias.display import describe_changes
from ragbias.errors import RunError
from ragbias.evaluation.bench.configuration import BenchConfiguration, TaskSettings
from ragbias.evaluation.cost import machine, versions
from ragbias.evaluation.runs import (
    NOISE,
    ROWS,
    SETTINGS,
    SUMMARY,
    Key,
    Record,
    as_lines,
    packed,
    read_about,
    read_records,
)
from ragbias.files import file_name_in_errors, sync_folder, write_atomically
from ragbias.readers import reader_folder

LOCK = ".lock"


def plain_settings(settings: BenchConfiguration) -> dict[str, Any]:
    """Describe a run as plain data. Records depend only on the entry ``decides``. The rest is documentation."""
    return {
        "decides": {
            "models": settings.models,
            "methods": "".join(settings.methods.split()),
            "tasks": [_task(task) for task in settings.tasks],
            "seeds": settings.seeds,
            "limit": settings.limit,
            "measure": settings.measure,
            "batch_size": settings.batch_size,
            **({"invariant_once": True} if settings.invariant_once else {}),
            **reader_digests(settings.methods),
            "dtype": settings.dtype,
            "device": "cuda" if torch.cuda.is_available() else "cpu",
            **versions(),
        },
        "settings": settings.model_dump(mode="json"),
        "python": platform.python_version(),
        "machine": machine(),
    }


def reader_digests(methods: str) -> dict[str, Any]:
    """Return the hash of each reader adapter in ``methods``, because a reader may be trained again."""
    digests = {}
    for reader in re.findall(r"""\breader\s*=\s*['"]?([^,'")]+)""", methods):
        files = [path for path in sorted(reader_folder(reader).glob("*")) if path.is_file()]
        digests[reader] = hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()
    return {"readers": digests} if digests else {}


def _task(task: TaskSettings) -> dict[str, Any]:
    """Convert task settings to plain data. Data files become names and hashes, so that they can be moved."""
    plain = {"name": task.name, **task.options}
    if "data" in plain:
        files = task.make(0, None).data  # type: ignore[attr-defined]
        plain["data"] = [{"file": path.name, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()} for path in files]
    return plain


class RecordFile:
    """A file of records as JSON lines. Each record is written only once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch()
        self.by_key: dict[Key, Record] = {record.key: record for record in read_records(path)}
        with path.open("r+b") as file:  # drop an incomplete last line
            file.truncate(file.read().rfind(b"\n") + 1)

    def append(self, records: Sequence[Record]) -> int:
        """Write new records, flush them to disk, and return their number."""
        new = [record for record in records if record.key not in self.by_key]
        with file_name_in_errors(self.path), self.path.open("ab") as file:
            file.write(as_lines(new).encode())
            file.flush()
            os.fsync(file.fileno())
        self.by_key.update((record.key, record) for record in new)
        return len(new)

    def put_in_order(self, keys: Sequence[Key]) -> None:
        """Sort the file by the order of ``keys`` if necessary. Records with other keys come last."""
        if list(self.by_key)[: len(keys)] != keys:
            self.by_key = {**{key: self.by_key[key] for key in keys}, **self.by_key}
            write_atomically(self.path, as_lines(self.by_key.values()).encode())


@contextmanager
def locked_store(folder: Path, about: Mapping[str, Any]) -> Iterator[Store]:
    """Create the folder of a run if it is missing, and lock it for the block."""
    refuse_other_contents(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LOCK).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunError(f"{folder}: another process writes to it; wait for it, or give a new folder") from None
        yield Store(folder, about)


class Store:
    """The folder of a run.

    If a run has stopped before its first record, another run can use the folder. A run can resume with a higher limit,
    because its first questions are the same.

    Args:
        folder: folder of the run, see ``locked_store``.
        about: plain data that describes the run. ``about["decides"]`` must be the same in each process that writes to
            the folder, except for a higher ``"limit"``.
    """

    def __init__(self, folder: Path, about: Mapping[str, Any]) -> None:
        self.folder = folder
        self._check_settings(json.loads(json.dumps(about)))
        self.records, self.noise = RecordFile(folder / ROWS), RecordFile(folder / NOISE)
        sync_folder(folder)

    def _check_settings(self, about: dict[str, Any]) -> None:
        if (before := read_about(self.folder)) and holds_records(self.folder):
            changed = describe_changes(before["decides"], about["decides"])
            if not changed:
                return
            if not _only_a_higher_limit(before["decides"], about["decides"]):
                raise RunError(f"{self.folder} contains another run ({'; '.join(changed)}); give a new folder")
            (self.folder / SUMMARY).unlink(missing_ok=True)  # outdated
        self.write(SETTINGS, about)

    def write(self, name: str, data: Any) -> None:
        """Replace a JSON file atomically."""
        write_atomically(self.folder / name, (json.dumps(data, indent=2, ensure_ascii=False) + "\n").encode())


def holds_records(folder: Path) -> bool:
    """Whether the folder contains records."""
    return any((folder / name).is_file() and (folder / name).stat().st_size for name in (ROWS, NOISE))


def refuse_other_contents(folder: Path) -> None:
    """Raise ``RunError`` if ``folder`` is a file, or contains anything except a run that can resume."""
    if folder.exists() and not folder.is_dir():
        raise RunError(f"{folder} is a file; give a folder for the results")
    for path in (packed(folder, ROWS), packed(folder, NOISE)):
        if path.exists():
            raise RunError(
                f"{folder} contains {path.name}: compressed answers cannot be extended; give a new folder, or unpack "
                "it with gunzip first"
            )
    others = sorted(path.name for path in folder.glob("*") if not path.name.startswith((LOCK, SETTINGS)))
    if others and not (folder / SETTINGS).exists():
        raise RunError(f"{folder} contains {others[0]!r} but no run of a bench ({SETTINGS}); give a new folder")


def _only_a_higher_limit(before: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    old, new = before.get("limit"), now.get("limit")
    return isinstance(old, int) and isinstance(new, int) and old < new and {**before, "limit": new} == now
