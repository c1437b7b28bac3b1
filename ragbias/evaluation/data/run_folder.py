"""The folder of a bench run: the names of its files, and its JSON files read and checked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

from ragbias.display import complaints
from ragbias.errors import DataError, RunError
from ragbias.evaluation.data.records import PACKED
from ragbias.extras import required
from ragbias.files import irregular

required("pydantic", "bench")

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, TypeAdapter, ValidationError  # noqa: E402

ROWS = "rows.jsonl"
NOISE = "noise.jsonl"  # the answers to cases that are asked again
COST = "cost.json"
SETTINGS = "settings.json"
SUMMARY = "summary.json"
HARNESS = "harness.json"  # numbers of records of the parts that lm-eval has run
FILES = (ROWS, NOISE, COST, SETTINGS, SUMMARY, HARNESS)

Costs = dict[str, dict[str, dict[str, Any]]]


class _Task(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True)

    data: list[dict[str, Any]] = Field(default_factory=list)
    tasks: list[str] | str = ""


class _Decides(BaseModel):
    """What records depend on, see ``ragbias.evaluation.bench.provenance``; only what is read again is checked."""

    model_config = ConfigDict(extra="allow", strict=True)

    tasks: list[_Task] = Field(default_factory=list)


class _About(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True)

    decides: _Decides
    settings: dict[str, Any] = Field(default_factory=dict)


def packed(folder: Path, name: str) -> Path:
    """Where a file of records (``ROWS``, ``NOISE``) lies compressed, in the folder of a run that is kept."""
    return folder / f"{name}{PACKED}"


def records_file(folder: Path, name: str) -> Path | None:
    """The file of records of this name, as the bench writes it or compressed; None: there is neither.

    Raises:
        RunError: there are both.
    """
    found = [path for path in (folder / name, packed(folder, name)) if path.is_file()]
    if len(found) > 1:
        raise RunError(f"{folder} holds both {name} and {name}{PACKED}; remove the one that is out of date")
    return found[0] if found else None


_Spread = Annotated[list[FiniteFloat], Field(min_length=3, max_length=3)]
_COSTS = TypeAdapter(dict[str, dict[str, dict[str, _Spread]]])
_COUNTS = TypeAdapter(dict[str, int])
_ABOUT = TypeAdapter(_About)


def cost_key(model: str, task: str, documents: int) -> str:
    """The key of the methods' costs in ``cost.json``."""
    return f"{model}|{task}|{documents}"


def read_costs(folder: Path) -> Costs:
    """By ``cost_key`` and label: ``[median, low, high]`` of each figure; empty where nothing was measured.

    Raises:
        DataError: the file is damaged; so for all that is read here.
    """
    return dict(_checked(folder / COST, _COSTS) or {})


def read_counts(folder: Path) -> dict[str, int]:
    """Numbers of records by part of what lm-eval runs; empty where it ran nothing."""
    return dict(_checked(folder / HARNESS, _COUNTS) or {})


def read_about(folder: Path) -> dict[str, Any]:
    """The run's settings, versions and machine, with ``"decides"``; empty where the file is missing."""
    return dict(_checked(folder / SETTINGS, _ABOUT) or {})


def _checked(path: Path, form: TypeAdapter[Any]) -> Any:
    """The data of a file, unchanged; ``None`` if there is no file."""
    if not path.exists():
        return None
    remedy = "put the file back" if path.name == SETTINGS else "put the file back, or remove it"
    if kind := irregular(path):
        raise DataError(f"{path} is {kind}, no regular file; {remedy}")
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        form.validate_python(data, strict=True)
    except ValidationError as error:
        raise DataError(f"{path} is damaged: {complaints(error)}; {remedy}") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is damaged, no JSON: {error}; {remedy}") from error
    return data
