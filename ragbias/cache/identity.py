"""Names for states: equal where the same model computes the same tokens after the same prefix, else different."""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from transformers import PreTrainedModel

VERSION = 2  # of how states are computed and named; another version's entries are never met
NOT_OF_THE_WEIGHTS = ("_name_or_path", "transformers_version", "architectures")
PORTION = 1 << 26  # bytes that leave an accelerator at one time


@dataclass
class _Known:
    """What was seen of a model's tensors, by name, their digests, and its fingerprint."""

    seen: dict[str, tuple[Any, ...]]
    digests: dict[str, str]
    fingerprint: str


class _Fingerprints:
    """Fingerprints of models; parameters and buffers that have been replaced or changed in place are read again."""

    def __init__(self) -> None:
        self._known: WeakKeyDictionary[PreTrainedModel, _Known] = WeakKeyDictionary()

    def __call__(self, model: PreTrainedModel) -> str:
        named = {name: tensor for of in (model.named_parameters(), model.named_buffers()) for name, tensor in of}
        seen = {name: _seen(tensor) for name, tensor in named.items()}
        known = self._known.get(model) or _Known({}, {}, "")
        if known.seen != seen:
            kept = {name: digest for name, digest in known.digests.items() if known.seen[name] == seen.get(name)}
            digests = kept | _digests(model, {name: tensor for name, tensor in named.items() if name not in kept})
            known = self._known[model] = _Known(seen, digests, _fingerprint(model, named, digests))
        return known.fingerprint


fingerprint = _Fingerprints()
"""SHA-256 over a model's configuration, all its weights and where they are; read once, and again after a change.

A change in place through ``parameter.data``, or of weights that accelerate keeps elsewhere, is not noticed, and neither
is one of the code that runs, such as a hook: make a new model object, or clear the cache.
"""


def _seen(tensor: Tensor) -> tuple[Any, ...]:
    """Equal as long as it is the same memory and was not changed; what ``module.to`` moves is in other memory."""
    if tensor.is_meta:  # anew at each call, as accelerate has them
        return (True,)
    version = 0 if tensor.is_inference() else tensor._version
    memory = StorageWeakRef(tensor.untyped_storage())  # as long as it is referred to, no other one gets its address
    return False, memory, tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype, version


def _fingerprint(model: PreTrainedModel, named: Mapping[str, Tensor], digests: Mapping[str, str]) -> str:
    config = {name: value for name, value in model.config.to_dict().items() if name not in NOT_OF_THE_WEIGHTS}
    total = hashlib.sha256(
        f"{VERSION} {type(model).__name__} {json.dumps(config, sort_keys=True, default=str)}".encode()
    )
    for name, tensor in named.items():
        about = f"{name} {tensor.dtype} {tensor.device.type} {tuple(tensor.shape)} {digests[name]}"
        total.update(about.encode())
    return total.hexdigest()


def _digests(model: PreTrainedModel, named: Mapping[str, Tensor]) -> dict[str, str]:
    elsewhere = _elsewhere(model)

    def digest(name: str) -> str:
        return _digest(elsewhere[name]() if name in elsewhere else named[name])

    with ThreadPoolExecutor() as pool:  # hashing lets other threads run
        return dict(zip(named, pool.map(digest, named), strict=True))


def _elsewhere(model: PreTrainedModel) -> dict[str, Callable[[], Tensor]]:
    """What gives the weights that accelerate keeps in memory or on disk until their module is called."""
    found: dict[str, Callable[[], Tensor]] = {}
    for path, module in model.named_modules():
        hook = getattr(module, "_hf_hook", None)
        kept: Any = getattr(hook, "weights_map", None) or {}
        for name, tensor in module.named_parameters():
            if tensor.is_meta and name in kept:
                found[f"{path}.{name}".lstrip(".")] = partial(kept.__getitem__, name)
    return found


def _digest(tensor: Tensor) -> str:
    if tensor.is_meta:  # nobody knows its weights, so nothing is shared with other processes
        return uuid.uuid4().hex
    data = tensor.detach().contiguous().view(-1).view(torch.uint8)
    found = hashlib.sha256()
    for begin in range(0, len(data), PORTION):
        found.update(data[begin : begin + PORTION].cpu().numpy().data)
    return found.hexdigest()


def identity_of(model: PreTrainedModel, backend: str) -> str:
    """The name of all that computes states: equal for equal bits.

    Devices, backends, versions of torch and numbers of threads round differently.
    """
    device = model.device.type
    name = torch.cuda.get_device_name(model.device) if device == "cuda" else torch.backends.cpu.get_cpu_capability()
    casts = torch.is_autocast_enabled(device)
    about = [
        *(fingerprint(model), str(model.dtype), backend),
        *(torch.__version__, device, name, torch.get_num_threads(), torch.get_float32_matmul_precision()),
        str(torch.get_autocast_dtype(device)) if casts else "",
    ]
    return hashlib.sha256(json.dumps(about).encode()).hexdigest()[:16]


def key_of(identity: str, prefix: Sequence[int], tokens: Sequence[int]) -> str:
    """The name of the states of ``tokens`` after a prefix: the model's identity, and a digest of both."""
    return f"{identity}-{hashlib.sha256(json.dumps([list(prefix), list(tokens)]).encode()).hexdigest()}"
