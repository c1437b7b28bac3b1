"""Compare a backend with ``torch`` on a small random prompt before ``backend="auto"`` trusts it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import Tensor

from ragbias.attention.encoding import Rotary
from ragbias.attention.keys import Group, Scoring
from ragbias.attention.mass import document_mass, segment_mass
from ragbias.attention.primitive import attend, attend_groups

TOLERANCES = {torch.float32: 2e-3, torch.float16: 1e-2, torch.bfloat16: 6e-2}  # for inputs of unit variance
HEADS, KEY_HEADS = 4, 2
PREFIX, DOCUMENTS, SUFFIX = 5, ((5, 140), (140, 157), (157, 230)), 9  # one document fills the largest block of rows
TOKENS = DOCUMENTS[-1][1] + SUFFIX

Results = Iterator[tuple[str, Tensor]]


def difference(backend: str, device: torch.device, dtype: torch.dtype, dim: int) -> str:
    """Describe how a backend fails or differs from ``torch`` for heads of ``dim`` dimensions; empty if it agrees."""
    random = torch.Generator().manual_seed(0)
    tensors = [torch.randn(heads, TOKENS, dim, generator=random) for heads in (HEADS, KEY_HEADS, KEY_HEADS)]
    scoring = Scoring(Rotary(10_000.0 ** -torch.linspace(0, 1, dim // 2 + 1)[:-1]), dim**-0.5)
    tolerance = TOLERANCES[dtype]
    try:
        with torch.no_grad():
            query, key, value = (tensor.to(device, dtype) for tensor in tensors)
            expected, found = (
                _results(query, key, value, replace(scoring, backend=each)) for each in ("torch", backend)
            )
            for (name, right), (_, result) in zip(expected, found, strict=True):
                error = float((result.float() - right.float()).abs().nan_to_num(torch.inf).max())
                if error > tolerance:
                    where = f"{str(dtype)[6:]} with head dimension {dim} on {device}"
                    return f"computes {name} off by {error:.2g} in {where}; at most {tolerance:g} is allowed"
    except torch.OutOfMemoryError:
        raise
    except Exception as failure:  # compilers and drivers fail in many ways
        cause = failure.__cause__ or failure
        return f"fails its self-check with {type(cause).__name__}: {cause}"
    return ""


def _results(query: Tensor, key: Tensor, value: Tensor, scoring: Scoring) -> Results:
    """Each operation as the methods use it, named: documents, the tokens after them, and importances."""
    named: dict[str, Callable[[], tuple[Tensor, ...]]] = {
        "plain attention": lambda: attend(
            query, key, value, positions=_range(0, TOKENS, key), scoring=scoring, causal=True
        ),
        "attention of documents": lambda: attend_groups(query, key, value, _groups(key), scoring),
        "attention to documents": lambda: attend(
            query[:, -SUFFIX:],
            key,
            value,
            positions=_range(TOKENS - SUFFIX, TOKENS, key),
            scoring=scoring,
            segments=[(0, PREFIX), *DOCUMENTS, (TOKENS - SUFFIX, TOKENS)],
            starts=_starts(key),
            bias=[0.0, -0.5, -0.5, -0.5, 0.0],
            causal=True,
        ),
        "importances of documents": lambda: (document_mass(query, key, DOCUMENTS, scoring) / TOKENS,),
        "importances for a token": lambda: (segment_mass(query[:, -1:], key, DOCUMENTS, scoring),),
    }
    for name, compute in named.items():
        for result in compute():
            yield name, result


def _groups(key: Tensor) -> list[Group]:
    """Each document sees the prefix, the other documents whole and itself causally."""
    groups = []
    for index, span in enumerate(DOCUMENTS):
        others = [other for other in DOCUMENTS if other != span]
        starts = torch.tensor([[0, 40, 90, 150 + index]], device=key.device).expand(HEADS, -1)
        groups.append(Group(span, 150 + index, [(0, PREFIX), *others, span], starts))
    return groups


def _starts(key: Tensor) -> Tensor:
    """Positions of the segments that differ by head and query, ``[H, SUFFIX, n]``."""
    starts = torch.tensor([0, 5, 140, 157, TOKENS - SUFFIX], device=key.device).expand(HEADS, SUFFIX, -1).clone()
    starts[..., 1:4] += torch.arange(HEADS * SUFFIX, device=key.device).view(HEADS, SUFFIX, 1) % 7
    return starts


def _range(begin: int, end: int, like: Tensor) -> Tensor:
    return torch.arange(begin, end, device=like.device)
