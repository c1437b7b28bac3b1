"""Triton kernels for attention and for the importance of documents. ``triton_backend`` launches them.

A row is one query in one head. A tile is a block of rows that one program computes. In a packed launch, a tile contains
all query heads of one key head, query after query. The program reads each key once for all these heads. Positions and
starts may differ by row. In other launches, a tile contains neighbouring queries of one head. A segment has the same
position for all rows of such a tile.

The table of tiles has the columns ``begin, count, first, out, pieces_begin, pieces_end, split``. Each tile belongs to a
group: ``count`` queries, from index ``begin``, that see the same segments. The tile begins at row ``first`` of the
group. The results of the group are stored from index ``out``. The tile sees the pieces from ``pieces_begin`` to
``pieces_end``. If the keys of a row are split among several tiles, ``split`` is the index of the part.

A piece is a part of a segment. The table of pieces has the columns ``begin, count, offset, column, length``. A piece
has ``count`` keys from index ``begin``. Its first key is at ``offset`` in the segment. ``column`` is the index of the
segment in ``starts`` and ``bias``. ``length`` is the length of the segment if it is the last one of its group, and -1
otherwise. Both tables are int32.
"""

import triton
import triton.language as tl

TILE = tl.constexpr(7)  # columns of the table of tiles
PIECE = tl.constexpr(5)  # columns of the table of pieces
LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)


@triton.jit
def _rows_of(tile, GROUP: tl.constexpr, PACKED: tl.constexpr, BLOCK_M: tl.constexpr):  # noqa: N803
    """Return a tile's query heads, key head, query indices, and mask of valid rows. ``PACKED`` allows several heads."""
    rows = tl.load(tile + 2) + tl.arange(0, BLOCK_M)
    if PACKED:
        key_head = tl.program_id(1).to(tl.int64)
        head = key_head * GROUP + rows % GROUP
        row = rows // GROUP
    else:
        head = tl.program_id(1).to(tl.int64)
        key_head = head // GROUP
        row = rows
    return head, key_head, row, row < tl.load(tile + 1)


@triton.jit
def _dot(left, right, sums, PRECISION: tl.constexpr, UPCAST: tl.constexpr):  # noqa: N803
    """Compute ``left @ right + sums``. ``UPCAST`` uses float32, because the interpreter cannot multiply bfloat16."""
    if UPCAST:
        left, right = left.to(tl.float32), right.to(tl.float32)
    return tl.dot(left, right, sums, input_precision=PRECISION)


@triton.jit
def _apply_softcap(scores, softcap):
    """Compute ``softcap * tanh(scores / softcap)`` without overflow."""
    falling = tl.exp(-2 * tl.abs(scores) / softcap)
    capped = softcap * (1 - falling) / (1 + falling)
    return tl.where(scores < 0, -capped, capped)


