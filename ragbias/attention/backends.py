"""The code that computes attention: ``torch``, ``triton`` or ``flash``.

- ``torch`` runs everywhere.
- ``triton`` runs on CUDA (in Triton's interpreter on CPU): attention and importances in fused kernels.
- ``flash`` runs on CUDA: FlashAttention 2 wherever all queries of a head see a segment at one position, and ``torch``
  for the rest (positions that differ by query, bounds, a bias by segment, importances).
- ``auto`` is ``triton`` for CUDA tensors that it supports and whose results agree with ``torch`` in a self-check, else
  ``torch``. The self-check runs once per device, dtype and head dimension; ``auto`` warns if it fails.

``segment_scores`` and ``grouped_scores`` run on PyTorch under every backend. A named backend that does not support a
case raises ``BackendError``; only ``auto`` falls back.
"""

from __future__ import annotations

import threading
from functools import cache
from importlib import import_module
from importlib.util import find_spec

import torch
from torch import Tensor

from ragbias.attention.encoding import Alibi
from ragbias.attention.keys import Scoring
from ragbias.call_site import warn
from ragbias.errors import BackendError

BACKENDS = ("auto", "torch", "triton", "flash")
PACKAGES = {"triton": "triton", "flash": "flash_attn"}
DTYPES = {
    "triton": (torch.float16, torch.bfloat16, torch.float32),
    "flash": (torch.float16, torch.bfloat16),
}
MAX_DIM = 256  # of a head, for triton and flash
FLASH_CAPABILITY = (8, 0)  # the oldest GPUs that FlashAttention 2 supports

_auto_device = "cuda"  # the device type on which ``auto`` considers triton
_verdicts: dict[tuple[torch.device, torch.dtype, int], str] = {}  # of self-checks: empty, or why triton is not used
_lock = threading.Lock()


class BackendFallbackWarning(UserWarning):
    """``backend="auto"`` computes with ``torch`` because Triton cannot be imported, fails or computes wrong results."""


def check_backend(backend: str) -> None:
    """Raise ``BackendError`` for a backend that is unknown, not installed, or cannot be imported."""
    if backend not in BACKENDS:
        raise BackendError(f"unknown backend {backend!r}; expected one of {', '.join(BACKENDS)}")
    if backend in PACKAGES and (reason := _import_error(backend)):
        raise BackendError(f"backend {backend!r} {reason}")


def chosen(query: Tensor, scoring: Scoring) -> str:
    """The backend for queries ``[..., d]`` of a layer: ``"torch"``, ``"triton"`` or ``"flash"``.

    Raises:
        BackendError: the backend was named and does not support this case.
    """
    if scoring.backend == "auto":
        if query.device.type != _auto_device:
            return "torch"
        if not _import_error("triton") and _unsupported("triton", query, scoring):
            return "torch"
        return "torch" if _verdict(query.device, query.dtype, query.shape[-1]) else "triton"
    check_backend(scoring.backend)
    if scoring.backend != "torch" and (reason := _unsupported(scoring.backend, query, scoring)):
        raise BackendError(f"backend {scoring.backend!r} {reason}; use 'torch' or 'auto'")
    return scoring.backend


def _verdict(device: torch.device, dtype: torch.dtype, dim: int) -> str:
    """Why ``auto`` does not use triton for heads of this kind; empty if it does. Found, and warned about, once."""
    case = device, dtype, dim
    if case in _verdicts:
        return _verdicts[case]
    with _lock:
        if case in _verdicts:  # another thread found it
            return _verdicts[case]
        reason = _import_error("triton")
        if not reason:
            self_check = import_module("ragbias.attention.self_check")  # it runs attention, which imports this module
            reason = self_check.difference("triton", device, dtype, dim)
        known = reason in _verdicts.values()
        _verdicts[case] = reason
    if reason and not known:
        warn(f"backend 'auto' computes with 'torch': backend 'triton' {reason}", BackendFallbackWarning)
    return reason


@cache
def _import_error(backend: str) -> str:
    """Why a backend cannot be imported; empty if it can."""
    package = PACKAGES[backend]
    if find_spec(package) is None:
        return f"needs {package}; pip install 'ragbias[{backend}]'"
    try:
        import_module(f"ragbias.attention.{backend}_backend")
    except Exception as error:  # a package for another driver or version of torch fails in many ways
        return f"cannot import {package}: {type(error).__name__}: {error}"
    return ""


def _unsupported(backend: str, query: Tensor, scoring: Scoring) -> str:
    """Why a backend other than ``torch`` does not support this case; empty if it does."""
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
