"""Cache keys: digests of the model, the prefix and the tokens of a document."""

from __future__ import annotations

import hashlib
import json
import os
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from transformers import PreTrainedModel

VERSION = 3  # increase it if the computation or the names of states change
IGNORED_CONFIG = ("_name_or_path", "transformers_version", "architectures")
CHUNK = 1 << 26  # bytes copied from an accelerator at once
ENVIRONMENT = ("MKL_CBWR", "MKL_ENABLE_INSTRUCTIONS", "ONEDNN_MAX_CPU_ISA", "ONEDNN_DEFAULT_FPMATH_MODE")
DEPTH = 4  # depth to which the digest includes nested containers and objects of an attribute
# attributes that do not change results, or that ragbias and accelerate replace while they run a model
_OF_MODULES = vars(nn.Module()).keys() - {"training"}
_OF_MODELS = {"config", "generation_config", "forward", "name_or_path", "warnings_issued", "is_training"}
_OF_MODELS |= {"_tp_plan", "_pp_plan", "_ep_plan"}  # for parallelism; they depend on the version of transformers
_OF_ACCELERATE = {"_hf_hook", "_old_forward", "_is_hf_initialized"}
IGNORED = _OF_MODULES | _OF_MODELS | _OF_ACCELERATE

_known_digests: WeakKeyDictionary[PreTrainedModel, tuple[dict[str, Any], dict[str, str], str]] = WeakKeyDictionary()


def digest_of_model(model: PreTrainedModel) -> str:
    """Return a SHA-256 digest of a model's configuration, weights and module attributes.

    Attributes include active adapters and their scaling, constants such as ``variance_epsilon``, activation functions,
    and the scales of quantised weights. A tensor is hashed again only if it was replaced or changed.

    The digest does not detect the following changes. After such a change, create a new model object or clear the cache.

    - a change in place through ``parameter.data`` or a numpy view;
    - a change of inference tensors, or of weights that accelerate has offloaded;
    - a hook, or a replaced ``forward``.
    """
    named, attached, settings = _collect_parts(model)
    tensors = named | attached
    config = {name: value for name, value in model.config.to_dict().items() if name not in IGNORED_CONFIG}
    settings["config"] = json.dumps(config, sort_keys=True, default=str)
    seen = {name: _fingerprint(tensor) for name, tensor in tensors.items()}
    before, digests, identity = _known_digests.get(model, ({}, {}, ""))
    if before == seen | settings:
        return identity
    unchanged = {name: digest for name, digest in digests.items() if before[name] == seen.get(name)}
    digests = unchanged | _digests(model, {name: tensor for name, tensor in tensors.items() if name not in unchanged})
    about = [str(VERSION), *(f"{name} {setting}" for name, setting in sorted(settings.items()))]
    about += [f"{name} {_describe(tensor)} {digests[name]}" for name, tensor in named.items()]
    # sorted without their names, because quantised layers rename scales in the first forward pass
    about += sorted({f"{name.partition(':')[0]} {_describe(t)} {digests[name]}" for name, t in attached.items()})
    identity = hashlib.sha256("\n".join(about).encode()).hexdigest()
    _known_digests[model] = seen | settings, digests, identity
    return identity


def _collect_parts(model: PreTrainedModel) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Any]]:
    """Return the parameters and buffers, all other tensors in attributes, and all other attributes."""
    named = dict([*model.named_parameters(), *model.named_buffers()])
    attached: dict[str, Tensor] = {}
    settings: dict[str, Any] = {}

    def collect(path: str, value: Any, depth: int) -> None:
        if isinstance(value, Tensor):
            attached[path] = value
        elif isinstance(value, (bool, int, float, str, torch.dtype)):
            settings[path] = value
        elif isinstance(value, partial):
            collect(path, [value.func, value.args, value.keywords], depth)
        elif isinstance(value, type) or (callable(value) and hasattr(value, "__qualname__")):
            code = getattr(value, "__code__", None)
            settings[path] = f"{value.__module__}.{value.__qualname__}" + (code.co_code.hex() if code else "")
        elif value is not None and depth and not isinstance(value, nn.Module):
            inside = value if isinstance(value, Mapping) else getattr(value, "__dict__", {})
            if isinstance(value, (list, tuple)):
                inside = dict(enumerate(value))
            elif isinstance(value, (set, frozenset)):
                settings[path] = sorted(map(str, value))
            collect_all(f"{path}.", inside, depth - 1)

    def collect_all(prefix: str, attributes: Mapping[Any, Any], depth: int = DEPTH) -> None:
        for name, value in attributes.items():
            if name not in IGNORED:
                collect(f"{prefix}{name}", value, depth)

    for path, module in model.named_modules():
        collect(f"{path}:", type(module), DEPTH)
        collect_all(f"{path}:", vars(module))
    for path, tensor in named.items():
        owner, _, weight = path.rpartition(".")
        collect_all(f"{owner}:{weight}.", vars(tensor))
    return named, attached, settings


def _describe(tensor: Tensor) -> str:
    return f"{tensor.dtype} {tuple(tensor.shape)}"


def _fingerprint(tensor: Tensor) -> tuple[Any, ...]:
    """Return a value that changes with the content or the memory of a tensor, for example after ``module.to``."""
    if tensor.is_meta:  # accelerate creates new meta tensors at each call
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
    """Return a loader function, by name, for each weight that accelerate has offloaded to memory or disk."""
    loaders: dict[str, Callable[[], Tensor]] = {}
    for path, module in model.named_modules():
        hook = getattr(module, "_hf_hook", None)
        weights: Any = getattr(hook, "weights_map", None) or {}
        for name, tensor in module.named_parameters():
            if tensor.is_meta and name in weights:
                loaders[f"{path}.{name}".lstrip(".")] = partial(weights.__getitem__, name)
    return loaders


def _digest(tensor: Tensor) -> str:
    if tensor.is_meta:  # unknown weights must not share entries
        return uuid.uuid4().hex
    data = tensor.detach().contiguous().view(-1).view(torch.uint8)
    digest = hashlib.sha256()
    for begin in range(0, len(data), CHUNK):
        digest.update(data[begin : begin + CHUNK].cpu().numpy().data)
    return digest.hexdigest()


def identity_of(model: PreTrainedModel, backend: str, portable: bool = False) -> str:
    """Return a digest of the model, devices, backend, number of threads and other factors that change results.

    For a ``portable`` cache, leave out the factors that change only the rounding.
    """
    device = model.device.type
    cast = str(torch.get_autocast_dtype(device)) if torch.is_autocast_enabled(device) else ""
    about: list[Any] = [digest_of_model(model), str(model.dtype), cast]
    if not portable:
        name = torch.cuda.get_device_name(model.device) if device == "cuda" else torch.backends.cpu.get_cpu_capability()
        devices = [tensor.device.type for tensor in (*model.parameters(), *model.buffers())]
        about += [backend, torch.__version__, device, name, devices, torch.get_num_threads()]
        about.append(torch.get_float32_matmul_precision())
        about += [os.environ.get(variable, "") for variable in ENVIRONMENT]
    return hashlib.sha256(json.dumps(about).encode()).hexdigest()[:16]


def key_of(identity: str, prefix: Sequence[int], tokens: Sequence[int], salt: str = "") -> str:
    """Return the key of an entry: the model's identity, and a digest of the prefix, the tokens and the salt."""
    parts: list[object] = [list(prefix), list(tokens)]
    if salt:
        parts.append(salt)
    return f"{identity}-{hashlib.sha256(json.dumps(parts).encode()).hexdigest()}"
