"""Segments of keys, their visibility and scoring, and what all backends share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ragbias.attention.encoding import Alibi, Encoding
from ragbias.errors import BackendError

Segments = Sequence[tuple[int, int]]
Bounds = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Scoring:
    """The scores of a layer.

    Attributes:
        encoding: positional encoding.
        scale: factor of the scores, usually ``d ** -0.5``.
        softcap: scores become ``softcap * tanh(score / softcap)``; None: unchanged.
        window: keys at an assigned distance of ``window`` or more are hidden; None: all are visible.
        backend: see ``ragbias.attention.backends``.
    """

    encoding: Encoding
    scale: float
    softcap: float | None = None
    window: int | None = None
    backend: str = "auto"

    def divided(self, by: float) -> Scoring:
        """Scores divided by a number greater than 0."""
        cap = None if self.softcap is None else self.softcap / by
        return replace(self, encoding=self.encoding.divided(by), scale=self.scale / by, softcap=cap)

    @property
    def position_in_keys(self) -> bool:
        """Whether scores depend on distance only through keys encoded at their positions."""
        return self.window is None and not isinstance(self.encoding, Alibi)


def listed(x: Tensor, segments: Segments) -> Tensor:
    """The keys or values ``[heads, K, d]`` of the segments in order; a view if they are adjacent."""
    pieces = [x[:, begin:end] for begin, end in joined(segments)]
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim=1)


def concatenated(parts: Sequence[tuple[Tensor, Tensor]], dim: int = 1) -> tuple[Tensor, Tensor]:
    """Concatenated outputs ``[H, Q, d]`` and LSEs ``[H, Q]``: along queries, or along heads with ``dim=0``."""
    if len(parts) == 1:
        return parts[0]
    outputs, lses = zip(*parts, strict=True)
    return torch.cat(outputs, dim=dim), torch.cat(lses, dim=dim)


def for_heads(x: Tensor, heads: int) -> Tensor:
    """Keys or values ``[..., G or H, K, d]`` for each of ``H`` query heads."""
    return x if x.shape[-3] == heads else x.repeat_interleave(heads // x.shape[-3], dim=-3)


def joined(segments: Segments) -> list[tuple[int, int]]:
    """The segments with adjacent ones merged."""
    if not segments:
        return []
    spans: list[tuple[int, int]] = []
    first, reached = segments[0]
    for begin, end in segments[1:]:
        if begin != reached:
            spans.append((first, reached))
            first = begin
        reached = end
    return [*spans, (first, reached)]


def causal_bounds(segments: Segments, queries: int, device: torch.device) -> Bounds:
    """The ``bounds`` of ``attend`` that equal ``causal``."""
    begin, end = segments[-1]
    first_not_seen = torch.arange(end - begin - queries + 1, end - begin + 1, device=device)
    return torch.zeros_like(first_not_seen), first_not_seen


def within(bounds: Bounds, keys: int) -> Tensor:
    """bool ``[Q, K]``, true where a query may see a key."""
    offsets = torch.arange(keys, device=bounds[0].device)
    return (offsets >= bounds[0][:, None]) & (offsets < bounds[1][:, None])


@dataclass(frozen=True)
class Group:
    """Queries that see the same segments of keys: the last one causally, the others whole.

    Attributes:
        queries: span of the queries.
        position: position of the first query; the others follow.
        segments: spans of keys.
        starts: positions of the segments, int64 ``[H or 1, n]``.
    """

    queries: tuple[int, int]
    position: int
    segments: Segments
    starts: Tensor


@dataclass(frozen=True)
class Visible:
    """The keys that the queries of a call see; fields as in ``primitive.attend``."""

    segments: Segments
    starts: Tensor | None = None
    bias: Sequence[float] | None = None
    causal: bool = False
    bounds: Bounds | None = None


class EncodedKeys:
    """A buffer of encoded keys, so that each step encodes only the new ones."""

    SPARE = 64  # a full buffer grows by at least this many keys

    def __init__(self) -> None:
        self._buffer: Tensor | None = None
        self._count = 0

    def extended(self, key: Tensor, encode: Callable[[Tensor, int], Tensor]) -> Tensor:
        """All keys, encoded.

        Args:
            key: ``[..., K, d]``, all keys so far, the new ones last.
            encode: encodes the new keys, given the index of the first one.

        Returns:
            ``[..., K, d]``, valid until the next call.
        """
        total = key.shape[-2]
        new = encode(key[..., self._count :, :], self._count)
        if self._buffer is None or total > self._buffer.shape[-2]:
            old = [] if self._buffer is None else [self._buffer[..., : self._count, :]]
            spare = new.new_empty(*new.shape[:-2], max(self.SPARE, total // 8), new.shape[-1])
            self._buffer = torch.cat((*old, new, spare), dim=-2)
        else:
            self._buffer[..., self._count : total, :] = new
        self._count = total
        return self._buffer[..., :total, :]


def portion(count: int, most: int) -> int:
    """The size, at most ``most`` and at least one, that divides ``count`` into the fewest, nearly equal portions."""
    portions = -(-count // max(1, most))
    return -(-count // max(1, portions))


@contextmanager
def launching(backend: str, *errors: type[Exception]) -> Iterator[None]:
    """Raise ``BackendError`` for a kernel that cannot be compiled or launched; out of memory passes.

    Args:
        errors: what the backend raises besides ``RuntimeError``.
    """
    refusals: tuple[type[Exception], ...] = (RuntimeError, *errors)
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except refusals as error:
        raise BackendError(
            f"backend {backend!r} failed with {type(error).__name__}: {error}; use backend='torch'"
        ) from error
