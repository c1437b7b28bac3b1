"""The settings of a bench, from a YAML file or the command line, and their description in a run's folder."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import torch
import yaml
from pydantic import (
    BaseModel,
    BeforeValidator,
    Field,
    StrictBool,
    StrictInt,
    StrictStr,
    ValidationError,
    model_validator,
)

from ragbias import limits
from ragbias.display import validation_message
from ragbias.errors import RagBiasError, RunError
from ragbias.files import irregular_kind
from ragbias.models.named import no_model_message
from ragbias.readers import reader_folder
from ragbias_eval import ACCURACY, Measure
from ragbias_eval.cost import describe_machine, versions
from ragbias_eval.tasks import make_task, task_class
from ragbias_eval.tasks.task import Limit, Seed, Several, Task


def _join_commas(value: Any) -> Any:
    return ",".join(value) if isinstance(value, list) and all(isinstance(part, str) for part in value) else value


class TaskSettings(BaseModel, extra="allow", frozen=True):
    """The name and the options of a task. Options are fields of the task's class."""

    name: str

    @model_validator(mode="before")
    @classmethod
    def _accept_name(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _check_options(self) -> TaskSettings:
        try:
            make_task(self.name, **self.options)
        except RagBiasError as error:  # pydantic names the key only for a ValueError
            raise ValueError(str(error)) from error
        return self

    @property
    def options(self) -> dict[str, Any]:
        return dict(self.model_extra or {})

    @property
    def uses_seeds(self) -> bool:
        """Whether the task's cases depend on the seeds of the bench."""
        return "seed" not in self.options and "seed" in task_class(self.name).__dataclass_fields__

    def make(self, seed: int, limit: int | None) -> Task:
        """Make the task. The options in this object override ``seed`` and ``limit``."""
        known = task_class(self.name).__dataclass_fields__
        defaults = {name: value for name, value in (("seed", seed), ("limit", limit)) if name in known}
        return make_task(self.name, **{**defaults, **self.options})


class BenchSettings(BaseModel, extra="forbid", frozen=True):
    """The settings of a bench."""

    models: Several[StrictStr]  # names of models on the hub, folders, or ``"tiny"``
    methods: Annotated[str, BeforeValidator(_join_commas)]  # see ``parse_methods``
    tasks: Annotated[tuple[TaskSettings, ...], Field(min_length=1)]
    measure: Several[Measure] = (ACCURACY,)
    seeds: Several[Seed] = (0,)  # of the cases, for tasks that draw cases at random
    limit: Limit | None = None  # maximum number of questions, for tasks whose options have no limit
    batch_size: Annotated[StrictInt, limits.BATCH] = 8
    # run an order-invariant method only once if a batch contains the same documents in several orders, and copy the
    # answer to the other orders, so flips and gaps are assumed to be 0, not measured
    invariant_once: StrictBool = False
    dtype: StrictStr = "auto"  # of the weights, as for ``from_pretrained``
    cost: StrictBool = True  # whether to measure time and memory at the end
    out: Path  # folder for the results


def read_settings(file: Path, changes: Mapping[str, Any]) -> BenchSettings:
    """Read settings from a YAML file. ``changes`` replace settings of the file."""
    if kind := irregular_kind(file):
        raise RunError(f"{file} is {kind}; expected a regular YAML file")
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: an impossible date, or not UTF-8
        raise RunError(f"{file} is not readable YAML: {error}") from error
    if not isinstance(content, dict):
        raise RunError(f"{file}: expected keys and values: {', '.join(BenchSettings.model_fields)}")
    return validate_settings({**content, **changes}, str(file))


def validate_settings(content: Mapping[str, Any], source: str) -> BenchSettings:
    """Validate the settings. Errors begin with ``source``, such as the name of a file."""
    if not content.get("models"):
        raise RunError(f"{source}: {no_model_message('--model smollm2, or models: smollm2 in a file')}")
    try:
        return BenchSettings.model_validate(content)
    except ValidationError as error:
        known = list(BenchSettings.model_fields)
        raise RunError(f"{source}: {validation_message(error, known)}") from error


def describe_run(settings: BenchSettings) -> dict[str, Any]:
    """Describe a run as JSON data. Only the settings in the entry ``decides`` affect the answers."""
    return {
        "decides": {
            "models": settings.models,
            "methods": "".join(settings.methods.split()),
            "tasks": [_describe_task(task) for task in settings.tasks],
            "seeds": settings.seeds,
            "limit": settings.limit,
            "measure": settings.measure,
            "batch_size": settings.batch_size,
            **({"invariant_once": True} if settings.invariant_once else {}),
            **hash_readers(settings.methods),
            "dtype": settings.dtype,
            "device": "cuda" if torch.cuda.is_available() else "cpu",
            **versions(),
        },
        "settings": settings.model_dump(mode="json"),
        "machine": describe_machine(),
    }


def hash_readers(methods: str) -> dict[str, Any]:
    """Return the hash of each reader adapter in ``methods``. The hash changes if a reader is trained again."""
    digests = {}
    for reader in re.findall(r"""\breader\s*=\s*['"]?([^,'")]+)""", methods):
        files = [path for path in sorted(reader_folder(reader).glob("*")) if path.is_file()]
        digests[reader] = hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()
    return {"readers": digests} if digests else {}


def _describe_task(task: TaskSettings) -> dict[str, Any]:
    """Describe a task as JSON data, with the names and hashes of data files instead of their paths."""
    plain = {"name": task.name, **task.options}
    if "data" in plain:
        files = task.make(0, None).data  # type: ignore[attr-defined]
        plain["data"] = [{"file": path.name, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()} for path in files]
    return plain
