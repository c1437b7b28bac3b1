"""Saved measurements of an unfinished calibration, which can resume."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ragbias.display import describe_changes
from ragbias.errors import MethodError
from ragbias.files import irregular_kind, replacing, write_atomically

Floats = NDArray[np.float64]
RESTART = "start again with --restart"


class PartialResults:
    """Saved measurements: results by name in ``<out>.partial.json``, hidden states in ``<out>.partial.npy``.

    The results depend only on ``settings``. Files with other settings raise ``MethodError``.
    """

    def __init__(self, out: Path, settings: Mapping[str, Any], restart: bool = False) -> None:
        self._file, self._states = _file_of(out), out.with_name(out.name + ".partial.npy")
        self._settings = json.loads(json.dumps(settings))
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

    def array(self, advance: Callable[[int], None], steps: int, measure: Callable[[], Floats]) -> Floats:
        """Return saved hidden states, or measure and save them, as ``once`` does for a result."""
        if not self._states.exists():
            states = measure()
            self._write()  # the settings of the states
            # without a copy in memory, because the states may need a gigabyte
            with replacing(self._states) as temporary, temporary.open("wb") as file:
                np.save(file, states)
            return states
        advance(steps)
        try:
            return np.asarray(np.load(self._states), dtype=np.float64)
        except (OSError, ValueError, EOFError) as error:
            raise MethodError(f"{self._states} cannot be read: {error}; {RESTART}") from error

    def remove(self) -> None:
        """Delete the files."""
        self._file.unlink(missing_ok=True)
        self._states.unlink(missing_ok=True)

    def _write(self) -> None:
        write_atomically(self._file, json.dumps({"settings": self._settings, "results": self.results}).encode())

    def _read(self) -> dict[str, Any]:
        if not self._file.exists():
            self._states.unlink(missing_ok=True)  # its settings are missing
            return {}
        if kind := irregular_kind(self._file):
            raise MethodError(f"{self._file} is {kind}; remove it")
        try:
            data = json.loads(self._file.read_text())
            settings, results = dict(data["settings"]), dict(data["results"])
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise MethodError(f"{self._file} cannot be read: {error}; {RESTART}") from error
        if settings != self._settings:
            changed = "; ".join(describe_changes(settings, self._settings))
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
