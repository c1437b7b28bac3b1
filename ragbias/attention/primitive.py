"""The attention primitive: softmax attention and LSE over segments of keys at assigned positions.

``segment_mass`` and ``document_mass`` measure the attention to documents "without positions": queries and keys have no
position encoding. Some methods order documents by this measure.

Shapes are for one sequence: ``H`` query heads, ``G`` key heads, ``Q`` queries, ``K`` keys, ``n`` segments, head
dimension ``d``. With ``H = G * group``, query head ``h`` reads key head ``h // group``. A segment is a span
``(begin, end)`` of keys. Segments may be in any order, with gaps. Results have the order of the given segments.
Scores, softmaxes and log-sum-exps (LSE) are float32. Outputs have the dtype of the values.

The functions are computed by one of these backends:

- ``torch`` runs everywhere.
- ``triton`` runs on CUDA, or on CPU in Triton's interpreter. It has fused kernels for attention and for the importance
  of documents (the attention that they get).
- ``flash`` runs FlashAttention 2 on CUDA. It uses ``torch`` for the importance of documents. It also uses ``torch`` if
  ``attend`` gets ``bounds``, ``bias``, or segment positions that differ between queries.
- ``auto`` uses ``triton`` for supported CUDA tensors, and ``torch`` otherwise. A self-check compares both backends once
  per device, dtype and head dimension. If they differ, ``auto`` warns and uses ``torch``.

All backends compute ``segment_scores`` and ``grouped_scores`` in PyTorch. If a backend was chosen by name and does not
support the tensors, it raises ``BackendError``.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Protocol, cast

import torch
from torch import Tensor

from ragbias.attention.keys import (
    Alibi,
    Group,
    KeyRanges,
    Rotary,
    Scoring,
    Segments,
    Visible,
    concatenate,
)
from ragbias.call_site import warn
from ragbias.errors import ArgumentError, BackendError, BackendFallbackWarning
from ragbias.extras import install_command

BACKENDS = ("auto", "torch", "triton", "flash")
PACKAGES = {"triton": "triton", "flash": "flash_attn"}
DTYPES = {"triton": (torch.float16, torch.bfloat16, torch.float32), "flash": (torch.float16, torch.bfloat16)}
MAX_DIM = 256  # largest head dimension for triton and flash

# The self-check runs on a small random prompt, with inputs of unit variance.
TOLERANCES = {torch.float32: 2e-3, torch.float16: 1e-2, torch.bfloat16: 6e-2}
HEADS, KEY_HEADS = 4, 2
PREFIX, DOCUMENTS, SUFFIX = 5, ((5, 140), (140, 157), (157, 230)), 9  # the longest document fills a block of rows
TOKENS = DOCUMENTS[-1][1] + SUFFIX

_auto_device = "cuda"  # device type on which ``auto`` may use triton; tests change it
_reasons_against_triton: dict[tuple[torch.device, torch.dtype, int], str] = {}  # if empty, ``auto`` uses triton
_lock = threading.Lock()


class Backend(Protocol):
    """The functions of a backend's module. The module of ``triton`` also has ``compute_groups``."""

    def compute_attention(
        self, query: Tensor, key: Tensor, value: Tensor, positions: Tensor, scoring: Scoring, visible: Visible
    ) -> tuple[Tensor, Tensor]: ...
    def segment_mass(self, query: Tensor, key: Tensor, segments: Segments, scoring: Scoring, total: bool) -> Tensor: ...
    def document_mass(self, query: Tensor, key: Tensor, spans: Segments, scoring: Scoring) -> Tensor: ...


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    positions: Tensor,
    scoring: Scoring,
    segments: Segments | None = None,
    starts: Tensor | None = None,
    bias: Sequence[float] | None = None,
    causal: bool = False,
    bounds: KeyRanges | None = None,
) -> tuple[Tensor, Tensor]:
    """Compute attention to segments of keys. Segment ``j`` starts at position ``starts[..., j]``.

    Args:
        query: ``[H, Q, d]``, not encoded.
        key: ``[G, K, d]``, each key encoded at its offset inside its segment.
        value: ``[G, K, d]``.
        positions: int64 ``[Q]``, positions of the queries, possibly before the start of a segment.
        scoring: encoding, scale, softcap and window of the layer.
        segments: spans of the visible keys; None for one segment of all keys.
        starts: int64 ``[H or 1, Q or 1, n]``; None if all segments start at 0.
        bias: one number per segment, which is added to its scores; None adds nothing.
        causal: apply a causal mask to the last segment, aligned so that the last query sees every key.
        bounds: a pair of int64 ``[Q]``, instead of ``causal``. In the last segment, query ``i`` sees the keys at
            offsets ``bounds[0][i] <= offset < bounds[1][i]``.

    Returns:
        output ``[H, Q, d]`` and LSE float32 ``[H, Q]``; zeros and ``-inf`` for queries that see no key.

    Raises:
        ArgumentError: causal and bounds are both given.
        BackendError: the backend in ``scoring`` does not support these arguments, or its kernel fails.
    """
    if causal and bounds is not None:
        raise ArgumentError("causal and bounds both limit the visible keys; pass only one of them")
    segments = [(0, key.shape[1])] if segments is None else segments
    causal = causal and query.shape[1] > 1  # a single query sees all keys
    visible = Visible(segments, starts, bias, causal, bounds)
    backend = load_backend(choose_backend(query, scoring))
    return backend.compute_attention(query, key, value, positions, scoring, visible)


