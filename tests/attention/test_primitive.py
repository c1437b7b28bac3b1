"""The primitive equals attention written out token by token, in all its backends."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ragbias.attention import Rotary, attend, causal_mask, fused, grouped_scores, merge, rotate, segment_mass, weigh

HEADS, GROUPS, DIM = 4, 2, 8
SCALE = DIM**-0.5


class Frequencies(torch.nn.Module):
    """A rotary module of the shape that transformers' have."""

    def forward(self, x, position_ids):
        angles = position_ids[..., None].float() * 10.0 ** -torch.arange(0, 1, 2 / DIM)
        angles = torch.cat([angles, angles], dim=-1)
        return angles.cos(), angles.sin()


ROTARY = Rotary(Frequencies())


def inputs(queries, keys, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    shapes = ((HEADS, queries, DIM), (GROUPS, keys, DIM), (GROUPS, keys, DIM))
    return tuple(torch.randn(shape, generator=generator, dtype=dtype).float() for shape in shapes)


def literal(query, key, value, positions, starts, lengths, visible):
    """Softmax attention, one query, head and key at a time; every vector rotated to its own absolute position."""
    output, lse = torch.zeros_like(query), torch.zeros(query.shape[:2])
    offsets = [offset for length in lengths for offset in range(length)]
    segment = [index for index, length in enumerate(lengths) for _ in range(length)]
    starts = starts.expand(HEADS, query.shape[1], len(lengths))
    for h in range(HEADS):
        for i in range(query.shape[1]):
            scores = []
            for s in range(key.shape[1]):
                place = starts[h, i, segment[s]] + offsets[s]
                rotated = ROTARY(key[h // (HEADS // GROUPS), s], place)
                scores.append(ROTARY(query[h, i], positions[i]) @ rotated * SCALE)
            row = torch.stack(scores).masked_fill(~visible[i], -torch.inf)
            output[h, i] = row.softmax(-1) @ value[h // (HEADS // GROUPS)]
            lse[h, i] = row.logsumexp(-1)
    return output, lse


def locally_rotated(key, lengths):
    return ROTARY(key, torch.cat([torch.arange(length) for length in lengths]))


@pytest.mark.parametrize("per_query", [True, False], ids=["start by query", "start by head"])
def test_attend_equals_attention_written_out(per_query):
    lengths, queries = [3, 1, 4], 5
    query, key, value = inputs(queries, sum(lengths))
    starts = torch.randint(0, 9, (HEADS, queries if per_query else 1, len(lengths)))
    positions = torch.arange(20, 20 + queries)
    visible = torch.rand(queries, sum(lengths)) > 0.3
    visible[:, 0] = True
    expected = literal(query, key, value, positions, starts, lengths, visible)
    output, lse = attend(
        query,
        locally_rotated(key, lengths),
        value,
        positions=positions,
        starts=starts,
        lengths=lengths,
        rotary=ROTARY,
        scale=SCALE,
        visible=visible,
    )
    torch.testing.assert_close(output, expected[0], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(lse, expected[1], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("heads", [1, HEADS], ids=["one start", "start by head"])
@pytest.mark.parametrize("masked", [True, False])
def test_fused_backend_equals_the_reference(dtype, heads, masked, monkeypatch):
    lengths, queries = [4, 6, 2, 5], 7
    query, key, value = (x.to(dtype) for x in inputs(queries, sum(lengths), seed=1))
    arguments = dict(
        positions=torch.arange(30, 30 + queries),
        starts=torch.randint(0, 20, (heads, 1, len(lengths))),
        lengths=lengths,
        rotary=ROTARY,
        scale=SCALE,
        visible=causal_mask(queries, sum(lengths), query.device) if masked else None,
    )
    assert fused.available(query)
    fast = attend(query, key, value, **arguments)
    monkeypatch.setattr(fused, "available", lambda _: False)
    slow = attend(query, key, value, **arguments)
    tolerance = 1e-5 if dtype == torch.float32 else 0.03
    torch.testing.assert_close(fast[0], slow[0], atol=tolerance, rtol=tolerance)
    torch.testing.assert_close(fast[1], slow[1], atol=tolerance, rtol=tolerance)


@given(cut=st.integers(1, 10), seed=st.integers(0, 99))
@settings(max_examples=20, deadline=None)
def test_merging_parts_gives_attention_over_all_keys(cut, seed):
    query, key, value = inputs(3, 11, seed)
    parts = [
        weigh(grouped_scores(query, key[:, part], SCALE), value[:, part]) for part in (slice(0, cut), slice(cut, None))
    ]
    whole = weigh(grouped_scores(query, key, SCALE), value)
    merged = merge(parts)
    torch.testing.assert_close(merged[0], whole[0], atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(merged[1], whole[1], atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("queries", [1, 6], ids=["reference", "fused"])
def test_segment_mass_is_the_softmax_summed_over_segments(queries):
    lengths = [3, 5, 1]
    query, key, _ = inputs(queries, sum(lengths), seed=2)
    repeated = key.repeat_interleave(HEADS // GROUPS, dim=0)
    weights = (query @ repeated.transpose(-1, -2) * SCALE).softmax(-1)
    expected = torch.stack([part.sum(-1) for part in weights.split(lengths, dim=-1)], dim=-1)
    torch.testing.assert_close(segment_mass(query, key, lengths, SCALE), expected, atol=1e-6, rtol=1e-5)


def test_scores_depend_on_differences_of_positions_only():
    query, key, _ = inputs(1, 1, seed=3)
    near = ROTARY(query, torch.tensor([7]))[0, 0] @ ROTARY(key, torch.tensor([3]))[0, 0]
    far = ROTARY(query, torch.tensor([1007]))[0, 0] @ ROTARY(key, torch.tensor([1003]))[0, 0]
    torch.testing.assert_close(near, far, atol=1e-4, rtol=1e-4)


def test_rotation_keeps_the_dtype_and_the_length_of_a_vector():
    x = torch.randn(2, 5, DIM)
    cos, sin = ROTARY.table(5, x.device)
    assert rotate(x.bfloat16(), cos[:5], sin[:5]).dtype == torch.bfloat16
    torch.testing.assert_close(rotate(x, cos[:5], sin[:5]).norm(dim=-1), x.norm(dim=-1))


def test_causal_mask_aligns_the_last_query_with_the_last_key():
    assert causal_mask(2, 4, torch.device("cpu")).tolist() == [[True, True, True, False], [True] * 4]
