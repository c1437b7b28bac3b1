"""Saved measurements of an unfinished calibration, which can resume."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from ragbias.display import changes
from ragbias.errors import MethodError
from ragbias.files import irregular, replacing, write_atomically

SAVE_SECONDS = 20.0  # interval between saves of the hidden states, which may need a gigabyte
RESTART = "start again with --restart"


class PartialResults:
    """Saved measurements: results by name in ``<out>.partial.json``, the sum of hidden states in ``<out>.partial.npz``.

    The results depend only on ``settings``. Files with other settings raise ``MethodError``.
    """

    def __init__(self, out: Path, settings: Mapping[str, Any], restart: bool = False) -> None:
        self._file, self._sums = _file_of(out), out.with_name(out.name + ".partial.npz")
        self._settings = json.loads(json.dumps(settings))
        self._saved = time.monotonic()
        if restart:
            self.remove()
        self.results: dict[str, Any] = self._read()

    def put(self, name: str, value: Any) -> None:
        """Save a result to disk."""
        self.results[name] = value
        self._write()

    def once(self, name: str, advance: Callable[[int], None], steps: int, measure: Callable[[], Any]) -> Any:
        """Return a saved result, or measure and save it. For a saved result, advance the progress by ``steps``."""
        if name in self.results:
            advance(steps)
        else:
            self.put(name, measure())
        return self.results[name]

    def sums(self) -> tuple[NDArray[np.float64], int]:
        """Return the sum of hidden states and its number of strings. Both are 0 at first."""
        if not self._sums.exists():
            return np.zeros(()), 0
        try:
            with np.load(self._sums) as data:
                return data["sum"], int(data["count"])
        except (OSError, ValueError, KeyError, EOFError, BadZipFile) as error:
            raise MethodError(f"{self._sums} cannot be read: {error}; {RESTART}") from error

    def put_sums(self, total: NDArray[np.float64], count: int, now: bool) -> None:
        """Save the sum if ``now`` is set, or if the last save was more than ``SAVE_SECONDS`` ago."""
        if now or time.monotonic() - self._saved > SAVE_SECONDS:
            self._write()  # the settings of the sum
            # without a copy in memory, because the sum may need a gigabyte
            with replacing(self._sums) as temporary, temporary.open("wb") as file:
                np.savez(file, sum=total, count=np.array(count))
            self._saved = time.monotonic()

    def remove(self) -> None:
        """Delete the files."""
        self._file.unlink(missing_ok=True)
        self._sums.unlink(missing_ok=True)

    def _write(self) -> None:
        write_atomically(self._file, json.dumps({"settings": self._settings, "results": self.results}).encode())

    def _read(self) -> dict[str, Any]:
        if not self._file.exists():
            self._sums.unlink(missing_ok=True)  # its settings are missing
            return {}
        if kind := irregular(self._file):
            raise MethodError(f"{self._file} is {kind}; remove it")
        try:
            data = json.loads(self._file.read_text())
            settings, results = dict(data["settings"]), dict(data["results"])
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise MethodError(f"{self._file} cannot be read: {error}; {RESTART}") from error
        if settings != self._settings:
            changed = "; ".join(changes(settings, self._settings))
            raise MethodError(
                f"{self._file} contains an unfinished calibration with other settings ({changed}); finish it "
                f"with those, or {RESTART}"
            )
        return results


def unfinished(out: Path) -> bool:
    """Whether an unfinished calibration for the profile ``out`` exists."""
    return _file_of(out).exists()


def _file_of(out: Path) -> Path:
    return out.with_name(out.name + ".partial.json")