def attend_groups(
    query: Tensor, key: Tensor, value: Tensor, groups: Sequence[Group], scoring: Scoring
) -> tuple[Tensor, Tensor]:
    """Compute ``attend`` for groups of queries with different segments.

    Returns:
        output ``[H, Q', d]`` and LSE float32 ``[H, Q']`` for the ``Q'`` queries of all groups, group after group.
    """
    name = choose_backend(query, scoring)
    if name == "triton":  # computes all groups in one launch
        triton_backend = import_module("ragbias.attention.triton_backend")
        result: tuple[Tensor, Tensor] = triton_backend.compute_groups(query, key, value, groups, scoring)
        return result
    backend = load_backend(name)
    parts = []
    for group in groups:
        begin, end = group.queries
        positions = torch.arange(group.position, group.position + end - begin, device=query.device)
        visible = Visible(group.segments, group.starts[:, None], causal=True)
        parts.append(backend.compute_attention(query[:, begin:end], key, value, positions, scoring, visible))
    return concatenate(parts)


@torch.no_grad()
def segment_mass(query: Tensor, key: Tensor, segments: Segments, scoring: Scoring, total: bool = False) -> Tensor:
    """Return how each query's attention is divided between the segments, without positions.

    Args:
        query, key: ``[H, Q, d]`` and ``[G, K, d]``.
        scoring: only its scale and softcap are used.
        total: whether to sum over the queries.

    Returns:
        float32 ``[H, Q, n]``, or ``[H, 1, n]`` with ``total``. The shares of each query sum to 1.
    """
    return load_backend(choose_backend(query, scoring)).segment_mass(query, key, segments, scoring, total)


@torch.no_grad()
def document_mass(query: Tensor, key: Tensor, spans: Segments, scoring: Scoring) -> Tensor:
    """Return how much each document attends to every other document, without positions.

    Args:
        query, key: ``[H, K, d]`` and ``[G, K, d]`` of the same tokens.
        spans: the ``n`` documents, ascending.
        scoring: only its scale and softcap are used.

    Returns:
        float32 ``[H, n, n]``. Entry ``[h, i, j]`` is the attention of document ``i`` to document ``j`` in head ``h``,
        summed over the tokens of both. The softmax runs over the tokens of all documents except ``i``. The diagonal
        is 0.
    """
    return load_backend(choose_backend(query, scoring)).document_mass(query, key, spans, scoring)


def check_backend(backend: str) -> None:
    """Raise ``BackendError`` for a backend that is unknown, not installed, or cannot be imported."""
    if backend not in BACKENDS:
        raise BackendError(f"unknown backend {backend!r}; expected one of {', '.join(BACKENDS)}")
    reason = _import_error(backend) if backend in PACKAGES else ""
    if reason:
        raise BackendError(f"backend {backend!r} {reason}")


def choose_backend(query: Tensor, scoring: Scoring) -> str:
    """Choose the backend for queries ``[..., d]``. Raise ``BackendError`` if a named backend does not support them."""
    if scoring.backend == "auto":
        if query.device.type != _auto_device:
            return "torch"
        if not _import_error("triton") and _unsupported("triton", query, scoring):
            return "torch"
        return "torch" if _reason_against_triton(query.device, query.dtype, query.shape[-1]) else "triton"
    check_backend(scoring.backend)
    reason = "" if scoring.backend == "torch" else _unsupported(scoring.backend, query, scoring)
    if reason:
        raise BackendError(f"backend {scoring.backend!r} {reason}; use 'torch' or 'auto'")
    return scoring.backend


def load_backend(name: str) -> Backend:
    """Return the module of a backend."""
    return cast(Backend, import_module(f"ragbias.attention.{name}_backend"))


@contextmanager
def kernel_errors(backend: str, *errors: type[Exception]) -> Iterator[None]:
    """Convert ``RuntimeError`` and ``errors`` to ``BackendError``. Errors for lack of memory stay unchanged."""
    converted: tuple[type[Exception], ...] = (RuntimeError, *errors)
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except converted as error:
        raise BackendError(
            f"backend {backend!r} failed with {type(error).__name__}: {error}; use backend='torch'"
        ) from error


