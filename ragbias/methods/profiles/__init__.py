"""Profiles for channel scaling: the channel, factor and layers of a model, from the paper or from calibration."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ragbias import limits
from ragbias.checks import check_between, check_whole
from ragbias.errors import MethodError
from ragbias.files import write_atomically
from ragbias.models.named import PACKAGED

VERSION = 1
FIELDS = ("model", "hidden_size", "n_layers", "channel", "factor", "layers")
SHIPPED = Path(__file__).parent / "shipped"


@dataclass(frozen=True)
class Profile:
    """Channel, factor and layers for one model, from ``ragbias calibrate`` or from the paper (arXiv 2406.02536).

    Args:
        model: name of the calibrated model.
        hidden_size, n_layers: shape of the model. The profile is invalid for other shapes.
        channel: index into the hidden state.
        factor: factor of the channel.
        layers: first and last layer, both included.
        measured: further measurements and settings, as JSON-compatible data; empty for the paper's profiles.

    Raises:
        MethodError: a value is out of range.
    """

    model: str
    hidden_size: int
    n_layers: int
    channel: int
    factor: float
    layers: tuple[int, int]
    measured: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.model, str) or not self.model:
            raise MethodError(f"model={self.model!r}; expected the model's name")
        check_whole("hidden_size", self.hidden_size, 1)
        check_whole("n_layers", self.n_layers, 1)
        check_whole("channel", self.channel, 0)
        check_between("factor", self.factor, limits.FACTOR)
        if self.channel >= self.hidden_size:
            raise MethodError(f"channel={self.channel}; expected an index below hidden_size={self.hidden_size}")
        if not isinstance(self.layers, tuple) or len(self.layers) != 2:
            raise MethodError(f"layers={self.layers!r}; expected (first, last)")
        for layer in self.layers:
            check_whole(f"layers={self.layers}: layer", layer, 0)
        if not self.layers[0] <= self.layers[1] < self.n_layers:
            raise MethodError(f"layers={self.layers}; expected first <= last < n_layers={self.n_layers}")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Profile:
        """Read a profile that ``save`` wrote.

        Raises:
            MethodError: the file cannot be read or is invalid; the message names the file and the field.
        """
        try:
            return _from_dict(json.loads(Path(path).read_text()))
        except MethodError as error:
            raise MethodError(f"profile {path}: {error}; recreate it with `ragbias calibrate --out`") from error
        except (OSError, ValueError, RecursionError) as error:
            expected = "expected a JSON file that `ragbias calibrate --out` wrote"
            raise MethodError(f"profile {path} cannot be read: {error}; {expected}") from error

    def as_dict(self) -> dict[str, Any]:
        """Return the profile as JSON-compatible data."""
        values = {name: getattr(self, name) for name in FIELDS}
        numbers = {name: int(values[name]) for name in ("hidden_size", "n_layers", "channel")}  # JSON has no NumPy
        layers = list(map(int, self.layers))
        return {"version": VERSION, **values, **numbers, "layers": layers, **self.measured}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the profile as JSON, atomically."""
        write_atomically(Path(path), (json.dumps(self.as_dict(), indent=1) + "\n").encode())


def _from_dict(data: Any) -> Profile:
    if not isinstance(data, dict):
        raise MethodError(f"expected a JSON object, got {type(data).__name__}")
    if missing := [name for name in ("version", *FIELDS) if name not in data]:
        raise MethodError(f"field {', '.join(missing)} is missing")
    if type(data["version"]) is not int or data["version"] != VERSION:
        raise MethodError(f"version={data['version']!r}; expected {VERSION}, the version of this release")
    values: dict[str, Any] = {
        name: tuple(data[name]) if isinstance(data[name], list) else data[name] for name in FIELDS
    }
    return Profile(**values, measured={name: data[name] for name in data if name not in ("version", *FIELDS)})


def shipped_profiles() -> dict[str, Profile]:
    """Return the profiles in this package by model name."""
    profiles = map(Profile.load, sorted(SHIPPED.glob("*.json")))
    return {profile.model: profile for profile in profiles}


def find_profile(profile: str | os.PathLike[str] | Profile) -> Profile:
    """Return a profile by model name or file. A ``Profile`` is returned unchanged.

    Text is a path if the file exists or the text ends with ``.json``. Organisation and case of names are ignored.
    """
    if isinstance(profile, Profile):
        return profile
    if not isinstance(profile, (str, os.PathLike)):
        raise MethodError(f"profile={profile!r}; expected a model's name, a path or a Profile")
    name = os.fspath(profile)
    if not isinstance(profile, str) or name.endswith(".json") or os.path.isfile(name):
        return Profile.load(name)
    return profile_of_model(name)


def profile_of_model(name: str) -> Profile:
    """Return the shipped profile for a model name or path. Raise ``MethodError`` if there is none."""
    known = shipped_profiles()
    for model, profile in known.items():
        if _bare(model) == _bare(name):
            return profile
    raise MethodError(
        f"no channel-scaling profile for {name!r}; known: {', '.join(known)}. Find one with `ragbias calibrate --model "
        f"{name} --out profile.json` and pass its path, or pass ChannelScaling(channel, factor, layers=(first, last))"
    )


def _bare(name: str) -> str:
    """Return the hub name of a model without its organisation, in lower case."""
    hub = PACKAGED[name].hub if name in PACKAGED else name
    return hub.rstrip("/").rsplit("/", 1)[-1].lower()
