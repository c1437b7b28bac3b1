"""The folder of a bench run: names of its files, and functions that read its JSON files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, TypeAdapter, ValidationError

from ragbias.display import complaints
from ragbias.errors import DataError, RunError
from ragbias.evaluation.runs.records import PACKED
from ragbias.files import irregular

ROWS = "rows.jsonl"
NOISE = "noise.jsonl"  # answers to repeated cases
COST = "cost.json"
SETTINGS = "settings.json"
SUMMARY = "summary.json"
FILES = (ROWS, NOISE, COST, SETTINGS, SUMMARY)

T = TypeVar("T")
Costs = dict[str, dict[str, dict[str, list[float]]]]


class _Task(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True)

    data: list[dict[str, Any]] = []


class _Decides(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True)

    tasks: list[_Task] = []


class _About(BaseModel):
    """The content of ``settings.json``. Only the fields in use are validated."""

    model_config = ConfigDict(extra="allow", strict=True)

    decides: _Decides
    settings: dict[str, Any] = {}


_Spread = Annotated[list[FiniteFloat], Field(min_length=3, max_length=3)]


def packed(folder: Path, name: str) -> Path:
    """Return the path of the compressed file of records (``ROWS`` or ``NOISE``) in a run folder."""
    return folder / f"{name}{PACKED}"


def records_file(folder: Path, name: str) -> Path | None:
    """Find a file of records, plain or compressed. Return None if there is neither."""
    found = [path for path in (folder / name, packed(folder, name)) if path.is_file()]
    if len(found) > 1:
        raise RunError(f"{folder} contains both {name} and {name}{PACKED}; remove the one that is out of date")
    return found[0] if found else None


def cost_key(model: str, task: str, documents: int) -> str:
    """Return the key of a model, task and number of documents in ``cost.json``."""
    return f"{model}|{task}|{documents}"


def read_costs(folder: Path) -> Costs:
    """Read the costs ``[median, low, high]`` by ``cost_key`` and label, if they were measured."""
    return _checked(folder / COST, TypeAdapter(dict[str, dict[str, dict[str, _Spread]]])) or {}


def read_about(folder: Path) -> dict[str, Any]:
    """Read the settings, versions and machine of a run, see ``plain_settings``, if the file exists."""
    about = _checked(folder / SETTINGS, TypeAdapter(_About))
    return about.model_dump(exclude_unset=True) if about else {}


def _checked(path: Path, form: TypeAdapter[T]) -> T | None:
    """Read and check a JSON file. Return None if it does not exist."""
    if not path.exists():
        return None
    remedy = "restore the file" if path.name == SETTINGS else "restore or remove the file"
    if kind := irregular(path):
        raise DataError(f"{path} is {kind}, not a regular file; {remedy}")
    try:
        return form.validate_json(path.read_bytes(), strict=True)
    except ValidationError as error:
        raise DataError(f"{path} is damaged: {complaints(error)}; {remedy}") from error
