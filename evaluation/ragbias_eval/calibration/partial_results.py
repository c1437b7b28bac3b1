"""Save the measurements of a calibration, so that an interrupted calibration can resume."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ragbias.display import describe_changes
from ragbias.errors import MethodError
from ragbias.files import replacing, write_atomically

Floats = NDArray[np.float64]
RESTART = "start again with --restart"


class PartialResults:
    """Measurements by name in ``<out>.partial.json``, and mean hidden states in ``<out>.partial.npy``.

    Raise ``MethodError`` if the files are from a calibration with other ``settings``.
    """

    def __init__(self, out: Path, settings: Mapping[str, Any], restart: bool = False) -> None:
        self._file = out.with_name(f"{out.name}.partial.json")
        self._states_file = out.with_name(f"{out.name}.partial.npy")
        self._settings = json.loads(json.dumps(settings))
        if restart:
            self.remove()
        self.results: dict[str, Any] = self._read()

    def get_or_measure(self, name: str, measure: Callable[[], Any]) -> Any:
        """Return the saved result ``name``. If there is none, measure and save it."""
        if name not in self.results:
            self.results[name] = measure()
            self._write()
        return self.results[name]

    def states(self, measure: Callable[[], Floats]) -> Floats:
        """Return the saved hidden states. If there are none, measure and save them."""
        if not self._states_file.exists():
            states = measure()
            self._write()  # records the settings that the states depend on
            # writes without a copy in memory, because the states may need a gigabyte
            with replacing(self._states_file) as temporary, temporary.open("wb") as file:
                np.save(file, states)
            return states
        try:
            return np.asarray(np.load(self._states_file), dtype=np.float64)
        except (OSError, ValueError, EOFError) as error:
            raise MethodError(f"{self._states_file} cannot be read: {error}; {RESTART}") from error

    def remove(self) -> None:
        self._file.unlink(missing_ok=True)
        self._states_file.unlink(missing_ok=True)

    def _write(self) -> None:
        write_atomically(self._file, json.dumps({"settings": self._settings, "results": self.results}).encode())

    def _read(self) -> dict[str, Any]:
        if not self._file.exists():
            self._states_file.unlink(missing_ok=True)  # its settings are unknown
            return {}
        try:
            data = json.loads(self._file.read_text())
            settings, results = dict(data["settings"]), dict(data["results"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise MethodError(f"{self._file} cannot be read: {error}; {RESTART}") from error
        if settings != self._settings:
            changed = "; ".join(describe_changes(settings, self._settings))
            raise MethodError(
                f"{self._file} contains an unfinished calibration with other settings ({changed}); use the same "
                f"settings, or {RESTART}"
            )
        return results
