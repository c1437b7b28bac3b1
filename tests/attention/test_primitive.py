"""The primitive equals attention written out token by token, in all its backends."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ragbias.attention import (
    Alibi,
    Encoding,
    Rotary,
    Scoring,
    attend,
    causal_mask,
    fused,
    grouped_scores,
    merge,
    rotate,
    segment_mass,
    weigh,
)

HEADS, GROUPS, DIM = 4, 2, 8
SCALE = DIM**-0.5


FREQUENCIES = 10.0 ** -torch.arange(0, 1, 2 / DIM)
ROTARY = Rotary(FREQUENCIES)
PLAIN = Scoring(Encoding(), SCALE)
ENCODINGS = {
    "rotary": ROTARY,
    "interleaved": Rotary(FREQUENCIES, interleaved=True),
    "partial": Rotary(FREQUENCIES[:2], scaling=1.2),
    "alibi": Alibi(torch.tensor([0.5, 0.25, 0.1, 0.05])),
    "none": Encoding(),
}


def inputs(queries, keys, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    shapes = ((HEADS, queries, DIM), (GROUPS, keys, DIM), (GROUPS, keys, DIM))
    return tuple(torch.randn(shape, generator=generator, dtype=dtype).float() for shape in shapes)


def literal(query, key, value, positions, starts, lengths, visible, scoring):
    """Softmax attention, one query, head and key at a time; every vector encoded at its own absolute position."""
    output, lse = torch.zeros_like(query), torch.zeros(query.shape[:2])
    offsets = [offset for length in lengths for offset in range(length)]
    segment = [index for index, length in enumerate(lengths) for _ in range(length)]
    starts = starts.expand(HEADS, query.shape[1], len(lengths))
    for h in range(HEADS):
        for i in range(query.shape[1]):
            scores = []
            for s in range(key.shape[1]):
                place = starts[h, i, segment[s]] + offsets[s]
                encoded = scoring.encoding(key[h // (HEADS // GROUPS), s], place)
                score = scoring.encoding(query[h, i], positions[i]) @ encoded * SCALE
                if isinstance(scoring.encoding, Alibi):
                    score = score - scoring.encoding.slopes[h] * (positions[i] - place)
                if scoring.softcap:
                    score = scoring.softcap * torch.tanh(score / scoring.softcap)
                near = scoring.window is None or positions[i] - place < scoring.window
                scores.append(score if near and visible[i, s] else torch.tensor(-torch.inf))
            row = torch.stack(scores)
            output[h, i] = row.softmax(-1) @ value[h // (HEADS // GROUPS)]
            lse[h, i] = row.logsumexp(-1)
    return output, lse


def locally_encoded(key, lengths, encoding):
    return encoding(key, torch.cat([torch.arange(length) for length in lengths]))


@pytest.mark.parametrize("per_query", [True, False], ids=["start by query", "start by head"])
@pytest.mark.parametrize("softcap", [None, 0.7])
@pytest.mark.parametrize("window", [None, 21])
@pytest.mark.parametrize("name", ENCODINGS)
def test_attend_equals_attention_written_out(name, window, softcap, per_query):
    lengths, queries = [3, 1, 4], 5
    query, key, value = inputs(queries, sum(lengths))
    scoring = Scoring(ENCODINGS[name], SCALE, softcap, window)
    starts = torch.randint(0, 9, (HEADS, queries if per_query else 1, len(lengths)))
    starts[..., 0] = 18
    positions = torch.arange(20, 20 + queries)
    visible = torch.rand(queries, sum(lengths)) > 0.3
    visible[:, 0] = True
    expected = literal(query, key, value, positions, starts, lengths, visible, scoring)
    output, lse = attend(
        query,
        locally_encoded(key, lengths, scoring.encoding),
        value,
        positions=positions,
        starts=starts,
        lengths=lengths,
        scoring=scoring,
        visible=visible,
    )
    torch.testing.assert_close(output, expected[0], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(lse, expected[1], atol=1e-5, rtol=1e-5)


def test_a_query_whose_window_holds_no_key_adds_nothing():
    query, key, value = inputs(2, 6)
    far = dict(positions=torch.tensor([30, 31]), starts=torch.zeros(1, 1, 1, dtype=torch.long), lengths=[6])
    empty = attend(query, key, value, **far, scoring=Scoring(Encoding(), SCALE, window=5))
    assert torch.equal(empty[0], torch.zeros_like(query)) and (empty[1] == -torch.inf).all()
    near = weigh(grouped_scores(query, key, PLAIN), value)
    assert torch.equal(merge([empty, near])[0], near[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("heads", [1, HEADS], ids=["one start", "start by head"])
@pytest.mark.parametrize("name", ["rotary", "interleaved", "partial", "none"])
@pytest.mark.parametrize("masked", [True, False])
def test_fused_backend_equals_the_reference(dtype, heads, masked, name, monkeypatch):
    lengths, queries = [4, 6, 2, 5], 7
    query, key, value = (x.to(dtype) for x in inputs(queries, sum(lengths), seed=1))
    arguments = dict(
        positions=torch.arange(30, 30 + queries),
        starts=torch.randint(0, 20, (heads, 1, len(lengths))),
        lengths=lengths,
        scoring=Scoring(ENCODINGS[name], SCALE),
        visible=causal_mask(queries, sum(lengths), query.device) if masked else None,
    )
    assert fused.available(query, arguments["scoring"])
    fast = attend(query, key, value, **arguments)
    monkeypatch.setattr(fused, "available", lambda *_: False)
    slow = attend(query, key, value, **arguments)
    tolerance = 1e-5 if dtype == torch.float32 else 0.03
    torch.testing.assert_close(fast[0], slow[0], atol=tolerance, rtol=tolerance)
    torch.testing.assert_close(fast[1], slow[1], atol=tolerance, rtol=tolerance)


@given(cut=st.integers(1, 10), seed=st.integers(0, 99))
@settings(max_examples=20, deadline=None)
def test_merging_parts_gives_attention_over_all_keys(cut, seed):
    query, key, value = inputs(3, 11, seed)
    parts = [
        weigh(grouped_scores(query, key[:, part], PLAIN), value[:, part]) for part in (slice(0, cut), slice(cut, None))
    ]
    whole = weigh(grouped_scores(query, key, PLAIN), value)
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
    torch.testing.assert_close(segment_mass(query, key, lengths, PLAIN), expected, atol=1e-6, rtol=1e-5)


def test_scores_depend_on_differences_of_positions_only():
    query, key, _ = inputs(1, 1, seed=3)
    near = ROTARY(query, torch.tensor([7]))[0, 0] @ ROTARY(key, torch.tensor([3]))[0, 0]
    far = ROTARY(query, torch.tensor([1007]))[0, 0] @ ROTARY(key, torch.tensor([1003]))[0, 0]
    torch.testing.assert_close(near, far, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("interleaved", [False, True])
def test_rotation_keeps_the_dtype_the_length_and_what_lies_beyond_the_rotary_part(interleaved):
    x, angles = torch.randn(2, 5, DIM), torch.randn(5, 3)
    turned = rotate(x, angles.cos(), angles.sin(), interleaved)
    assert rotate(x.bfloat16(), angles.cos(), angles.sin(), interleaved).dtype == torch.bfloat16
    torch.testing.assert_close(turned.norm(dim=-1), x.norm(dim=-1))
    assert torch.equal(turned[..., 6:], x[..., 6:])
    assert not torch.allclose(turned[..., :6], x[..., :6], atol=0.1)


def test_fractional_positions_lie_between_whole_ones():
    x, whole = torch.randn(3, DIM), torch.arange(3)
    torch.testing.assert_close(ROTARY(x, whole.float()), ROTARY(x, whole))
    twice = ROTARY(ROTARY(x, whole / 2), whole / 2)
    torch.testing.assert_close(twice, ROTARY(x, whole), atol=1e-6, rtol=1e-5)


def test_causal_mask_aligns_the_last_query_with_the_last_key():
    assert causal_mask(2, 4, torch.device("cpu")).tolist() == [[True, True, True, False], [True] * 4]
