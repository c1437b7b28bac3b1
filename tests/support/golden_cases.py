"""Golden cases: outputs of the authors' own implementations on tiny random models.

``RAGBIAS_GOLDEN=FOLDER pytest tests/methods/test_golden.py`` runs the cases of another folder of the same layout.
"""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

FOLDER = Path(os.environ.get("RAGBIAS_GOLDEN") or Path(__file__).parents[1] / "golden")


@dataclass
class GoldenCase:
    """A case: ``info`` is its JSON file, ``tensors`` contains its arrays without the prefix ``golden.``."""

    info: dict[str, Any]
    tensors: dict[str, Tensor]
    model: PreTrainedModel

    @property
    def spans(self) -> list[tuple[int, int]]:
        return [(begin, end) for begin, end in self.info["segments"]["doc_spans"]]


def case_names(method: str) -> list[str]:
    return sorted(path.stem for path in (FOLDER / method).glob("*.json"))


def load_case(method: str, name: str) -> GoldenCase:
    info = json.loads((FOLDER / method / f"{name}.json").read_text())
    settings = dict(info["config"])
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(settings.pop("model_type"), **settings))
    weights = load_file(FOLDER / method / info["weights_from"])
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert not unexpected and set(missing) <= {"lm_head.weight"}, (missing, unexpected)
    model.tie_weights()
    tensors = {
        key.removeprefix("golden."): value for key, value in load_file(FOLDER / method / f"{name}.safetensors").items()
    }
    return GoldenCase(info, tensors, model.eval())


@torch.no_grad()
def run(model: PreTrainedModel, input_ids: Tensor, steps: int) -> tuple[Tensor, Tensor, list[int]]:
    """Prefill and decode greedily. Return logits ``[T, V]``, decode logits ``[steps, V]`` and ``steps + 1`` ids."""
    output = model(input_ids[None], use_cache=True)
    prefill, ids, decoded = output.logits[0], [int(output.logits[0, -1].argmax())], []
    for _ in range(steps):
        output = model(torch.tensor([[ids[-1]]]), past_key_values=output.past_key_values, use_cache=True)
        decoded.append(output.logits[0, -1])
        ids.append(int(decoded[-1].argmax()))
    return prefill, torch.stack(decoded), ids
