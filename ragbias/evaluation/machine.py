"""What measurements depend on, beside their settings: versions and the machine."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version
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


def machine() -> dict[str, Any]:
    """System, processor, cores, threads and GPUs."""
    return {
        "system": platform.platform(),
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpus": [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())],
    }
