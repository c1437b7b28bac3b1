"""Cache keys: equal where the same model computes the same tokens after the same prefix, else different."""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from transformers import PreTrainedModel

VERSION = 2  # of how states are computed and named
NOT_OF_THE_WEIGHTS = ("_name_or_path", "transformers_version", "architectures")
CHUNK = 1 << 26  # bytes copied from an accelerator at once


_known: WeakKeyDictionary[PreTrainedModel, tuple[dict[str, Any], dict[str, str], str]] = WeakKeyDictionary()


def fingerprint(model: PreTrainedModel) -> str:
    """SHA-256 of a model's configuration, weights and devices; tensors that were replaced or changed are read again.

    Not noticed: changes in place through ``parameter.data``, of weights that accelerate has offloaded, and of the code
    that runs, such as a hook. Create a new model object, or clear the cache.
    """
    tensors = dict([*model.named_parameters(), *model.named_buffers()])
    seen = {name: _seen(tensor) for name, tensor in tensors.items()}
    before, digests, found = _known.get(model, ({}, {}, ""))
    if before == seen:
        return found
    same = {name: digest for name, digest in digests.items() if before[name] == seen.get(name)}
    digests = same | _digests(model, {name: tensor for name, tensor in tensors.items() if name not in same})
    config = {name: value for name, value in model.config.to_dict().items() if name not in NOT_OF_THE_WEIGHTS}
    about = f"{VERSION} {type(model).__name__} {json.dumps(config, sort_keys=True, default=str)}"
    total = hashlib.sha256(about.encode())
    for name, tensor in tensors.items():
        total.update(f"{name} {tensor.dtype} {tensor.device.type} {tuple(tensor.shape)} {digests[name]}".encode())
    _known[model] = seen, digests, total.hexdigest()
    return total.hexdigest()


def _seen(tensor: Tensor) -> tuple[Any, ...]:
    """Equal as long as a tensor has the same memory, unchanged; ``module.to`` moves it to other memory."""
    if tensor.is_meta:  # accelerate creates these again at each call
        return (True,)
    version = 0 if tensor.is_inference() else tensor._version
    memory = StorageWeakRef(tensor.untyped_storage())  # the reference prevents reuse of the address
    return False, memory, tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype, version


def _digests(model: PreTrainedModel, named: Mapping[str, Tensor]) -> dict[str, str]:
    offloaded = _offloaded(model)

    def digest(name: str) -> str:
        return _digest(offloaded[name]() if name in offloaded else named[name])

    with ThreadPoolExecutor() as pool:  # hashing releases the GIL
        return dict(zip(named, pool.map(digest, named), strict=True))


def _offloaded(model: PreTrainedModel) -> dict[str, Callable[[], Tensor]]:
    """Loaders of the weights that accelerate has offloaded to memory or disk, by name."""
    found: dict[str, Callable[[], Tensor]] = {}
    for path, module in model.named_modules():
        hook = getattr(module, "_hf_hook", None)
        weights: Any = getattr(hook, "weights_map", None) or {}
        for name, tensor in module.named_parameters():
            if tensor.is_meta and name in weights:
                found[f"{path}.{name}".lstrip(".")] = partial(weights.__getitem__, name)
    return found


def _digest(tensor: Tensor) -> str:
    if tensor.is_meta:  # unknown weights share no entries
        return uuid.uuid4().hex
    data = tensor.detach().contiguous().view(-1).view(torch.uint8)
    found = hashlib.sha256()
    for begin in range(0, len(data), CHUNK):
        found.update(data[begin : begin + CHUNK].cpu().numpy().data)
    return found.hexdigest()


def identity_of(model: PreTrainedModel, backend: str) -> str:
    """Identifies model and environment, equal for equal bits: devices, backends and thread counts round differently."""
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
    """The key of the states of ``tokens`` after a prefix: the model's identity and a digest of both."""
    return f"{identity}-{hashlib.sha256(json.dumps([list(prefix), list(tokens)]).encode()).hexdigest()}"