@triton.jit(do_not_specialize=["window", "l_split", "l_head"])  # these change from step to step
def attention(
    query, key, value, output, lse, frequencies, positions, starts, bias, lower, upper, tiles, pieces,
    q_head, q_row, k_head, k_row, v_head, v_row, o_split, o_head, o_row, l_split, l_head, s_head, s_row,
    scale, scaling, softcap, window,
    DIM: tl.constexpr, DIMS: tl.constexpr,  # noqa: N803
    HALF: tl.constexpr, HALVES: tl.constexpr, REST: tl.constexpr, RESTS: tl.constexpr,  # noqa: N803
    GROUP: tl.constexpr, PACKED: tl.constexpr, INTERLEAVED: tl.constexpr, CAUSAL: tl.constexpr,  # noqa: N803
    BOUNDED: tl.constexpr, WINDOWED: tl.constexpr, SOFTCAPPED: tl.constexpr, BIASED: tl.constexpr,  # noqa: N803
    PRECISION: tl.constexpr, UPCAST: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,  # noqa: N803
):  # fmt: skip
    """Compute output and LSE of one tile with an online softmax in float32.

    Of the ``DIM`` dimensions, the first ``2 * HALF`` are rotated, and the last ``REST`` are not. ``DIMS``, ``HALVES``
    and ``RESTS`` are the block sizes for ``DIM``, ``HALF`` and ``REST``. Queries are rotated to their positions once.
    For each segment, they are rotated back by the start of the segment.
    """
    tile = tiles + tl.program_id(0) * TILE
    out = tl.load(tile + 3)
    head, key_head, row, valid = _rows_of(tile, GROUP, PACKED, BLOCK_M)
    position = tl.load(positions + out + row, mask=valid, other=0).to(tl.int32)
    halves, rests, dims = tl.arange(0, HALVES), tl.arange(0, RESTS), tl.arange(0, DIMS)
    in_half, in_rest, in_dim = halves < HALF, rests < REST, dims < DIM
    left_at, right_at, rest_at = halves, HALF + halves, 2 * HALF + rests
    if INTERLEAVED:
        left_at, right_at = 2 * halves, 2 * halves + 1
    query += (head * q_head + (tl.load(tile) + row) * q_row)[:, None]
    key += key_head * k_head
    value += key_head * v_head
    if HALF > 0:
        seen = valid[:, None] & in_half[None, :]
        left_in = tl.load(query + left_at[None, :], mask=seen, other=0.0).to(tl.float32)
        right_in = tl.load(query + right_at[None, :], mask=seen, other=0.0).to(tl.float32)
        frequency = tl.load(frequencies + halves, mask=in_half, other=0.0)
        angle = position.to(tl.float32)[:, None] * frequency[None, :]
        cos, sin = tl.cos(angle) * scaling, tl.sin(angle) * scaling
        left = left_in * cos - right_in * sin
        right = right_in * cos + left_in * sin
    if REST > 0:
        rest = tl.load(query + rest_at[None, :], mask=valid[:, None] & in_rest[None, :], other=0.0)

    highest = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    sums = tl.zeros([BLOCK_M, DIMS], tl.float32)
    for index in range(tl.load(tile + 4), tl.load(tile + 5)):
        piece = pieces + index * PIECE
        begin, count, offset = tl.load(piece), tl.load(piece + 1), tl.load(piece + 2)
        column, length = tl.load(piece + 3), tl.load(piece + 4)
        if PACKED:
            start = tl.load(starts + head * s_head + row * s_row + column, mask=valid, other=0).to(tl.int32)
            moved_by = start.to(tl.float32)[:, None]
        else:
            start = tl.load(starts + head * s_head + column).to(tl.int32)
            moved_by = start.to(tl.float32)
        if HALF > 0:
            turn = moved_by * frequency[None, :]
            back_cos, back_sin = tl.cos(turn), tl.sin(turn)
            left_turned = (left * back_cos + right * back_sin).to(key.dtype.element_ty)
            right_turned = (right * back_cos - left * back_sin).to(key.dtype.element_ty)
        first, last = offset, offset + count
        if (CAUSAL or BOUNDED) or WINDOWED:  # Triton 3.2 does not support chains of `or`
            row_first = tl.zeros([BLOCK_M], tl.int32)
            row_last = tl.zeros([BLOCK_M], tl.int32) + last
            if CAUSAL:
                row_last = tl.where(length >= 0, length - tl.load(tile + 1) + row + 1, row_last)
            if BOUNDED:
                bounded_first = tl.load(lower + row, mask=valid, other=0).to(tl.int32)
                bounded_last = tl.load(upper + row, mask=valid, other=0).to(tl.int32)
                row_first = tl.where(length >= 0, bounded_first, row_first)
                row_last = tl.where(length >= 0, bounded_last, row_last)
            if WINDOWED:
                row_first = tl.maximum(row_first, position - start - window + 1)
            first = tl.maximum(first, tl.min(tl.where(valid, row_first, last)))
            last = tl.minimum(last, tl.max(tl.where(valid, row_last, 0)))
        for at in range(first, last, BLOCK_N):
            offsets = at + tl.arange(0, BLOCK_N)
            inside = offsets < last
            keys = (begin + offsets - offset).to(tl.int64)
            key_at = key + (keys * k_row)[None, :]
            scores = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
            if HALF > 0:
                shown = in_half[:, None] & inside[None, :]
                part = tl.load(key_at + left_at[:, None], mask=shown, other=0.0)
                scores = _dot(left_turned, part, scores, PRECISION, UPCAST)
                part = tl.load(key_at + right_at[:, None], mask=shown, other=0.0)
                scores = _dot(right_turned, part, scores, PRECISION, UPCAST)
            if REST > 0:
                part = tl.load(key_at + rest_at[:, None], mask=in_rest[:, None] & inside[None, :], other=0.0)
                scores = _dot(rest, part, scores, PRECISION, UPCAST)
            scores *= scale
            if SOFTCAPPED:
                scores = _apply_softcap(scores, softcap)
            if BIASED:
                scores += tl.load(bias + column)
            visible = inside[None, :]
            if (CAUSAL or BOUNDED) or WINDOWED:  # Triton 3.2 does not support chains of `or`
                visible &= (offsets[None, :] >= row_first[:, None]) & (offsets[None, :] < row_last[:, None])
            scores = tl.where(visible, scores * LOG2E, float("-inf"))
            new_highest = tl.maximum(highest, tl.max(scores, 1))
            finite = tl.where(new_highest == float("-inf"), 0.0, new_highest)
            weights = tl.exp2(scores - finite[:, None])
            rescale = tl.exp2(highest - finite)
            total = total * rescale + tl.sum(weights, 1)
            value_at = value + (keys * v_row)[:, None] + dims[None, :]
            values = tl.load(value_at, mask=inside[:, None] & in_dim[None, :], other=0.0)
            sums = _dot(weights.to(values.dtype), values, sums * rescale[:, None], PRECISION, UPCAST)
            highest = new_highest

    divisor = tl.where(total == 0.0, 1.0, total)
    split = tl.load(tile + 6).to(tl.int64)
    output += (split * o_split + head * o_head + (out + row) * o_row)[:, None] + dims[None, :]
    lse += split * l_split + head * l_head + out + row
    result = (sums / divisor[:, None]).to(output.dtype.element_ty)
    tl.store(output, result, mask=valid[:, None] & in_dim[None, :])
    tl.store(lse, tl.where(total == 0.0, float("-inf"), highest * LN2 + tl.log(divisor)), mask=valid)


