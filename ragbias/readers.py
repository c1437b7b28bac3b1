"""Reader adapters: LoRA on the tokens after the documents. The states of the documents do not change.

A reader is a folder in peft's format with an additional ``reader.json``, which names the method and the base model.
Hooks on the model's linear layers apply the reader to the tokens after the documents. They have no effect on other
threads and tasks.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import PreTrainedModel

from ragbias.binding.architectures import kv_cache_of, structure_of
from ragbias.call_site import warn
from ragbias.errors import ReaderError, UnsupportedReaderWarning
from ragbias.methods import Method, format_method, get

WEIGHTS = "adapter_model.safetensors"
PEFT = "adapter_config.json"
READER = "reader.json"
FILES = (WEIGHTS, PEFT, READER)
PARTIAL = "partial"  # subfolder of an unfinished training
UNSUPPORTED = ("use_rslora", "use_dora", "rank_pattern", "alpha_pattern")  # settings of peft that change the result
SHIPPED = Path(__file__).parent / "models" / "readers"  # readers that are available by name
SAMPLED = 4096  # number of values of each weight matrix in the fingerprint of a model
_KEY = re.compile(r"base_model\.model\.(?P<path>.+)\.lora_(?P<half>[AB])\.weight")


@dataclass(frozen=True)
class Lora:
    """Low-rank changes of linear layers: ``scaling * B A x`` is added to a layer's output for the input ``x``.

    Attributes:
        weights: ``A [rank, in]`` and ``B [out, rank]`` by the layer's path in the model.
    """

    weights: Mapping[str, tuple[Tensor, Tensor]]
    scaling: float


class _ActiveReader:
    """An active reader: the first position that it changes in each sequence, and the number of cached positions."""

    def __init__(self, starts: Sequence[int]) -> None:
        self.starts = starts
        self.n_cached = 0


_active: ContextVar[_ActiveReader | None] = ContextVar("ragbias_reading", default=None)


@contextmanager
def apply_reader(model: PreTrainedModel, lora: Lora, starts: Sequence[int]) -> Iterator[None]:
    """Apply a reader in this thread or task. In sequence ``b``, it begins at ``starts[b]``, which counts padding."""
    state = _ActiveReader(starts)

    def record_cached_columns(decoder: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> None:
        if _active.get() is state and kwargs is not None:  # None if another thread is removing a hook
            cache = kv_cache_of(kwargs)
            state.n_cached = 0 if cache is None else int(cache.get_seq_length())

    with ExitStack() as stack:
        decoder = structure_of(model).decoder
        stack.callback(decoder.register_forward_pre_hook(record_cached_columns, with_kwargs=True).remove)
        for path, (down, up) in lora.weights.items():
            hook = _make_hook(state, down, up, lora.scaling)
            stack.callback(model.get_submodule(path).register_forward_hook(hook).remove)
        outer = _active.get()
        _active.set(state)
        try:
            yield
        finally:
            _active.set(outer)


def _make_hook(state: _ActiveReader, down: Tensor, up: Tensor, scaling: float) -> Any:
    def add(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
        if _active.get() is not state:
            return
        starts = [max(0, start - state.n_cached) for start in state.starts]
        first = min(starts)
        if first >= output.shape[1]:
            return
        hidden = args[0][:, first:].to(down.dtype)
        delta = (hidden @ down.T @ up.T * scaling).to(output.dtype)
        if max(starts) > first:
            columns = torch.arange(first, output.shape[1], device=output.device)
            after = columns >= torch.tensor(starts, device=output.device)[:, None]
            delta = delta.where(after[..., None], 0)
        output[:, first:].add_(delta)  # in place; += would also assign the view to the leaf tensor

    return add


def target_layers(model: PreTrainedModel) -> dict[str, nn.Linear]:
    """Return the decoder's linear layers by path, without experts and routers, whose inputs lack a position axis."""
    structure = structure_of(model)
    layers = structure.decoder.get_submodule(structure.architecture.layers)
    paths = {module: path for path, module in model.named_modules()}
    skipped = ("expert", "router", ".gate.", "shared_")
    return {
        paths[module]: module
        for module in layers.modules()
        if isinstance(module, nn.Linear) and not any(word in f"{paths[module]}." for word in skipped)
    }