def _reason_against_triton(device: torch.device, dtype: torch.dtype, dim: int) -> str:
    """Return the reason why ``auto`` does not use triton, or an empty string. Warn once about each reason."""
    case = device, dtype, dim
    with _lock:
        known = set(_reasons_against_triton.values())
        if case not in _reasons_against_triton:
            reason = _import_error("triton") or describe_difference("triton", *case)
            _reasons_against_triton[case] = reason
        reason = _reasons_against_triton[case]
    if reason and reason not in known:
        warn(f"backend 'auto' computes with 'torch': backend 'triton' {reason}", BackendFallbackWarning)
    return reason


@cache
def _import_error(backend: str) -> str:
    """Return the reason why a backend cannot be imported, or an empty string."""
    package = PACKAGES[backend]
    if find_spec(package) is None:
        return f"needs {package}; {install_command(backend)}"
    try:
        import_module(f"ragbias.attention.{backend}_backend")
    except Exception as error:  # packages for another driver or torch version raise errors of any class
        return f"cannot import {package}: {type(error).__name__}: {error}"
    return ""


def _unsupported(backend: str, query: Tensor, scoring: Scoring) -> str:
    """Return the reason why a backend other than ``torch`` does not support these queries, or an empty string."""
    if reason := _unsupported_device(backend, query.device):
        return reason
    if query.dtype not in DTYPES[backend]:
        supported = ", ".join(map(_dtype_name, DTYPES[backend]))
        return f"computes in {supported}, not in {_dtype_name(query.dtype)}"
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
    if device.type == "cuda":
        return ""
    if backend == "triton" and import_module("ragbias.attention.triton_backend").INTERPRETED:
        return ""
    return f"runs on CUDA, but the tensors are on {device.type!r}"


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def describe_difference(backend: str, device: torch.device, dtype: torch.dtype, dim: int) -> str:
    """Describe how a backend fails or differs from ``torch`` for this head dimension. Return "" if both agree."""
    random = torch.Generator().manual_seed(0)
    tensors = [torch.randn(heads, TOKENS, dim, generator=random) for heads in (HEADS, KEY_HEADS, KEY_HEADS)]
    frequencies = 10_000.0 ** -torch.linspace(0, 1, dim // 2 + 1)[:-1]
    scoring = Scoring(Rotary(frequencies), dim**-0.5)
    tolerance = TOLERANCES[dtype]
    try:
        with torch.no_grad():
            query, key, value = (tensor.to(device, dtype) for tensor in tensors)
            expected = _self_check_results(query, key, value, replace(scoring, backend="torch"))
            computed = _self_check_results(query, key, value, replace(scoring, backend=backend))
            for (name, right), (_, result) in zip(expected, computed, strict=True):
                error = float((result.float() - right.float()).abs().nan_to_num(torch.inf).max())
                if error > tolerance:
                    where = f"{_dtype_name(dtype)} with head dimension {dim} on {device}"
                    return f"computes {name} with an error of {error:.2g} in {where}; at most {tolerance:g} is allowed"
    except torch.OutOfMemoryError:
        raise
    except Exception as failure:  # compilers and drivers raise errors of any class
        cause = failure.__cause__ or failure
        return f"fails its self-check with {type(cause).__name__}: {cause}"
    return ""


def _self_check_results(query: Tensor, key: Tensor, value: Tensor, scoring: Scoring) -> Iterator[tuple[str, Tensor]]:
    """Compute attention and importances for a self-check. Yield each result with its name."""
    device, tail = key.device, TOKENS - SUFFIX
    positions = torch.arange(TOKENS, device=device)
    for result in attend(query, key, value, positions=positions, scoring=scoring, causal=True):
        yield "plain attention", result
    groups = []  # a document sees the prefix and the other documents fully, and itself causally
    for index, span in enumerate(DOCUMENTS):
        others = [other for other in DOCUMENTS if other != span]
        starts = torch.tensor([[0, 40, 90, 150 + index]], device=device).expand(HEADS, -1)
        groups.append(Group(span, 150 + index, [(0, PREFIX), *others, span], starts))
    for result in attend_groups(query, key, value, groups, scoring):
        yield "attention of documents", result
    starts = torch.tensor([0, 5, 140, 157, tail], device=device).expand(HEADS, SUFFIX, -1).clone()
    starts[..., 1:4] += torch.arange(HEADS * SUFFIX, device=device).view(HEADS, SUFFIX, 1) % 7  # by head and query
    results = attend(
        query[:, tail:],
        key,
        value,
        positions=positions[tail:],
        scoring=scoring,
        segments=[(0, PREFIX), *DOCUMENTS, (tail, TOKENS)],
        starts=starts,
        bias=[0.0, -0.5, -0.5, -0.5, 0.0],
        causal=True,
    )
    for result in results:
        yield "attention to documents", result
    yield "importances of documents", document_mass(query, key, DOCUMENTS, scoring) / TOKENS
    yield "importances for a token", segment_mass(query[:, -1:], key, DOCUMENTS, scoring)
