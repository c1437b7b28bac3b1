"""What a run depends on, written into its folder; and whether its models can be found."""

from __future__ import annotations

import hashlib
import platform
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig

from ragbias.errors import ModelFileError, first_line
from ragbias.evaluation.bench.configuration import BenchConfiguration, TaskSettings
from ragbias.evaluation.cost.machine import machine, versions
from ragbias.models import local_path
from ragbias.models.loading import refuse_irregular
from ragbias.models.named import EXPECTED


def described(settings: BenchConfiguration) -> dict[str, Any]:
    """Plain data: ``decides`` holds what records depend on, the rest how and where they were made."""
    on_gpu = torch.cuda.is_available()
    return {
        "decides": {
            "models": settings.models,
            "methods": "".join(settings.methods.split()),
            "tasks": [_task(each) for each in settings.tasks],
            "seeds": settings.seeds,
            "limit": settings.limit,
            "measure": settings.measure,
            "batch_size": settings.batch_size,
            **({"invariant_once": True} if settings.invariant_once else {}),
            "dtype": settings.dtype,
            "device": "cuda" if on_gpu else "cpu",
            **versions(),
        },
        "settings": settings.model_dump(mode="json"),
        "python": platform.python_version(),
        "machine": machine(),
    }


def check_model(name: str) -> None:
    """Raise ``ModelFileError`` unless a model of this name is found; does not load its weights."""
    refuse_irregular(name)
    try:
        AutoConfig.from_pretrained(local_path(name))
    except (OSError, ValueError) as error:
        raise ModelFileError(f"model {name!r}: expected {EXPECTED}: {first_line(error)}") from error


def _task(task: TaskSettings) -> dict[str, Any]:
    """The task as typed; its files by what they hold, so that they may move."""
    plain: dict[str, Any] = {"name": task.name}
    for option, value in task.options.items():
        files = [path for path in value if isinstance(path, Path)] if isinstance(value, tuple) else []
        plain[option] = [_file(path) for path in files] if files else value
    return plain


def _file(path: Path) -> dict[str, str]:
    return {"file": path.name, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
