"""Backend ``triton``: fused kernels that rotate queries for each segment and do not copy keys.

The kernels run on CUDA devices. With ``TRITON_INTERPRET=1`` they run in Triton's interpreter on CPU tensors, for tests.
The kernels sum without atomics, in an order that depends only on the lengths of the segments. Therefore repeated calls
give bit-identical results.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import cache, lru_cache, partial
from math import inf
from subprocess import SubprocessError
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor
from triton.errors import TritonError

from ragbias.attention import triton_kernels as kernels
from ragbias.attention.keys import Group, Rotary, Scoring, Segments, Visible
from ragbias.attention.primitive import kernel_errors

INTERPRETED = not isinstance(kernels.attention, triton.JITFunction)
PROGRAMS = 256  # minimum number of programs, about two per multiprocessor of a large GPU
SPLITS = 64  # maximum number of parts of the keys; parts occupy the whole GPU if there are few queries
KEYS_PER_PIECE = 128  # number of keys in a piece if keys are split
PACKED_ROWS = 64  # up to this number of rows, a tile contains all query heads of a key head
MAX_LSES = 2**25  # maximum number of LSEs in memory

Columns = tuple[tuple[int, int, int], ...]  # segments (begin, end, column)


class _Sizes(NamedTuple):
    """Block sizes of a launch. For ``packed`` see ``triton_kernels``."""

    packed: bool
    rows: int
    keys: int
    stages: int

    @property
    def warps(self) -> int:
        return 8 if self.rows >= 64 else 4  # keeps registers from spilling


class _Tables(NamedTuple):
    """The tables that a kernel launch reads. ``triton_kernels`` describes their columns."""

    tiles: Tensor
    pieces: Tensor
    splits: int
    spans: Tensor  # span of each group's queries in the output


def compute_attention(
    query: Tensor, key: Tensor, value: Tensor, positions: Tensor, scoring: Scoring, visible: Visible
) -> tuple[Tensor, Tensor]:
    """Implement ``primitive.attend``."""
    segments, starts = visible.segments, visible.starts
    if starts is None:
        starts = positions.new_zeros(1, 1, len(segments))
    sizes = _sizes(query, key, scoring, starts.shape[1] > 1)
    columns = tuple((begin, end, column) for column, (begin, end) in enumerate(segments))
    factor = query.shape[0] // key.shape[0] if sizes.packed else 1
    splits = _count_splits(query, factor, sizes.rows, segments)
    tables = _tables((((0, query.shape[1]), columns),), factor, sizes.rows, splits, query.device)
    return _run(query, key, value, positions, scoring, replace(visible, starts=starts), tables, sizes)


def compute_groups(
    query: Tensor, key: Tensor, value: Tensor, groups: Sequence[Group], scoring: Scoring
) -> tuple[Tensor, Tensor]:
    """Implement ``primitive.attend_groups`` in one launch."""
    sizes = _sizes(query, key, scoring, False)
    numbers = itertools.count()  # of the segments of all groups
    shapes = []
    for group in groups:
        columns = tuple((begin, end, next(numbers)) for begin, end in group.segments)
        shapes.append((group.queries, columns))
    factor = query.shape[0] // key.shape[0] if sizes.packed else 1
    tables = _tables(tuple(shapes), factor, sizes.rows, 1, query.device)
    positions = _group_positions(tuple((group.queries, group.position) for group in groups), query.device)
    starts = torch.cat([group.starts for group in groups], dim=1)[:, None]
    return _run(query, key, value, positions, scoring, Visible((), starts, causal=True), tables, sizes)


def segment_mass(query: Tensor, key: Tensor, segments: Segments, scoring: Scoring, total: bool) -> Tensor:
    """Implement ``primitive.segment_mass``."""
    columns = tuple((begin, end, column) for column, (begin, end) in enumerate(segments))
    return _softmax_shares(query, key, (((0, query.shape[1]), columns),), len(segments), scoring, total)


def document_mass(query: Tensor, key: Tensor, spans: Segments, scoring: Scoring) -> Tensor:
    """Implement ``primitive.document_mass``."""
    return _softmax_shares(query, key, _other_documents(tuple(spans)), len(spans), scoring, True)


def _run(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    positions: Tensor,
    scoring: Scoring,
    visible: Visible,
    tables: _Tables,
    sizes: _Sizes,
) -> tuple[Tensor, Tensor]:
    """Launch the attention kernel. ``positions`` has one entry per query, ``visible.starts`` one column per segment."""
    starts, bounds = visible.starts, visible.bounds
    assert starts is not None
    # with a stride of 0, all heads or all queries share the starts
    starts_head = starts.stride(0) if starts.shape[0] > 1 else 0
    starts_row = starts.stride(1) if starts.shape[1] > 1 else 0
    bias = None if visible.bias is None else _on_device(tuple(visible.bias), query.device)
    query, key, value = (x if x.stride(-1) == 1 else x.contiguous() for x in (query, key, value))
    heads, _, dim = query.shape
    groups = key.shape[0]
    splits = tables.splits
    rotary = scoring.encoding if isinstance(scoring.encoding, Rotary) else None
    half = _halves(scoring)
    # parts are float32 until they are merged
    output = query.new_empty(splits, heads, len(positions), dim, dtype=value.dtype if splits == 1 else torch.float32)
    lse = query.new_empty(splits, heads, len(positions), dtype=torch.float32)
    lower, upper = bounds or (positions, positions)
    grid = len(tables.tiles), groups if sizes.packed else heads
    with _launch_context(query):
        kernels.attention[grid](
            query, key, value, output, lse,
            query if rotary is None else rotary.frequencies.to(query.device),
            positions, starts, lse if bias is None else bias, lower, upper, tables.tiles, tables.pieces,
            query.stride(0), query.stride(1), key.stride(0), key.stride(1),
            value.stride(0), value.stride(1),
            output.stride(0), output.stride(1), output.stride(2), lse.stride(0), lse.stride(1),
            starts_head, starts_row,
            scoring.scale, 1.0 if rotary is None else rotary.scaling, scoring.softcap or 1.0, scoring.window or 0,
            DIM=dim, DIMS=_block_size(dim), HALF=half, HALVES=_block_size(half), REST=dim - 2 * half,
            RESTS=_block_size(dim - 2 * half), GROUP=heads // groups, PACKED=sizes.packed,
            INTERLEAVED=rotary is not None and rotary.interleaved, CAUSAL=visible.causal, BOUNDED=bounds is not None,
            WINDOWED=scoring.window is not None, SOFTCAPPED=scoring.softcap is not None, BIASED=bias is not None,
            BLOCK_M=sizes.rows, BLOCK_N=sizes.keys, num_warps=sizes.warps, num_stages=sizes.stages,
            **_dot_options(query),
        )  # fmt: skip
        if splits == 1:
            return output[0], lse[0]
        merged, merged_lse = torch.empty_like(output[0], dtype=value.dtype), torch.empty_like(lse[0])
        kernels.merge_splits[(lse[0].numel(),)](
            output, lse, merged, merged_lse, splits, output.stride(0), lse.stride(0),
            DIM=dim, DIMS=_block_size(dim), SPLITS=triton.next_power_of_2(splits),
        )  # fmt: skip
    return merged, merged_lse


def _softmax_shares(
    query: Tensor,
    key: Tensor,
    groups: tuple[tuple[tuple[int, int], Columns], ...],
    columns: int,
    scoring: Scoring,
    total: bool,
) -> Tensor:
    """Return how each query's softmax is divided between the segments of its group, ``[H, Q, columns]``.

    ``groups`` contain the column of each segment. With ``total``, the shares are summed over the queries of a group.
    """
    query, key = (x if x.stride(-1) == 1 else x.contiguous() for x in (query, key))
    heads, _, dim = query.shape
    group = heads // key.shape[0]
    visible = [(begin, end) for _, segments in groups for begin, end, _ in segments]
    sizes = _sizes(query, key, scoring, False)
    factor = group if sizes.packed else 1
    splits = _count_splits(query, factor, sizes.rows, visible) if len(groups) == 1 else 1
    tables = _tables(groups, factor, sizes.rows, splits, query.device, whole=True)
    spans = tables.spans
    count = sum(end - begin for (begin, end), _ in groups)
    masses = []
    step = group * max(1, MAX_LSES // (count * columns * group))  # query heads in one launch
    for first in range(0, heads, step):
        queries = query[first : first + step]
        keys = key[first // group : (first + step) // group]
        lse = query.new_full((len(queries), count, columns), -torch.inf, dtype=torch.float32)
        grid = len(tables.tiles), len(keys) if sizes.packed else len(queries)
        with _launch_context(query):
            kernels.segment_lse[grid](
                queries, keys, lse, tables.tiles, tables.pieces,
                queries.stride(0), queries.stride(1), keys.stride(0), keys.stride(1), lse.stride(0), lse.stride(1),
                scoring.scale, scoring.softcap or 1.0,
                DIM=dim, DIMS=_block_size(dim), GROUP=group, PACKED=sizes.packed,
                SOFTCAPPED=scoring.softcap is not None, BLOCK_M=sizes.rows, BLOCK_N=sizes.keys,
                num_warps=sizes.warps, num_stages=sizes.stages, **_dot_options(query),
            )  # fmt: skip
            if not total:
                masses.append(lse.softmax(-1))
                continue
            mass = lse.new_empty(len(queries), len(spans), columns)
            block = triton.next_power_of_2(columns)
            kernels.sum_shares[(len(spans), len(queries))](
                lse, mass, spans, lse.stride(0), lse.stride(1), mass.stride(0), mass.stride(1),
                COLUMNS=columns, COLUMN_BLOCK=block, ROWS=max(1, min(32, 4096 // block)),
            )  # fmt: skip
            masses.append(mass)
    return masses[0] if len(masses) == 1 else torch.cat(masses)


def _sizes(query: Tensor, key: Tensor, scoring: Scoring, by_query: bool) -> _Sizes:
    """Choose block sizes that suit the shapes and the dtype, and fit into the device's shared memory."""
    small = _block_size(query.shape[2]) > 128 or query.dtype == torch.float32
    rows = query.shape[1] * (query.shape[0] // key.shape[0])  # of a key head
    packed = by_query or rows <= PACKED_ROWS
    if not packed:
        rows = query.shape[1]
    block = min(_block_size(rows), 64 if small or packed else 128)
    keys = 32 if query.dtype == torch.float32 else 64
    sizes = _Sizes(packed, block, keys, 2 if small else 3)
    memory, unread = _shared_memory(query.device)
    return fit_sizes(sizes, _halves(scoring), query.shape[2], query.element_size(), memory, unread)


def fit_sizes(sizes: _Sizes, half: int, dim: int, itemsize: int, memory: float, unread: int) -> _Sizes:
    """Reduce block sizes until the kernel fits into ``memory`` bytes of shared memory.

    ``unread`` is the number of pipeline stages that use no shared memory.
    """
    width = 0  # of a query or key in shared memory
    if half:
        width += 2 * _block_size(half)
    if dim > 2 * half:
        width += _block_size(dim - 2 * half)
    while True:
        buffers = sizes.stages - unread
        numbers = sizes.rows * width + buffers * sizes.keys * (width + _block_size(dim))
        if sizes.rows < 16 * sizes.warps:  # warps exchange weights
            numbers += sizes.rows * sizes.keys
        if itemsize * numbers + 1024 <= memory or sizes.rows == sizes.keys == 16:
            return sizes
        if sizes.stages > 2:
            sizes = sizes._replace(stages=2)
        elif sizes.keys >= sizes.rows:
            sizes = sizes._replace(keys=sizes.keys // 2)
        else:
            sizes = sizes._replace(rows=sizes.rows // 2)


@cache
def _shared_memory(device: torch.device) -> tuple[float, int]:
    """Return the bytes of shared memory per program, and the number of pipeline stages that need no shared memory."""
    if device.type != "cuda":
        return inf, 0
    memory = triton.runtime.driver.active.utils.get_device_properties(device.index or 0)["max_shared_mem"]
    # before capability 9.0, keys and values are copied to registers, which frees the buffer of the last stage
    return memory, 0 if torch.cuda.get_device_capability(device) >= (9, 0) else 1


def _count_splits(query: Tensor, rows_per_query: int, block: int, segments: Segments) -> int:
    """Return the number of parts into which to split the keys, so that enough programs run."""
    tiles = triton.cdiv(query.shape[1] * rows_per_query, block)
    programs = tiles * (query.shape[0] // rows_per_query)
    keys = sum(end - begin for begin, end in segments)
    splits: int = min(SPLITS, triton.cdiv(keys, KEYS_PER_PIECE), triton.cdiv(PROGRAMS, programs))
    return max(1, splits)


def _block_size(size: int) -> int:
    return max(16, int(triton.next_power_of_2(size)))


def _dot_options(query: Tensor) -> dict[str, Any]:
    precision = "ieee" if query.dtype == torch.float32 else "tf32"  # has no effect on 16-bit inputs
    return {"PRECISION": precision, "UPCAST": INTERPRETED and query.dtype == torch.bfloat16}


def _halves(scoring: Scoring) -> int:
    """Return the number of rotated pairs of dimensions."""
    return len(scoring.encoding.frequencies) if isinstance(scoring.encoding, Rotary) else 0


@contextmanager
def _launch_context(query: Tensor) -> Iterator[None]:
    """Launch kernels on the query's device. Convert their errors to ``BackendError``."""
    on_device = torch.cuda.device(query.device) if query.device.type == "cuda" else nullcontext()
    with kernel_errors("triton", TritonError, SubprocessError), on_device:
        yield


@lru_cache(maxsize=64)  # all layers of a pass share the tables
def _tables(
    groups: tuple[tuple[tuple[int, int], Columns], ...],
    rows_per_query: int,
    block: int,
    splits: int,
    device: torch.device,
    whole: bool = False,
) -> _Tables:
    """Build the tables that ``triton_kernels`` describes, for tiles of ``block`` rows.

    Each group's list of pieces is distributed over at most ``splits`` parts, and no piece is cut. With ``whole``, each
    segment is one piece.
    """
    tiles: list[tuple[int, ...]] = []
    pieces: list[tuple[int, ...]] = []
    spans: list[tuple[int, int]] = []
    out = 0  # index of the group's first query in the output
    parts = 1
    for (begin, end), segments in groups:
        first_piece = len(pieces)
        longest = KEYS_PER_PIECE if splits > 1 and not whole else max((b - a for a, b, _ in segments), default=0)
        for index, (a, b, column) in enumerate(segments):
            length = b - a if index == len(segments) - 1 else -1
            first_keys = range(a, b, max(1, longest))
            pieces += [(first, min(longest, b - first), first - a, column, length) for first in first_keys]
        ranges = _split_evenly([piece[1] for piece in pieces[first_piece:]], splits)
        parts = len(ranges)
        for first in range(0, (end - begin) * rows_per_query, block):
            for split, (low, high) in enumerate(ranges):
                tiles.append((begin, end - begin, first, out, first_piece + low, first_piece + high, split))
        spans.append((out, out + end - begin))
        out += end - begin
    table = partial(torch.tensor, dtype=torch.int32, device=device)
    return _Tables(table(tiles), table(pieces or [(0,) * 5]), parts, table(spans))


def _split_evenly(counts: Sequence[int], parts: int) -> list[tuple[int, int]]:
    """Divide a list of pieces into at most ``parts`` ranges with similar numbers of keys, ``counts`` per piece."""
    if parts == 1:
        return [(0, len(counts))]
    share = sum(counts) / parts
    ranges: list[tuple[int, int]] = []
    begin = keys = 0
    for index, count in enumerate(counts):
        keys += count
        if keys >= share * (len(ranges) + 1) or index == len(counts) - 1:
            ranges.append((begin, index + 1))
            begin = index + 1
    return ranges


@lru_cache(maxsize=64)
def _group_positions(groups: tuple[tuple[tuple[int, int], int], ...], device: torch.device) -> Tensor:
    return torch.cat([torch.arange(first, first + end - begin) for (begin, end), first in groups]).to(device)


@lru_cache(maxsize=64)
def _other_documents(spans: tuple[tuple[int, int], ...]) -> tuple[tuple[tuple[int, int], Columns], ...]:
    """Return a group per document, with its tokens as queries and all other documents as segments."""
    numbered = [(begin, end, column) for column, (begin, end) in enumerate(spans)]
    groups = []
    for document, span in enumerate(spans):
        others = tuple(other for other in numbered if other[2] != document)
        groups.append((span, others))
    return tuple(groups)


@lru_cache(maxsize=64)
def _on_device(values: tuple[float, ...], device: torch.device) -> Tensor:
    return torch.tensor(values, dtype=torch.float32, device=device)
