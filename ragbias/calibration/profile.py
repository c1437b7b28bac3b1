"""A calibrated model: which channel to scale, by what factor, in which layers, and the numbers behind it."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

from ragbias.errors import MethodError

VERSION = 1


@dataclass(frozen=True)
class Profile:
    """What ``ragbias calibrate`` found for a model, or what the paper (arXiv 2406.02536) reports.

    Args:
        model: the name it was calibrated for.
        hidden_size, n_layers: shape of that model; another one is refused when the profile is attached.
        channel: index into the hidden state.
        factor: what the channel is multiplied with.
        layers: first and last layer, both included.
        measured: everything else that was measured or set, as plain data; empty for the paper's profiles.
    """

    model: str
    hidden_size: int
    n_layers: int
    channel: int
    factor: float
    layers: tuple[int, int]
    measured: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Profile:
        """Read a profile that ``save`` wrote.

        Raises:
            MethodError: the file cannot be read or is no profile; the message names the file and the field.
        """
        try:
            data = json.loads(Path(path).read_text())
        except (OSError, ValueError) as error:
            raise MethodError(
                f"profile {path} cannot be read: {error}; expected a JSON file that `ragbias calibrate --out` wrote"
            ) from error
        return cls.from_dict(data, str(path))

    @classmethod
    def from_dict(cls, data: Any, source: str) -> Profile:
        """A profile from plain data; ``source`` is the file that errors name."""
        if not isinstance(data, dict):
            raise MethodError(f"profile {source}: expected a JSON object, got {type(data).__name__}; {_REMEDY}")
        if data.get("version") != VERSION:
            raise MethodError(
                f"profile {source}: field 'version' is {data.get('version')!r}, expected {VERSION}; it was written by "
                f"another release of ragbias, or is no profile: {_REMEDY}"
            )
        values = {name: _checked(data, name, source) for name in _FIELDS}
        if values["channel"] >= values["hidden_size"]:
            raise _wrong(source, "channel", data["channel"], f"an index below hidden_size={values['hidden_size']}")
        if values["layers"][1] >= values["n_layers"]:
            raise _wrong(source, "layers", data["layers"], f"layers below n_layers={values['n_layers']}")
        measured = {name: value for name, value in data.items() if name not in ("version", *_FIELDS)}
        return cls(**{**values, "layers": tuple(values["layers"])}, measured=measured)

    def as_dict(self) -> dict[str, Any]:
        """The profile as plain data, fit for JSON."""
        own = {name: getattr(self, name) for name in _FIELDS}
        return {"version": VERSION, **own, "layers": list(self.layers), **self.measured}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the profile as JSON; a reader sees the old file or the new one, never a part."""
        write_atomically(Path(path), (_dumps(self.as_dict()) + "\n").encode())


def shipped() -> dict[str, Profile]:
    """The profiles that come with ragbias by model name: the paper's, and the one calibrated for ``tiny``."""
    folder = resources.files("ragbias.calibration")
    paper = json.loads(folder.joinpath("profiles.json").read_text())
    tiny = json.loads(folder.joinpath("tiny.json").read_text())
    found = {"tiny": Profile.from_dict(tiny, "tiny.json")}
    for name, entry in paper.items():
        found[name] = Profile.from_dict({"version": VERSION, "model": name, **entry}, "profiles.json")
    return found


def find(profile: str | os.PathLike[str] | Profile) -> Profile:
    """A profile by model name or file.

    Args:
        profile: a path that is a file or ends with ``.json``, or else a model's name, matched without the organisation
            and regardless of case; a ``Profile`` is returned as it is.

    Raises:
        MethodError: no profile for this model, or an invalid file.
    """
    if isinstance(profile, Profile):
        return profile
    name = os.fspath(profile)
    if not isinstance(profile, str) or name.endswith(".json") or os.path.isfile(name):
        return Profile.load(name)
    known = shipped()
    for candidate, found in known.items():
        if _bare(candidate) == _bare(name):
            return found
    raise MethodError(
        f"no channel-scaling profile for {name!r}; known: {', '.join(known)}. Find one with `ragbias calibrate --model "
        f"{name} --out profile.json` and pass its path, or give ChannelScaling(channel, factor, layers=(first, last))"
    )


def write_atomically(path: Path, data: bytes) -> None:
    """Replace ``path`` by a file with this content in one step."""
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_bytes(data)
    os.replace(temporary, path)


def _bare(name: str) -> str:
    return name.rstrip("/").rsplit("/", 1)[-1].lower()


def _dumps(data: Mapping[str, Any]) -> str:
    """One line for each entry of the outer two levels: readable, and not a line for each number."""
    lines = []
    for name, value in data.items():
        text = json.dumps(value)
        if len(text) > 100 and isinstance(value, dict):
            text = "{\n  " + ",\n  ".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in value.items()) + "\n }"
        elif len(text) > 100 and isinstance(value, list):
            text = "[\n  " + ",\n  ".join(map(json.dumps, value)) + "\n ]"
        lines.append(f" {json.dumps(name)}: {text}")
    return "{\n" + ",\n".join(lines) + "\n}"


def _is_whole(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _is_finite(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _is_range(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(_is_whole(v, 0) for v in value) and value[0] <= value[1]


_FIELDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "model": (lambda value: isinstance(value, str) and bool(value), "the model's name"),
    "hidden_size": (lambda value: _is_whole(value, 1), "a whole number >= 1"),
    "n_layers": (lambda value: _is_whole(value, 1), "a whole number >= 1"),
    "channel": (lambda value: _is_whole(value, 0), "a whole number >= 0"),
    "factor": (_is_finite, "a finite number"),
    "layers": (_is_range, "[first, last] with 0 <= first <= last"),
}
_REMEDY = "write it anew with `ragbias calibrate --out`"


def _checked(data: Mapping[str, Any], name: str, source: str) -> Any:
    valid, expected = _FIELDS[name]
    if name not in data:
        raise MethodError(f"profile {source}: field {name!r} is missing, expected {expected}; {_REMEDY}")
    if not valid(data[name]):
        raise _wrong(source, name, data[name], expected)
    return data[name]


def _wrong(source: str, name: str, value: Any, expected: str) -> MethodError:
    return MethodError(f"profile {source}: field {name!r} is {value!r}, expected {expected}; {_REMEDY}")
