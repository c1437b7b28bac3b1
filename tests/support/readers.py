"""Readers with random weights, written as `ragbias adapt` writes them."""

import json

import torch
from safetensors.torch import save_file

from ragbias.readers import fingerprint, target_layers


def write_reader(folder, model, method="pcw", seed=0, size=0.05, supported=True, name="a model"):
    """Write a reader for a model and a method; returns its path as text."""
    folder.mkdir(parents=True, exist_ok=True)
    draw = torch.Generator().manual_seed(seed)
    tensors = {}
    for path, layer in target_layers(model).items():
        down = torch.randn(4, layer.in_features, generator=draw) * size
        tensors[f"base_model.model.{path}.lora_A.weight"] = down
        tensors[f"base_model.model.{path}.lora_B.weight"] = torch.randn(layer.out_features, 4, generator=draw) * size
    save_file(tensors, folder / "adapter_model.safetensors")
    names = sorted({path.rpartition(".")[2] for path in target_layers(model)})
    peft = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": 4, "lora_alpha": 8, "target_modules": names}
    (folder / "adapter_config.json").write_text(json.dumps(peft))
    identity = {"name": name, "fingerprint": fingerprint(model)}
    record = {"method": method, "model": identity, "receipt": {"supported": supported}}
    (folder / "reader.json").write_text(json.dumps(record))
    return str(folder)
