"""Positional encodings, and types that describe which keys a query sees and how a layer scores them.

Scores depend only on differences of positions. Take a query at position ``p``, and a key at offset ``t`` of a segment
that starts at ``s``. The key is encoded once, at ``t``, and the query at ``p - s``. If the segment moves, only the
encoding of the query changes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

Segments = Sequence[tuple[int, int]]
KeyRanges = tuple[Tensor, Tensor]


def select(x: Tensor, segments: Segments) -> Tensor:
    """Return the keys or values ``[heads, K, d]`` of the segments, in order. Adjacent segments need no copy."""
    spans: list[tuple[int, int]] = []
    for begin, end in segments:
        if spans and spans[-1][1] == begin:
            begin = spans.pop()[0]
        spans.append((begin, end))
    pieces = [x[:, begin:end] for begin, end in spans]
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim=1)


def segment_of_key(segments: Segments, device: torch.device) -> Tensor:
    """Return the index of each key's segment, int64 ``[K]``, for the keys of all segments in order."""
    lengths = [end - begin for begin, end in segments]
    repeats = torch.tensor(lengths, device=device)
    return torch.arange(len(lengths), device=device).repeat_interleave(repeats, output_size=sum(lengths))


def concatenate(parts: Sequence[tuple[Tensor, Tensor]], dim: int = 1) -> tuple[Tensor, Tensor]:
    """Concatenate outputs ``[H, Q, d]`` and LSEs ``[H, Q]`` along queries, or along heads with ``dim=0``."""
    if len(parts) == 1:
        return parts[0]
    outputs, lses = zip(*parts, strict=True)
    return torch.cat(outputs, dim=dim), torch.cat(lses, dim=dim)