@triton.jit
def merge_splits(
    outputs, lses, output, lse, splits, o_split, l_split,
    DIM: tl.constexpr, DIMS: tl.constexpr, SPLITS: tl.constexpr,  # noqa: N803
):  # fmt: skip
    """Merge the partial results of one query, which were computed for disjoint parts of its keys, in float32."""
    row = tl.program_id(0).to(tl.int64)
    index, dims = tl.arange(0, SPLITS), tl.arange(0, DIMS)
    parts = tl.load(lses + index * l_split + row, mask=index < splits, other=float("-inf"))
    highest = tl.max(parts, 0)
    weights = tl.exp(parts - tl.where(highest == float("-inf"), 0.0, highest))
    total = tl.sum(weights, 0)
    divisor = tl.where(total == 0.0, 1.0, total)
    shown = (index < splits)[:, None] & (dims < DIM)[None, :]
    values = tl.load(outputs + (index * o_split + row * DIM)[:, None] + dims[None, :], mask=shown, other=0.0)
    merged = tl.sum(values * weights[:, None], 0) / divisor
    tl.store(output + row * DIM + dims, merged.to(output.dtype.element_ty), mask=dims < DIM)
    tl.store(lse + row, tl.where(total == 0.0, float("-inf"), highest + tl.log(divisor)))


