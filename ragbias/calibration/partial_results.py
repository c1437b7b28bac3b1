"""What a calibration has measured so far, on disk, so that an interrupted one goes on where it stopped."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from ragbias.errors import MethodError
from ragbias.files import irregular, replacing, write_atomically

SAVE_SECONDS = 20.0  # between two savings of the sum of hidden states, which is large for a large model


class PartialResults:
    """Results by name in ``<out>.partial.json``; the running sum of hidden states in ``<out>.partial.npz``.

    Nothing is written before there is something to keep.

    Args:
        out: the profile that will be written.
        settings: what the results depend on; partial results of other settings are not mixed with these.
        restart: throw partial results away.

    Raises:
        MethodError: partial results of other settings are there.
    """

    def __init__(self, out: Path, settings: Mapping[str, Any], restart: bool = False) -> None:
        self._file = _results_of(out)
        self._sums = out.with_name(out.name + ".partial.npz")
        self._settings = json.loads(json.dumps(settings))
        self._saved = time.monotonic()
        if restart:
            self.remove()
        self.results: dict[str, Any] = self._read()

    def put(self, name: str, value: Any) -> None:
        """Keep a result; it is on disk when this returns."""
        self.results[name] = value
        self._write()

    def sums(self) -> tuple[NDArray[np.float64], int]:
        """The sum of hidden states so far, 0 at first, and how many strings are in it."""
        if not self._sums.exists():
            return np.zeros(()), 0
        try:
            with np.load(self._sums) as data:
                return data["sum"], int(data["count"])
        except (OSError, ValueError, KeyError, EOFError, BadZipFile) as error:
            raise MethodError(f"{self._sums} cannot be read: {error}; start anew with --restart") from error

    def put_sums(self, total: NDArray[np.float64], count: int, now: bool) -> None:
        """Keep the sum; at once if ``now``, or else only if the last saving is some time ago."""
        if now or time.monotonic() - self._saved > SAVE_SECONDS:
            self._write()  # the settings first: without them a sum means nothing
            # not by way of memory: a large model's sum takes a gigabyte
            with replacing(self._sums) as temporary, temporary.open("wb") as file:
                np.savez(file, sum=total, count=np.array(count))
            self._saved = time.monotonic()

    def refuse_sums(self, expected: tuple[int, ...], found: tuple[int, ...]) -> MethodError:
        """The error for a sum of another shape than the model's hidden states."""
        return MethodError(
            f"{self._sums} holds hidden states of shape {list(found)}, this model's have {list(expected)}; start anew "
            "with --restart"
        )

    def remove(self) -> None:
        """The calibration is done, or shall start anew."""
        self._file.unlink(missing_ok=True)
        self._sums.unlink(missing_ok=True)

    def _read(self) -> dict[str, Any]:
        if not self._file.exists():
            self._sums.unlink(missing_ok=True)  # a rest without its settings
            return {}
        if kind := irregular(self._file):
            raise MethodError(f"{self._file} is {kind}; remove it")
        try:
            data = json.loads(self._file.read_text())
            settings, results = dict(data["settings"]), dict(data["results"])
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise MethodError(f"{self._file} cannot be read: {error}; start anew with --restart") from error
        if damaged := [name for name, value in results.items() if not (type(value) in (list, dict) and _finite(value))]:
            raise MethodError(f"{self._file}: {damaged[0]!r} holds no measurements; start anew with --restart")
        if settings != self._settings:
            changed = [
                f"{name} was {settings.get(name)!r} and is {self._settings.get(name)!r} now"
                for name in sorted({*settings, *self._settings})
                if settings.get(name) != self._settings.get(name)
            ]
            raise MethodError(
                f"{self._file} holds an unfinished calibration with other settings ({'; '.join(changed)}); repeat it "
                "with those to finish it, or start anew with --restart"
            )
        return results

    def _write(self) -> None:
        write_atomically(self._file, json.dumps({"settings": self._settings, "results": self.results}).encode())


def _finite(value: Any) -> bool:
    """Whether plain data holds finite numbers alone, some in every list and object."""
    if isinstance(value, (list, dict)):
        return bool(value) and all(map(_finite, value.values() if isinstance(value, dict) else value))
    return isinstance(value, (int, float)) and math.isfinite(value)


def unfinished(out: Path) -> bool:
    """Whether a calibration of this profile was begun and is not finished."""
    return _results_of(out).exists()


def _results_of(out: Path) -> Path:
    return out.with_name(out.name + ".partial.json")