def repeat_heads(x: Tensor, heads: int) -> Tensor:
    """Repeat each head of keys or values: ``[..., G, K, d]`` becomes ``[..., heads, K, d]``."""
    return x if x.shape[-3] == heads else x.repeat_interleave(heads // x.shape[-3], dim=-3)


def causal_bounds(segments: Segments, queries: int, device: torch.device) -> KeyRanges:
    """Return ``bounds`` for ``attend`` that are equivalent to ``causal``."""
    begin, end = segments[-1]
    first_hidden = torch.arange(end - begin - queries + 1, end - begin + 1, device=device)
    return torch.zeros_like(first_hidden), first_hidden


def visibility_mask(bounds: KeyRanges, keys: int) -> Tensor:
    """Return bool ``[Q, K]``, true where a query may see a key."""
    first, end = bounds
    offsets = torch.arange(keys, device=first.device)
    return (offsets >= first[:, None]) & (offsets < end[:, None])


class Encoding:
    """Base class of positional encodings. The base class itself leaves queries and keys unchanged."""

    def __call__(self, x: Tensor, positions: Tensor) -> Tensor:
        """Encode queries or keys ``[..., d]`` at ``positions`` relative to the start of a segment."""
        return x

    def remove(self, x: Tensor, positions: Tensor) -> Tensor:
        """Remove the encoding at ``positions``. This is the inverse of ``__call__``."""
        return x

    def move(self, query: Tensor, key: Tensor, segments: Segments, starts: Tensor) -> tuple[Tensor, Tensor]:
        """Select the keys of the segments, and move segment ``j`` to position ``starts[:, j]``.

        ``query`` is already encoded. ``key`` is ``[G, K, d]``, with ``K'`` keys in the segments. ``starts`` are int64
        ``[H or 1, n]``, non-negative.

        Return the queries and the moved keys. The order of the dimensions ``d`` may change, in the same way for queries
        and keys. The moved keys are ``[H, K', d]`` if they have a position encoding and ``starts`` has ``H`` rows.
        Otherwise they are ``[G, K', d]``.
        """
        return query, select(key, segments)

    def divided(self, by: float) -> Encoding:
        """Return the encoding for scores that are divided by ``by``. Only ALiBi changes: it divides its slopes."""
        return self

    def bias(self, relative: Tensor, keys: int) -> Tensor | None:
        """Return a bias ``[H, Q, K]`` or None. ``relative`` ``[H or 1, Q]`` is query position minus segment start."""
        return None


class Rotary(Encoding):
    """Rotary position embedding: ``<R(p) q, R(s + t) k> = <R(p - s) q, R(t) k>``.

    ``R(p)`` rotates to position ``p``. The key ``k`` is at offset ``t`` of a segment that starts at ``s``.

    Args:
        frequencies: float32 ``[r/2]``, angle per position. The first ``r`` of the ``d`` dimensions are rotated.
        scaling: factor of cos and sin, for yarn and longrope.
        interleaved: whether the pairs are ``(x[2i], x[2i + 1])`` instead of ``(x[i], x[i + r/2])``.

    Source: Su et al., RoFormer, arXiv 2104.09864.
    """

    def __init__(self, frequencies: Tensor, scaling: float = 1.0, interleaved: bool = False) -> None:
        self.frequencies = frequencies.float()
        self.scaling = scaling
        self.interleaved = interleaved
        self._tables: dict[torch.device, tuple[Tensor, Tensor]] = {}

    def __call__(self, x: Tensor, positions: Tensor) -> Tensor:
        """Rotate ``x`` ``[..., d]`` to ``positions`` (int64 or float), which broadcast against ``x[..., 0]``."""
        if positions.numel() == 0:
            return x
        compute = self._cos_sin if positions.is_floating_point() else self._cos_sin_from_table
        cos, sin = compute(positions)
        return rotate(x, cos * self.scaling, sin * self.scaling, self.interleaved)

    def remove(self, x: Tensor, positions: Tensor) -> Tensor:
        return (self(x.float(), -positions) / self.scaling**2).to(x.dtype)

    def move(self, query: Tensor, key: Tensor, segments: Segments, starts: Tensor) -> tuple[Tensor, Tensor]:
        turns = torch.complex(*self._cos_sin_from_table(starts))  # without scaling, which the keys already have
        turns = turns.index_select(1, segment_of_key(segments, key.device))  # [H or 1, K', r/2]
        query = self._with_adjacent_pairs(query)
        key = self._with_adjacent_pairs(select(key, segments))[:, None]
        size = 2 * turns.shape[-1]
        pairs = torch.view_as_complex(key[..., :size].float().unflatten(-1, (-1, 2)))
        heads = max(1, len(starts) // len(key))  # query heads of a key head
        turned = pairs * turns.unflatten(0, (-1, heads))
        moved = torch.view_as_real(turned).flatten(-2).to(key.dtype)
        if size < key.shape[-1]:
            moved = torch.cat((moved, key[..., size:].expand(*moved.shape[:-1], -1)), dim=-1)
        return query, moved.flatten(0, 1)

    def _with_adjacent_pairs(self, x: Tensor) -> Tensor:
        """Reorder the dimensions of ``x`` ``[..., d]`` so that both dimensions of a rotary pair are adjacent."""
        if self.interleaved:
            return x
        size = 2 * self.frequencies.shape[-1]
        pairs = x[..., :size].unflatten(-1, (2, -1)).transpose(-1, -2).flatten(-2)
        return pairs if size == x.shape[-1] else torch.cat((pairs, x[..., size:]), dim=-1)

    def _cos_sin_from_table(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        low, high = torch.stack(positions.aminmax()).tolist()
        if low < 0:  # some positions are before the start of a segment
            return self._cos_sin(positions)
        cos, sin = self._table(high + 1, positions.device)
        return cos[positions], sin[positions]

    def _table(self, length: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return cos and sin at positions ``0, 1, ...``, each ``[>= length, r/2]``. The tables grow on demand."""
        table = self._tables.get(device)
        if table is None or table[0].shape[0] < length:
            size = max(length, 256 if table is None else 2 * table[0].shape[0])
            table = self._tables[device] = self._cos_sin(torch.arange(size, device=device))
        return table

    def _cos_sin(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        angles = positions[..., None].float() * self.frequencies.to(positions.device)
        return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False) -> Tensor:
    """Rotate the first ``r`` dimensions of ``x`` pair by pair, in float32. The result has the dtype of ``x``.

    Args:
        x: ``[..., d]``.
        cos, sin: ``[..., r/2]``, broadcast over the leading dimensions of ``x``.
        interleaved: whether the pairs are ``(x[2i], x[2i + 1])`` instead of ``(x[i], x[i + r/2])``.
    """
    size = 2 * cos.shape[-1]
    rotary = x[..., :size].float()
    if interleaved:
        left, right = rotary[..., ::2], rotary[..., 1::2]
    else:
        left, right = rotary.chunk(2, dim=-1)
    turned = torch.addcmul(left * cos, right, sin, value=-1), torch.addcmul(right * cos, left, sin)
    joined = torch.stack(turned, dim=-1).flatten(-2) if interleaved else torch.cat(turned, dim=-1)
    result = joined.to(x.dtype)
    if size == x.shape[-1]:
        return result
    return torch.cat((result, x[..., size:].expand(*result.shape[:-1], -1)), dim=-1)


class Alibi(Encoding):
    """Attention with linear biases. Scores are reduced by the head's slope times the distance between query and key.

    Args:
        slopes: float32 ``[H]``.

    Source: Press et al., Train Short, Test Long, arXiv 2108.12409.
    """

    def __init__(self, slopes: Tensor) -> None:
        self.slopes = slopes

    def divided(self, by: float) -> Alibi:
        return Alibi(self.slopes / by)

    def bias(self, relative: Tensor, keys: int) -> Tensor:
        distance = (relative[..., None] - torch.arange(keys, device=relative.device)).abs()
        return -self.slopes.to(distance.device)[:, None, None] * distance


@dataclass(frozen=True)
class Scoring:
    """How a layer computes its attention scores.

    Attributes:
        encoding: positional encoding.
        scale: scaling factor of the scores, usually ``d ** -0.5``.
        softcap: scores become ``softcap * tanh(score / softcap)``; None leaves them unchanged.
        window: keys at a distance of ``window`` positions or more are hidden; None hides no key.
        backend: see ``ragbias.attention.primitive``.
    """

    encoding: Encoding
    scale: float
    softcap: float | None = None
    window: int | None = None
    backend: str = "auto"

    def divided(self, by: float) -> Scoring:
        """Return a scoring with all scores divided by ``by`` > 0."""
        cap = None if self.softcap is None else self.softcap / by
        return replace(self, encoding=self.encoding.divided(by), scale=self.scale / by, softcap=cap)

    @property
    def position_in_keys(self) -> bool:
        """Whether scores depend only on encoded queries and keys. Sliding windows and ALiBi also need distances."""
        return self.window is None and not isinstance(self.encoding, Alibi)


@dataclass(frozen=True)
class Group:
    """Queries that see the same segments of keys: the last segment causally, all others fully.

    Attributes:
        queries: span of the queries.
        position: position of the first query; the other queries follow without gaps.
        segments: spans of keys.
        starts: positions of the segments, int64 ``[H or 1, n]``.
    """

    queries: tuple[int, int]
    position: int
    segments: Segments
    starts: Tensor


@dataclass(frozen=True)
class Visible:
    """The keys that the queries of a call see. For the fields, see ``primitive.attend``."""

    segments: Segments
    starts: Tensor | None = None
    bias: Sequence[float] | None = None
    causal: bool = False
    bounds: KeyRanges | None = None

    @property
    def by_query(self) -> bool:
        """Whether the positions of segments differ between queries."""
        return self.starts is not None and self.starts.shape[1] > 1


class EncodedKeys:
    """A growing buffer of encoded keys. Each decoding step encodes only the new keys."""

    SPARE = 64  # a full buffer grows by at least this many keys

    def __init__(self) -> None:
        self._buffer: Tensor | None = None
        self._count = 0

    def update(self, key: Tensor, encode: Callable[[Tensor, int], Tensor]) -> Tensor:
        """Encode the new keys in ``key`` ``[..., K, d]``, and return all encoded keys.

        ``encode`` receives the new keys and the index of the first new key. The result is valid until the next call.
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
