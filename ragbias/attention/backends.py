"""Which code computes the primitive: ``torch``, ``triton`` or ``flash``.

- ``torch`` runs everywhere.
- ``triton`` runs on CUDA (in Triton's interpreter on CPU): attention and importances in fused kernels.
- ``flash`` runs on CUDA: attention on flash-attn wherever all queries of a head see a segment at one place. What
  flash-attn has no notion of (places that differ by query, bounds, a bias by segment, importances) is computed as
  ``torch`` does it; that is part of this backend.
- ``auto`` is ``triton`` for CUDA tensors that it can compute, else ``torch``.

A backend that was named and cannot compute a case raises; only ``auto`` chooses.
"""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor

from ragbias.attention.encoding import Alibi
from ragbias.attention.keys import Scoring
from ragbias.errors import BackendError

BACKENDS = ("auto", "torch", "triton", "flash")
INSTALL = {"triton": "triton", "flash": "flash_attn"}
MAX_DIM = 256  # of a head, for triton and flash


@cache
def _installed(backend: str) -> bool:
    return find_spec(INSTALL[backend]) is not None


def check_backend(backend: str) -> None:
    """Raise ``BackendError`` for a backend that is unknown or not installed."""
    if backend not in BACKENDS:
        raise BackendError(f"unknown backend {backend!r}; expected one of {', '.join(BACKENDS)}")
    if backend in INSTALL and not _installed(backend):
        raise BackendError(f"backend {backend!r} needs {INSTALL[backend]}; pip install 'ragbias[{backend}]'")


def chosen(query: Tensor, scoring: Scoring) -> str:
    """The backend for queries ``[..., d]`` of a layer: ``"torch"``, ``"triton"`` or ``"flash"``.

    Raises:
        BackendError: the backend was named and cannot compute this case.
    """
    if scoring.backend == "torch" or (scoring.backend == "auto" and query.device.type != "cuda"):
        return "torch"
    backend = "triton" if scoring.backend == "auto" else scoring.backend
    if scoring.backend == "auto" and not _installed(backend):
        return "torch"
    check_backend(backend)
    obstacle = _obstacle(backend, query, scoring)
    if obstacle and scoring.backend != "auto":
        raise BackendError(f"backend {backend!r} {obstacle}; take 'torch' or 'auto'")
    return "torch" if obstacle else backend


def _obstacle(backend: str, query: Tensor, scoring: Scoring) -> str:
    """What keeps a backend other than ``torch`` from this case, in words; empty if nothing does."""
    dtypes = (torch.float16, torch.bfloat16, *([torch.float32] if backend == "triton" else []))
    if query.device.type != "cuda" and not (backend == "triton" and _interprets()):
        return f"runs on CUDA, and the tensors are on {query.device.type!r}"
    if query.dtype not in dtypes:
        return f"computes in {', '.join(str(dtype)[6:] for dtype in dtypes)}, not in {str(query.dtype)[6:]}"
    if query.shape[-1] > MAX_DIM:
        return f"knows heads of up to {MAX_DIM} dimensions, not of {query.shape[-1]}"
    if isinstance(scoring.encoding, Alibi):
        return "does not know ALiBi"
    if backend == "flash" and scoring.window is not None:
        return "does not know sliding windows by assigned position"
    if torch.is_grad_enabled() and query.requires_grad:
        return "computes no gradients"
    return ""


def _interprets() -> bool:
    from ragbias.attention import triton_backend

    return triton_backend.INTERPRETED
