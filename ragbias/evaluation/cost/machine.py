"""What measurements depend on, beside their settings: versions and the machine."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
import transformers


def versions() -> dict[str, str]:
    """Of the libraries that compute."""
    return {
        "ragbias": version("ragbias"),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }


def all_versions() -> dict[str, str]:
    """Of the libraries that compute, and of Python."""
    return {**versions(), "python": platform.python_version()}


def machine() -> dict[str, Any]:
    """System, processor, the vector instructions that torch uses on it, cores, threads and GPUs."""
    return {
        "system": platform.platform(),
        "processor": _processor(),
        "vectors": torch.backends.cpu.get_cpu_capability(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpus": [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())],
    }


def _processor() -> str:
    """Its name; on Linux Python itself knows the architecture only."""
    known = Path("/proc/cpuinfo")
    lines = known.read_text().splitlines() if known.is_file() else []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())
