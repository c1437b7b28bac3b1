"""Names for states: equal where the same model computes the same tokens after the same prefix, else different."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from transformers import PreTrainedModel

VERSION = 1  # of how states are computed and named; another version's entries are never met
NOT_OF_THE_WEIGHTS = ("_name_or_path", "transformers_version", "architectures")
PORTION = 1 << 26  # bytes that leave an accelerator at one time

_FINGERPRINTS: WeakKeyDictionary[PreTrainedModel, tuple[list[tuple[int, int]], str]] = WeakKeyDictionary()


def fingerprint(model: PreTrainedModel) -> str:
    """SHA-256 over a model's configuration and all its weights; read once, and again after a change in place.

    A change through ``parameter.data`` is not noticed: make a new model object, or clear the cache.
    """
    versions = [(id(tensor), tensor._version) for tensor in model.parameters()]
    known = _FINGERPRINTS.get(model)
    if known is None or known[0] != versions:
        known = _FINGERPRINTS[model] = (versions, _hashed(model))
    return known[1]


def _hashed(model: PreTrainedModel) -> str:
    config = {name: value for name, value in model.config.to_dict().items() if name not in NOT_OF_THE_WEIGHTS}
    named = [*model.named_parameters(), *model.named_buffers()]
    if any(tensor.is_meta for _, tensor in named):  # accelerate has its weights elsewhere, and a name has to do
        config["weights"] = [model.config._name_or_path, getattr(model.config, "_commit_hash", None)]
    total = hashlib.sha256(
        f"{VERSION} {type(model).__name__} {json.dumps(config, sort_keys=True, default=str)}".encode()
    )
    with ThreadPoolExecutor() as pool:  # hashing lets other threads run
        for (name, tensor), digest in zip(named, pool.map(lambda each: _digest(each[1]), named), strict=True):
            total.update(f"{name} {tensor.dtype} {tuple(tensor.shape)} {digest}".encode())
    return total.hexdigest()


def _digest(tensor: Tensor) -> str:
    if tensor.is_meta:
        return "elsewhere"
    data = tensor.detach().contiguous().view(-1).view(torch.uint8)
    found = hashlib.sha256()
    for begin in range(0, len(data), PORTION):
        found.update(data[begin : begin + PORTION].cpu().numpy().data)
    return found.hexdigest()


def identity_of(model: PreTrainedModel, backend: str) -> str:
    """The name of what computes states: equal for equal bits. Devices and backends round differently."""
    about = [fingerprint(model), str(model.dtype), model.device.type, backend]
    return hashlib.sha256(json.dumps(about).encode()).hexdigest()[:16]


def key_of(identity: str, prefix: Sequence[int], tokens: Sequence[int]) -> str:
    """The name of the states of ``tokens`` after a prefix: the model's identity, and a digest of both."""
    return f"{identity}-{hashlib.sha256(json.dumps([list(prefix), list(tokens)]).encode()).hexdigest()}"