def fingerprint(model: PreTrainedModel) -> str:
    """Return a digest of a model's weights. It is the same on all devices, and in float32 and bfloat16."""
    digest = hashlib.sha256()
    for path, weight in model.named_parameters():
        flat = weight.detach().reshape(-1)
        sample = flat[:: max(1, len(flat) // SAMPLED) | 1]  # an odd step samples all columns
        if sample.is_floating_point():
            sample = sample.to(torch.bfloat16).view(torch.int16)
        digest.update(f"{path} {len(flat)} ".encode() + sample.cpu().numpy().tobytes())
    return digest.hexdigest()[:16]


_loaded: WeakKeyDictionary[PreTrainedModel, dict[tuple[Any, ...], Lora]] = WeakKeyDictionary()


def check_readers(methods: Iterable[Method]) -> None:
    """Raise ``ReaderError`` if the folder of a method's reader is incomplete or belongs to another method."""
    for method in methods:
        if method.reader:
            _read_record(method, _find_files(method)[0])


def reader_of(model: PreTrainedModel, method: Method, name: str = "") -> Lora:
    """Load a method's reader onto the devices of the model's layers, or return it if it is loaded already.

    ``name`` is the model's name in errors. Raise ``ReaderError`` if the reader is damaged or does not fit the model.
    """
    folder, files = _find_files(method)
    version = sum(0 if weight.is_inference() else weight._version for weight in model.parameters())
    key = folder.resolve(), files, repr(method), model.device, version
    loaded = _loaded.setdefault(model, {})
    if key not in loaded:
        loaded[key] = _load_reader(model, method, folder, name or Path(model.config._name_or_path).name)
    return loaded[key]


def shipped_readers() -> list[str]:
    """Return the names of the readers that this package contains."""
    return sorted(folder.name for folder in SHIPPED.iterdir() if folder.is_dir())


def reader_folder(reader: str) -> Path:
    """Return the folder of a reader, given its name or path. An existing folder takes precedence over a name."""
    folder = Path(reader).expanduser()
    if reader in shipped_readers() and not folder.exists():
        return SHIPPED / reader
    return folder


def _find_files(method: Method) -> tuple[Path, tuple[tuple[int, int], ...]]:
    """Return the folder of a reader, and the modification time and size of each file."""
    folder = reader_folder(method.reader)
    try:
        found = [(folder / name).stat() for name in FILES]
        return folder, tuple((status.st_mtime_ns, status.st_size) for status in found)
    except (OSError, ValueError) as error:
        reason = "is incomplete" if os.path.isdir(folder) else "is not a folder"
        if os.path.isdir(folder / PARTIAL):
            reason = "contains an unfinished training, which the same `ragbias adapt` command finishes"
        raise ReaderError(
            f"reader {method.reader!r} {reason}; expected {', '.join(map(repr, shipped_readers()))} or a folder with "
            f"{', '.join(FILES)}, which `ragbias adapt --out FOLDER` writes"
        ) from error


class _Record(NamedTuple):
    """The description of a reader. ``model`` and ``fingerprint`` are those of its base model."""

    model: str
    fingerprint: str
    supported: bool  # whether the receipt shows that the reader helps
    rank: int
    scaling: float


def _read_record(method: Method, folder: Path) -> _Record:
    record = _read_json(folder / READER)
    peft = _read_json(folder / PEFT)
    try:
        trained_for = str(record["method"])
        model = record["model"]["name"]
        weights = record["model"]["fingerprint"]
        supported = bool(record["receipt"]["supported"])
        rank = int(peft["r"])
        scaling = float(peft["lora_alpha"]) / rank
    except (KeyError, TypeError, ValueError, ArithmeticError) as error:
        raise _damaged_error(folder / READER, f"and {PEFT} do not describe a reader ({error!r})") from error
    changed = [name for name in UNSUPPORTED if peft.get(name)]
    if changed or not math.isfinite(scaling):
        raise _damaged_error(folder / PEFT, f"has {', '.join(changed) or 'no finite scaling'}, which is not supported")
    if get(trained_for) != replace(method, reader=""):
        chosen = method.name if trained_for != method.name else format_method(replace(method, reader=""))
        raise ReaderError(
            f"reader {method.reader!r} was trained for {trained_for}, but the method is {chosen}; use method="
            f"{trained_for!r} (--method {trained_for}), or train a reader with `ragbias adapt --method {chosen}`"
        )
    return _Record(model, weights, supported, rank, scaling)


def _load_reader(model: PreTrainedModel, method: Method, folder: Path, name: str) -> Lora:
    record = _read_record(method, folder)
    if any(weight.is_meta for weight in model.parameters()):
        raise ReaderError("readers need the whole model on its devices; load it without offloading")
    weights = fingerprint(model)
    if weights != record.fingerprint:
        raise ReaderError(
            f"reader {method.reader!r} was trained for {record.model}, but this model is {name}: its weights in "
            f"{model.dtype} have the fingerprint {weights}, not {record.fingerprint}; load {record.model} in float32 "
            "or bfloat16, or train another reader with `ragbias adapt`"
        )
    if not record.supported:
        warn(
            f"reader {method.reader!r}: its receipt does not show that it improves {method.name}; see reader.json",
            UnsupportedReaderWarning,
        )
    return Lora(_load_weights(model, folder / WEIGHTS, record.rank), record.scaling)


def _damaged_error(file: Path, reason: str | Exception) -> ReaderError:
    remedy = "make the file readable" if isinstance(reason, OSError) else "train it again"
    if SHIPPED in file.parents:
        remedy = "reinstall ragbias"
    if isinstance(reason, Exception):
        reason = f"cannot be read ({reason})"
    return ReaderError(f"reader {str(file.parent)!r}: {file.name} {reason}; {remedy}")


def _read_json(file: Path) -> Any:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise _damaged_error(file, error) from error


def _load_weights(model: PreTrainedModel, file: Path, rank: int) -> dict[str, tuple[Tensor, Tensor]]:
    try:
        tensors = load_file(file)
    except (OSError, SafetensorError) as error:
        raise _damaged_error(file, error) from error
    halves: dict[str, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        match = _KEY.fullmatch(key)
        if match is None:
            raise _damaged_error(file, f"contains {key!r}, which is not part of a LoRA of linear layers")
        halves.setdefault(match["path"], {})[match["half"]] = tensor
    layers = target_layers(model)
    weights = {}
    for path, pair in halves.items():
        layer = layers.get(path)
        if layer is None or pair.keys() != {"A", "B"}:
            raise _damaged_error(file, f"changes {path!r}, which is not a linear layer of the decoder")
        if pair["A"].shape != (rank, layer.in_features) or pair["B"].shape != (layer.out_features, rank):
            raise _damaged_error(file, f"does not fit the model's layer {path!r} with rank {rank}")
        device = layer.weight.device
        weights[path] = pair["A"].to(device, torch.float32), pair["B"].to(device, torch.float32)
    return weights
