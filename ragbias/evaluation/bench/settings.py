"""What a bench runs, from a YAML file or the command line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator, model_validator

from ragbias.errors import RagBiasError, RunError
from ragbias.evaluation.tasks import TASKS, make
from ragbias.evaluation.tasks.base import Task

HARNESS_TASK = "mmlu"  # the task that lm-eval runs


def _listed(value: Any) -> Any:
    """A single value, or several in one string with commas, as a list."""
    return [part.strip() for part in value.split(",")] if isinstance(value, str) else value


def _joined(value: Any) -> Any:
    return ",".join(value) if isinstance(value, list) and all(isinstance(each, str) for each in value) else value


Names = Annotated[tuple[str, ...], BeforeValidator(_listed), Field(min_length=1)]


class TaskSettings(BaseModel):
    """A task's name and its own options, which are the fields of its class."""

    model_config = ConfigDict(extra="allow", frozen=True)

    name: str

    @model_validator(mode="before")
    @classmethod
    def _from_a_name(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _fits(self) -> TaskSettings:
        if self.name == HARNESS_TASK:
            if unknown := sorted(self.options.keys() - {"limit", "tasks", "include_path"}):
                raise ValueError(f"unknown option {unknown[0]!r}; {HARNESS_TASK!r} has: limit, tasks, include_path")
            if not isinstance(self.options.get("tasks", []), list):
                raise ValueError(f"tasks={self.options['tasks']!r}; expected a list of lm-eval's names")
            return self
        try:
            make(self.name, **self.options)
        except RagBiasError as error:  # pydantic names the place of ValueErrors only
            raise ValueError(str(error)) from error
        return self

    @property
    def options(self) -> dict[str, Any]:
        """All but the name, as the task's class takes them."""
        given = dict(self.model_extra or {})
        if files := given.get("data"):
            given["data"] = tuple(map(Path, files if isinstance(files, (list, tuple)) else [files]))
        return given

    @property
    def seeded(self) -> bool:
        """Whether the settings' seeds change its cases."""
        return "seed" not in self.options and _has(self.name, "seed")

    def made(self, seed: int, limit: int | None) -> Task:
        """The task; seed and limit count where it has them and sets none itself."""
        options = {"limit": limit} if limit is not None and _has(self.name, "limit") else {}
        return make(self.name, **{**options, **({"seed": seed} if self.seeded else {}), **self.options})


def _has(task: str, option: str) -> bool:
    return option in (each.name for each in fields(TASKS[task]))  # type: ignore[arg-type]  # all are dataclasses


class Settings(BaseModel):
    """What a bench runs.

    Attributes:
        models: ``"tiny"``, hub names or folders.
        methods: as ``ragbias.evaluation.method_list`` reads them, or a list of such texts.
        tasks: names, or a name with the task's own options.
        seeds: each draws the cases anew, for tasks that draw.
        limit: of questions, for tasks that set none themselves.
        batch_size: cases that run together.
        dtype: as ``from_pretrained`` takes it.
        workers: actors of the engine ``ray``, each with a model.
        cost: whether time and memory are measured at the end.
        out: the folder for the results.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    models: Names = ("tiny",)
    methods: Annotated[str, BeforeValidator(_joined)]
    tasks: Annotated[tuple[TaskSettings, ...], Field(min_length=1)]
    seeds: Annotated[tuple[int, ...], Field(min_length=1)] = (0,)
    limit: Annotated[int, Field(ge=1)] | None = None
    batch_size: Annotated[int, Field(ge=1)] = 8
    dtype: str = "auto"
    engine: Literal["local", "ray"] = "local"
    workers: Annotated[int, Field(ge=1)] = 2
    cost: bool = True
    out: Path

    @field_validator("dtype")
    @classmethod
    def _is_a_dtype(cls, value: str) -> str:
        if value != "auto" and not isinstance(getattr(torch, value, None), torch.dtype):
            raise ValueError(f"{value!r} is no dtype; expected 'auto', or e.g. 'bfloat16'")
        return value

    @model_validator(mode="after")
    def _distinct(self) -> Settings:
        for name in ("models", "seeds"):
            if len(set(getattr(self, name))) < len(getattr(self, name)):
                raise ValueError(f"{name} {list(getattr(self, name))}: one of them stands twice")
        return self


def read_settings(file: Path, changes: Mapping[str, Any]) -> Settings:
    """The settings of a YAML file, some of them replaced.

    Raises:
        RunError: the file is no mapping of the settings' names; names the file and the key.
    """
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise RunError(f"{file} is no YAML: {error}") from error
    if not isinstance(content, dict):
        raise RunError(f"{file}: expected keys and values: {', '.join(Settings.model_fields)}")
    return checked({**content, **changes}, str(file))


def checked(content: Mapping[str, Any], source: str) -> Settings:
    """The settings, or a ``RunError`` that names the key and ``source``, where it comes from."""
    try:
        return Settings.model_validate(content)
    except ValidationError as error:
        raise RunError(f"{source}: {'; '.join(_complaint(each) for each in error.errors())}") from error


def _complaint(error: Any) -> str:
    key = ".".join(str(part) for part in error["loc"])
    if error["type"] == "extra_forbidden":
        return f"unknown key {key!r}; known: {', '.join(Settings.model_fields)}"
    if error["type"] == "missing":
        return f"{key!r} is missing"
    message = error["msg"].removeprefix("Value error, ")
    return f"{key}: {message}" if error["type"] == "value_error" else f"{key}: {message}, got {error['input']!r}"
