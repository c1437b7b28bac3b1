"""Writing a run's folder: one process at a time, one set of settings, every finished record kept."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from ragbias.errors import RunError
from ragbias.evaluation.data.records import Key, Record, as_lines, read_records
from ragbias.evaluation.data.run_folder import FILES, NOISE, ROWS, SETTINGS, SUMMARY, packed, read_about, read_counts
from ragbias.files import naming, sync_folder, write_atomically

LOCK = ".lock"


class RecordFile:
    """Records in a file of JSON lines; one that it holds is not written again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch()
        read = read_records(path)
        _cut_torn_line(path)
        self.by_key: dict[Key, Record] = {record.key: record for record in read}

    def append(self, records: Sequence[Record]) -> int:
        """Keep the records that are new; they are on disk when this returns. Returns their number."""
        new = [record for record in records if record.key not in self.by_key]
        with naming(self.path), self.path.open("ab") as file:
            file.write(as_lines(new).encode())
            file.flush()
            os.fsync(file.fileno())
        self.by_key.update((record.key, record) for record in new)
        return len(new)

    def put_in_order(self, keys: Sequence[Key]) -> None:
        """Rewrite the file in the order of ``keys``, if records came in another; those of no such key go last."""
        if list(self.by_key)[: len(keys)] != keys:
            self.by_key = {**{key: self.by_key[key] for key in keys}, **self.by_key}
            write_atomically(self.path, as_lines(self.by_key.values()).encode())


class Store:
    """The folder of a run, locked while this is open.

    A run that is refused, or stopped, before it has given a record leaves nothing behind. Where one was killed so
    early, its folder is taken for another run. A run may go on under a higher limit, for the questions it has asked
    are the first ones of that too; not one of lm-eval's tasks, which are resumed in whole parts only.

    Args:
        folder: is made if it is not there.
        about: plain data that describes the run; ``about["decides"]`` must be the same for each process that writes
            here, but for a higher ``"limit"``.

    Raises:
        RunError: the folder holds something else, or another process writes there.
        DataError: a file of the run is damaged.
    """

    def __init__(self, folder: Path, about: Mapping[str, Any]) -> None:
        self.folder = folder
        refuse_other_contents(folder)
        self._made = [each for each in (folder, *folder.parents) if not each.exists()]
        folder.mkdir(parents=True, exist_ok=True)
        self._lock = (folder / LOCK).open("w")
        try:
            self._take_lock()
            self._check_settings(json.loads(json.dumps(about)))
            self.records, self.noise = RecordFile(folder / ROWS), RecordFile(folder / NOISE)
            sync_folder(folder)
        except BaseException:
            self._lock.close()
            raise

    def _take_lock(self) -> None:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunError(f"{self.folder}: another process writes there; wait for it, or give a new folder") from None

    def _check_settings(self, about: dict[str, Any]) -> None:
        if (before := read_about(self.folder)) and holds_records(self.folder):
            changed = changes(before["decides"], about["decides"])
            if not changed:
                return
            if read_counts(self.folder) or not _asks_more(before["decides"], about["decides"]):
                raise RunError(f"{self.folder} holds another run ({'; '.join(changed)}); give a new folder")
            (self.folder / SUMMARY).unlink(missing_ok=True)  # of fewer questions
        self.write(SETTINGS, about)

    def write(self, name: str, data: Any) -> None:
        """Replace the JSON file of this name in one step."""
        write_atomically(self.folder / name, (json.dumps(data, indent=2, ensure_ascii=False) + "\n").encode())

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None and not holds_records(self.folder):
            for name in (*FILES, LOCK):
                (self.folder / name).unlink(missing_ok=True)
            with suppress(OSError):  # the user's own file lies there, or another process has come
                for made in self._made:
                    made.rmdir()
        self._lock.close()


def holds_records(folder: Path) -> bool:
    """Whether a run has given anything yet."""
    return any((folder / name).is_file() and (folder / name).stat().st_size for name in (ROWS, NOISE))


def refuse_other_contents(folder: Path) -> None:
    """Raise ``RunError`` where a folder for results is a file, or holds something else than a run to go on with."""
    if folder.exists() and not folder.is_dir():
        raise RunError(f"{folder} is a file; give a folder for the results")
    for path in (packed(folder, ROWS), packed(folder, NOISE)):
        if path.exists():
            raise RunError(
                f"{folder} holds {path.name}, answers that are packed and not added to; give a new folder, or unpack "
                "it with gunzip first"
            )
    if folder.is_dir() and not (folder / SETTINGS).exists():
        others = sorted(path.name for path in folder.iterdir() if not path.name.startswith((LOCK, SETTINGS)))
        if others:
            if others[0] in FILES:
                raise RunError(
                    f"{folder} holds {others[0]!r} and no {SETTINGS} of a bench; put that back, or give a new folder"
                )
            raise RunError(f"{folder} holds {others[0]!r} and no run of a bench; give a new folder")


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What is not the same, in words."""
    return [
        f"{name} was {before.get(name)!r} and is {now.get(name)!r} now"
        for name in sorted({*before, *now})
        if before.get(name) != now.get(name)
    ]


def _asks_more(before: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Whether nothing but the limit of questions differs, and it is higher now."""
    asked, wanted = before.get("limit"), now.get("limit")
    if not isinstance(asked, int) or not isinstance(wanted, int):
        return False
    return asked < wanted and {**before, "limit": wanted} == now


def _cut_torn_line(path: Path) -> None:
    """Drop what follows the last end of a line: a write that was cut off."""
    with path.open("r+b") as file:
        file.truncate(file.read().rfind(b"\n") + 1)
