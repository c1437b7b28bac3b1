"""Names for states: equal where the same model computes the same tokens behind the same prefix, else different."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from transformers import PreTrainedModel

VERSION = 1  # of how states are computed and named; another version's entries are never met
NOT_OF_THE_WEIGHTS = ("_name_or_path", "transformers_version", "architectures")
PORTION = 1 << 26  # bytes that leave an accelerator at one time


class _Fingerprints:
    """Fingerprints of models, made anew when their parameters have been replaced or changed in place."""

    def __init__(self) -> None:
        self._known: WeakKeyDictionary[PreTrainedModel, tuple[tuple[Any, ...], str]] = WeakKeyDictionary()

    def __call__(self, model: PreTrainedModel) -> str:
        seen = tuple((id(tensor), tensor._version) for tensor in model.parameters())
        known = self._known.get(model)
        if known is None or known[0] != seen:
            known = self._known[model] = (seen, _computed(model))
        return known[1]


fingerprint = _Fingerprints()
"""SHA-256 over a model's configuration and all its weights; read once, and again after a change in place.

A change through ``parameter.data`` is not noticed: make a new model object, or clear the cache.
"""


def _computed(model: PreTrainedModel) -> str:
    config = {name: value for name, value in model.config.to_dict().items() if name not in NOT_OF_THE_WEIGHTS}
    total = hashlib.sha256(
        f"{VERSION} {type(model).__name__} {json.dumps(config, sort_keys=True, default=str)}".encode()
    )
    named = [*model.named_parameters(), *model.named_buffers()]
    with ThreadPoolExecutor() as pool:  # hashing lets other threads run
        for (name, tensor), digest in zip(named, pool.map(lambda each: _digest(each[1]), named), strict=True):
            total.update(f"{name} {tensor.dtype} {tuple(tensor.shape)} {digest}".encode())
    return total.hexdigest()


def _digest(tensor: Tensor) -> str:
    if tensor.is_meta:  # its weights are elsewhere, as accelerate has them; name and revision are in the configuration
        return "elsewhere"
    data = tensor.detach().contiguous().view(-1).view(torch.uint8)
    found = hashlib.sha256()
    for begin in range(0, len(data), PORTION):
        found.update(data[begin : begin + PORTION].cpu().numpy().data)
    return found.hexdigest()


def computed_by(model: PreTrainedModel, backend: str) -> str:
    """The name of all that computes states: equal for equal bits. Devices and backends round differently."""
    about = [fingerprint(model), str(model.dtype), model.device.type, backend]
    return hashlib.sha256(json.dumps(about).encode()).hexdigest()[:16]


def key_of(computed: str, prefix: Sequence[int], tokens: Sequence[int]) -> str:
    """The name of the states of ``tokens`` behind a prefix: what computed them, and a digest of both, in hexadecimal
    digits."""
    return f"{computed}-{hashlib.sha256(json.dumps([list(prefix), list(tokens)]).encode()).hexdigest()}"
