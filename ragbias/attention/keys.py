"""Segments of keys, which of them a query sees, and how a score is made."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ragbias.attention.encoding import Alibi, Encoding

Segments = Sequence[tuple[int, int]]
Bounds = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Scoring:
    """How a layer makes a score of a query and a key.

    Attributes:
        encoding: its positions.
        scale: factor of the scores, usually ``d ** -0.5``.
        softcap: scores go through ``softcap * tanh(score / softcap)``; None: they do not.
        window: keys at an assigned distance of ``window`` or more are hidden; None: none are.
        backend: what computes attention, see ``ragbias.attention.backends``.
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
        """Whether encoding keys at their positions, once for all queries, is all that depends on the distance."""
        return self.window is None and not isinstance(self.encoding, Alibi)


def listed(x: Tensor, segments: Segments) -> Tensor:
    """The keys or values ``[heads, K, d]`` of the segments, in their order; a view where they are adjacent."""
    pieces = [x[:, begin:end] for begin, end in joined(segments)]
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim=1)


def concatenated(parts: Sequence[tuple[Tensor, Tensor]], dim: int = 1) -> tuple[Tensor, Tensor]:
    """Outputs ``[H, Q, d]`` and LSEs ``[H, Q]`` one after the other: by query, or by head with ``dim=0``."""
    if len(parts) == 1:
        return parts[0]
    outputs, lses = zip(*parts, strict=True)
    return torch.cat(outputs, dim=dim), torch.cat(lses, dim=dim)


def for_heads(x: Tensor, heads: int) -> Tensor:
    """Keys or values ``[..., G or H, K, d]`` for each of ``H`` query heads."""
    return x if x.shape[-3] == heads else x.repeat_interleave(heads // x.shape[-3], dim=-3)


def joined(segments: Segments) -> list[tuple[int, int]]:
    """The segments, adjacent ones as one."""
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
    """``bounds`` of ``attend`` for ``causal``."""
    begin, end = segments[-1]
    first_not_seen = torch.arange(end - begin - queries + 1, end - begin + 1, device=device)
    return torch.zeros_like(first_not_seen), first_not_seen


def within(bounds: Bounds, keys: int) -> Tensor:
    """bool ``[Q, K]``, true where a query may see a key."""
    offsets = torch.arange(keys, device=bounds[0].device)
    return (offsets >= bounds[0][:, None]) & (offsets < bounds[1][:, None])


@dataclass(frozen=True)
class Group:
    """Queries that see the same segments of keys: all of them but the last one whole, the last one causally.

    Attributes:
        queries: span of the queries.
        position: of the first of them; the others follow.
        segments: spans of keys.
        starts: where the segments start, int64 ``[H or 1, n]``.
    """

    queries: tuple[int, int]
    position: int
    segments: Segments
    starts: Tensor


class EncodedKeys:
    """The keys of a sequence as a method encodes them, kept from step to step, so that only new ones are encoded."""

    SPARE = 64  # the fewest keys that a full buffer grows by

    def __init__(self) -> None:
        self._buffer: Tensor | None = None
        self._count = 0

    def extended(self, key: Tensor, encode: Callable[[Tensor, int], Tensor]) -> Tensor:
        """All keys, encoded.

        Args:
            key: ``[..., K, d]``, the keys so far, of which the last ones are new.
            encode: takes the new keys and the index of the first of them.

        Returns:
            ``[..., K, d]``, valid until the next call.
        """
        total = key.shape[-2]
        new = encode(key[..., self._count :, :], self._count)
        if self._buffer is None or total > self._buffer.shape[-2]:
            kept = [] if self._buffer is None else [self._buffer[..., : self._count, :]]
            spare = new.new_empty(*new.shape[:-2], max(self.SPARE, total // 8), new.shape[-1])
            self._buffer = torch.cat((*kept, new, spare), dim=-2)
        else:
            self._buffer[..., self._count : total, :] = new
        self._count = total
        return self._buffer[..., :total, :]
