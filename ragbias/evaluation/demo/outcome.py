"""What both demos write: how they ran, their figures, and a picture of the bias."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ragbias.evaluation.cost.machine import all_versions
from ragbias.files import writing
from ragbias.lm import DebiasedLM

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def conditions(lm: DebiasedLM) -> dict[str, Any]:
    """What figures depend on beside the settings: the model's dtype, versions, torch's threads."""
    return {"dtype": str(lm.model.dtype), "versions": all_versions(), "threads": torch.get_num_threads()}


def save(outcome: Mapping[str, Any], figure: Figure, folder: Path) -> None:
    """Write ``settings`` and ``results`` of an outcome to ``results.json``, and its figure to ``bias.png``."""
    folder.mkdir(parents=True, exist_ok=True)
    plain = {name: outcome[name] for name in ("settings", "results")}
    with writing(folder / "results.json"):
        (folder / "results.json").write_text(json.dumps(plain, indent=2) + "\n")
    with writing(folder / "bias.png"):
        figure.savefig(folder / "bias.png", dpi=120)
