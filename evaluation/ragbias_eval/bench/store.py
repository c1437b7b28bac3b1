"""Write the folder of a run. A lock admits one process at a time."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from ragbias.display import describe_changes
from ragbias.errors import RunError
from ragbias.files import file_name_in_errors, sync_folder, write_atomically
from ragbias.readers import reader_folder
from ragbias_eval.bench.configuration import BenchConfiguration, TaskSettings
from ragbias_eval.cost import describe_machine, versions
from ragbias_eval.runs import (
    GZIP_SUFFIX,
    NOISE,
    ROWS,
    SETTINGS,
    SUMMARY,
    Key,
    Record,
    as_json_lines,
    read_records,
    read_run_description,
)

LOCK = ".lock"


def describe_run(settings: BenchConfiguration) -> dict[str, Any]:
    """Describe a run as JSON data. Only the settings in the entry ``decides`` affect the answers."""
    return {
        "decides": {
            "models": settings.models,
            "methods": "".join(settings.methods.split()),
            "tasks": [_describe_task(task) for task in settings.tasks],
            "seeds": settings.seeds,
            "limit": settings.limit,
            "measure": settings.measure,
            "batch_size": settings.batch_size,
            **({"invariant_once": True} if settings.invariant_once else {}),
            **hash_readers(settings.methods),
            "dtype": settings.dtype,
            "device": "cuda" if torch.cuda.is_available() else "cpu",
            **versions(),
        },
        "settings": settings.model_dump(mode="json"),
        "machine": describe_machine(),
    }


def hash_readers(methods: str) -> dict[str, Any]:
    """Return the hash of each reader adapter in ``methods``. The hash changes if a reader is trained again."""
    digests = {}
    for reader in re.findall(r"""\breader\s*=\s*['"]?([^,'")]+)""", methods):
        files = [path for path in sorted(reader_folder(reader).glob("*")) if path.is_file()]
        digests[reader] = hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()
    return {"readers": digests} if digests else {}


def _describe_task(task: TaskSettings) -> dict[str, Any]:
    """Describe a task as JSON data, with the names and hashes of data files instead of their paths."""
    plain = {"name": task.name, **task.options}
    if "data" in plain:
        files = task.make(0, None).data  # type: ignore[attr-defined]
        plain["data"] = [{"file": path.name, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()} for path in files]
    return plain


class RecordFile:
    """A file of records as JSON lines, without repetitions."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch()
        self.by_key: dict[Key, Record] = {record.key: record for record in read_records(path)}
        with path.open("r+b") as file:  # drop an incomplete last line
            file.truncate(file.read().rfind(b"\n") + 1)

    def append(self, records: Sequence[Record]) -> int:
        """Write the records that the file lacks, flush them to disk, and return their number."""
        new = [record for record in records if record.key not in self.by_key]
        with file_name_in_errors(self.path), self.path.open("ab") as file:
            file.write(as_json_lines(new).encode())
            file.flush()
            os.fsync(file.fileno())
        self.by_key.update((record.key, record) for record in new)
        return len(new)

    def sort(self, keys: Sequence[Key]) -> None:
        """Sort the records in the order of ``keys``. Records with other keys come last."""
        if list(self.by_key)[: len(keys)] != keys:
            self.by_key = {**{key: self.by_key[key] for key in keys}, **self.by_key}
            write_atomically(self.path, as_json_lines(self.by_key.values()).encode())


@contextmanager
def locked_store(folder: Path, about: Mapping[str, Any]) -> Iterator[Store]:
    """Create a run's folder if it is missing. Lock it until the ``with`` block ends."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LOCK).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunError(f"{folder}: another process writes to it; wait for it, or give a new folder") from None
        yield Store(folder, about)


class Store:
    """The folder of a run. ``about`` is the description of the run, see ``describe_run``.

    A run resumes only with the same settings, or with a higher limit, which leaves the first questions unchanged. Until
    the first record is written, a run with other settings can take over the folder.
    """

    def __init__(self, folder: Path, about: Mapping[str, Any]) -> None:
        self.folder = folder
        self._check_settings(json.loads(json.dumps(about)))
        self.records, self.noise = RecordFile(folder / ROWS), RecordFile(folder / NOISE)
        sync_folder(folder)

    def _check_settings(self, about: dict[str, Any]) -> None:
        if (before := read_run_description(self.folder)) and holds_records(self.folder):
            changed = describe_changes(before["decides"], about["decides"])
            if not changed:
                return
            if not _differ_only_in_higher_limit(before["decides"], about["decides"]):
                raise RunError(f"{self.folder} contains another run ({'; '.join(changed)}); give a new folder")
            (self.folder / SUMMARY).unlink(missing_ok=True)  # outdated
        self.write(SETTINGS, about)

    def write(self, name: str, data: Any) -> None:
        write_atomically(self.folder / name, (json.dumps(data, indent=2, ensure_ascii=False) + "\n").encode())


def holds_records(folder: Path) -> bool:
    return any((folder / name).is_file() and (folder / name).stat().st_size for name in (ROWS, NOISE))


def check_folder_contents(folder: Path) -> None:
    """Raise ``RunError`` if the folder contains something other than a run that can resume."""
    if compressed := [path.name for path in folder.glob(f"*{GZIP_SUFFIX}")]:
        raise RunError(
            f"{folder} contains {compressed[0]}: compressed answers cannot be extended; give a new folder, or unpack "
            "it with gunzip first"
        )
    others = sorted(path.name for path in folder.glob("*") if not path.name.startswith((LOCK, SETTINGS)))
    if others and not (folder / SETTINGS).exists():
        raise RunError(f"{folder} contains {others[0]!r} but no run of a bench ({SETTINGS}); give a new folder")


def _differ_only_in_higher_limit(before: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    old, new = before.get("limit"), now.get("limit")
    return isinstance(old, int) and isinstance(new, int) and old < new and {**before, "limit": new} == now