@triton.jit
def segment_lse(
    query, key, lse, tiles, pieces, q_head, q_row, k_head, k_row, l_head, l_row, scale, softcap,
    DIM: tl.constexpr, DIMS: tl.constexpr, GROUP: tl.constexpr, PACKED: tl.constexpr,  # noqa: N803
    SOFTCAPPED: tl.constexpr, PRECISION: tl.constexpr, UPCAST: tl.constexpr,  # noqa: N803
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,  # noqa: N803
):  # fmt: skip
    """Compute the LSE of each row's scores for each segment, without positions. Each piece is a whole segment."""
    tile = tiles + tl.program_id(0) * TILE
    head, key_head, row, valid = _rows_of(tile, GROUP, PACKED, BLOCK_M)
    dims = tl.arange(0, DIMS)
    in_dim = dims < DIM
    query += (head * q_head + (tl.load(tile) + row) * q_row)[:, None] + dims[None, :]
    queries = tl.load(query, mask=valid[:, None] & in_dim[None, :], other=0.0)
    key += key_head * k_head
    lse += head * l_head + (tl.load(tile + 3) + row).to(tl.int64) * l_row
    for index in range(tl.load(tile + 4), tl.load(tile + 5)):
        piece = pieces + index * PIECE
        begin, count, column = tl.load(piece), tl.load(piece + 1), tl.load(piece + 3)
        highest = tl.full([BLOCK_M], float("-inf"), tl.float32)
        total = tl.zeros([BLOCK_M], tl.float32)
        for at in range(0, count, BLOCK_N):
            offsets = at + tl.arange(0, BLOCK_N)
            inside = offsets < count
            key_at = key + ((begin + offsets).to(tl.int64) * k_row)[None, :] + dims[:, None]
            keys = tl.load(key_at, mask=in_dim[:, None] & inside[None, :], other=0.0)
            scores = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
            scores = _dot(queries, keys, scores, PRECISION, UPCAST) * scale
            if SOFTCAPPED:
                scores = _apply_softcap(scores, softcap)
            scores = tl.where(inside[None, :], scores * LOG2E, float("-inf"))
            new_highest = tl.maximum(highest, tl.max(scores, 1))
            total = total * tl.exp2(highest - new_highest) + tl.sum(tl.exp2(scores - new_highest[:, None]), 1)
            highest = new_highest
        tl.store(lse + column, highest * LN2 + tl.log(total), mask=valid)


@triton.jit
def sum_shares(
    lse, mass, groups, l_head, l_row, m_head, m_row,
    COLUMNS: tl.constexpr, COLUMN_BLOCK: tl.constexpr, ROWS: tl.constexpr,  # noqa: N803
):  # fmt: skip
    """Convert the LSEs of each row to the segments' shares of the softmax. Sum the shares over the rows of a group."""
    group, head = tl.program_id(0), tl.program_id(1).to(tl.int64)
    end = tl.load(groups + 2 * group + 1)
    columns = tl.arange(0, COLUMN_BLOCK)
    real = columns < COLUMNS
    sums = tl.zeros([COLUMN_BLOCK], tl.float32)
    for at in range(tl.load(groups + 2 * group), end, ROWS):
        rows = at + tl.arange(0, ROWS)
        addresses = lse + head * l_head + (rows.to(tl.int64) * l_row)[:, None] + columns[None, :]
        values = tl.load(addresses, mask=(rows < end)[:, None] & real[None, :], other=float("-inf"))
        highest = tl.max(values, 1)
        weights = tl.exp(values - tl.where(highest == float("-inf"), 0.0, highest)[:, None])
        total = tl.sum(weights, 1)
        sums += tl.sum(weights / tl.where(total == 0.0, 1.0, total)[:, None], 0)
    tl.store(mass + head * m_head + group * m_row + columns, sums, mask=real)
