"""Which code computes attention: ``torch``, ``triton`` or ``flash``.

- ``torch`` runs everywhere.
- ``triton`` runs on CUDA (in Triton's interpreter on CPU): attention and importances in fused kernels.
- ``flash`` runs on CUDA: attention on FlashAttention 2 wherever all queries of a head see a segment at one position.
  What FlashAttention cannot express (positions that differ by query, bounds, a bias by segment, importances) is
  computed as ``torch`` does it; that is part of this backend.
- ``auto`` is ``triton`` for CUDA tensors that it can compute, else ``torch``.

Scores that a method asks for as a matrix (``segment_scores``, ``grouped_scores``) are computed by PyTorch under every
backend. A backend that was named and cannot compute a case raises; only ``auto`` chooses, and warns once where Triton
should have run and does not.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from functools import cache, wraps
from importlib import import_module
from importlib.util import find_spec
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor

from ragbias.attention.encoding import Alibi
from ragbias.attention.keys import Scoring
from ragbias.attention.launch import LaunchError, case_of
from ragbias.errors import BackendError

BACKENDS = ("auto", "torch", "triton", "flash")
PACKAGES = {"triton": "triton", "flash": "flash_attn"}
DTYPES = {
    "triton": (torch.float16, torch.bfloat16, torch.float32),
    "flash": (torch.float16, torch.bfloat16),
}
MAX_DIM = 256  # of a head, for triton and flash
FLASH_CAPABILITY = (8, 0)  # the oldest GPUs that FlashAttention 2 runs on

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

_auto_device = "cuda"  # whose tensors ``auto`` gives to triton
_failed: set[tuple[object, ...]] = set()  # cases in which ``auto`` found out that triton does not run
_warned: set[str] = set()
_lock = threading.Lock()


class BackendFallbackWarning(UserWarning):
    """``backend="auto"`` computes with ``torch``, as Triton cannot be imported or launched."""


def check_backend(backend: str) -> None:
    """Raise ``BackendError`` for a backend that is unknown, not installed, or cannot be imported."""
    if backend not in BACKENDS:
        raise BackendError(f"unknown backend {backend!r}; expected one of {', '.join(BACKENDS)}")
    if backend in PACKAGES and (reason := _import_error(backend)):
        raise BackendError(f"backend {backend!r} {reason}")


def chosen(query: Tensor, scoring: Scoring) -> str:
    """The backend for queries ``[..., d]`` of a layer: ``"torch"``, ``"triton"`` or ``"flash"``.

    Raises:
        BackendError: the backend was named and cannot compute this case.
    """
    if scoring.backend == "auto":
        if query.device.type != _auto_device or case_of(query) in _failed:
            return "torch"
        if reason := _import_error("triton"):
            _warn_once(f"backend 'triton' {reason}")
            return "torch"
        return "torch" if _unsupported("triton", query, scoring) else "triton"
    check_backend(scoring.backend)
    if scoring.backend != "torch" and (reason := _unsupported(scoring.backend, query, scoring)):
        raise BackendError(f"backend {scoring.backend!r} {reason}; use 'torch' or 'auto'")
    return scoring.backend


def with_fallback(operation: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """The operation, computed by ``torch`` where ``auto`` chose a backend whose launch fails."""

    @wraps(operation)
    def attempt(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        try:
            return operation(*args, **kwargs)
        except LaunchError as error:
            if error.named:
                raise
            _failed.add(error.case)
            _warn_once(str(error))
        return operation(*args, **kwargs)

    return attempt


def _warn_once(reason: str) -> None:
    with _lock:
        if reason in _warned:
            return
        _warned.add(reason)
    warnings.warn(f"backend 'auto' computes with 'torch': {reason}", BackendFallbackWarning, stacklevel=3)


@cache
def _import_error(backend: str) -> str:
    """Why a backend cannot be imported, in words; empty if it can."""
    package = PACKAGES[backend]
    if find_spec(package) is None:
        reason = f"needs {package}; pip install 'ragbias[{backend}]'"
    else:
        try:
            import_module(f"ragbias.attention.{backend}_backend")
            return ""
        except Exception as error:  # a package for another driver or version of torch fails in many ways
            reason = f"cannot import {package}: {type(error).__name__}: {error}"
    return reason + (_other_flash() if backend == "flash" else "")


def _other_flash() -> str:
    """Names what is installed of FlashAttention that the backend does not call."""
    flash_attn = find_spec("flash_attn")
    if find_spec("flash_attn_interface") is not None:
        found = "FlashAttention 3 (flash_attn_interface)"
    elif flash_attn is not None and flash_attn.origin is None:  # a namespace package, which FlashAttention 2 is not
        found = "FlashAttention 4 (flash_attn.cute)"
    else:
        return ""
    return f"; {found} is installed, and this backend calls FlashAttention 2"


def _unsupported(backend: str, query: Tensor, scoring: Scoring) -> str:
    """Why a backend other than ``torch`` cannot compute this case, in words; empty if it can."""
    if reason := _unsupported_device(backend, query.device):
        return reason
    if query.dtype not in DTYPES[backend]:
        return f"computes in {', '.join(str(each)[6:] for each in DTYPES[backend])}, not in {str(query.dtype)[6:]}"
    if query.shape[-1] > MAX_DIM:
        return f"supports heads of up to {MAX_DIM} dimensions, not of {query.shape[-1]}"
    if isinstance(scoring.encoding, Alibi):
        return "does not support ALiBi"
    if backend == "flash" and scoring.window is not None:
        return "does not support sliding windows by assigned position"
    if torch.is_grad_enabled() and query.requires_grad:
        return "computes no gradients"
    return ""


def _unsupported_device(backend: str, device: torch.device) -> str:
    if device.type != "cuda":
        return "" if backend == "triton" and _interprets() else f"runs on CUDA, and the tensors are on {device.type!r}"
    if backend == "flash" and (capability := torch.cuda.get_device_capability(device)) < FLASH_CAPABILITY:
        needed, found = (".".join(map(str, each)) for each in (FLASH_CAPABILITY, capability))
        return f"needs a GPU of compute capability {needed} or newer, and this one has {found}"
    return ""


def _interprets() -> bool:
    from ragbias.attention import triton_backend

    return triton_backend.INTERPRETED
