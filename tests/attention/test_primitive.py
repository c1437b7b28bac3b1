"""The attention primitive against attention computed token by token, for PyTorch's math path and the fused CPU path."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ragbias.attention import Encoding, Scoring, attend, merge, segment_scores, torch_backend
from ragbias.attention.keys import Alibi, EncodedKeys, Group, Rotary, rotate
from ragbias.attention.primitive import attend_groups, document_mass, segment_mass
from ragbias.attention.torch_backend import grouped_scores, weigh
from ragbias.errors import ArgumentError

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


@pytest.fixture(autouse=True)
def _the_same_numbers_each_time():
    torch.manual_seed(0)


def inputs(queries, keys, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    shapes = ((HEADS, queries, DIM), (GROUPS, keys, DIM), (GROUPS, keys, DIM))
    return tuple(torch.randn(shape, generator=generator, dtype=dtype).float() for shape in shapes)


def literal(query, key, value, positions, starts, segments, bounds, bias, scoring):
    """Softmax attention, one query, head and key at a time; every vector encoded at its own absolute position.

    ``key`` has no positions yet.
    """
    output, lse = torch.zeros_like(query), torch.zeros(query.shape[:2])
    starts = starts.expand(HEADS, query.shape[1], len(segments))
    for h in range(HEADS):
        group = h // (HEADS // GROUPS)
        for i in range(query.shape[1]):
            scores, values = [], []
            for index, (begin, end) in enumerate(segments):
                for offset in range(end - begin):
                    position = starts[h, i, index] + offset
                    encoded = scoring.encoding(key[group, begin + offset], position)
                    score = scoring.encoding(query[h, i], positions[i]) @ encoded * SCALE
                    if isinstance(scoring.encoding, Alibi):
                        score = score - scoring.encoding.slopes[h] * (positions[i] - position).abs()
                    if scoring.softcap:
                        score = scoring.softcap * torch.tanh(score / scoring.softcap)
                    near = scoring.window is None or positions[i] - position < scoring.window
                    seen = index < len(segments) - 1 or bounds[0][i] <= offset < bounds[1][i]
                    scores.append(score + bias[index] if near and seen else torch.tensor(-torch.inf))
                    values.append(value[group, begin + offset])
            row = torch.stack(scores)
            output[h, i] = row.softmax(-1) @ torch.stack(values)
            lse[h, i] = row.logsumexp(-1)
    return output, lse


def locally_encoded(key, segments, encoding):
    encoded = key.clone()
    for begin, end in segments:
        encoded[:, begin:end] = encoding(key[:, begin:end], torch.arange(end - begin))
    return encoded


CAUSAL = (torch.zeros(5, dtype=torch.long), torch.arange(0, 5))  # of a last segment of 4 keys, for 5 queries
SEGMENTS = {"adjacent": [(0, 3), (3, 4), (4, 8)], "shuffled": [(6, 9), (0, 0), (2, 3), (3, 6), (10, 14)]}


@pytest.mark.parametrize("layout", SEGMENTS)
@pytest.mark.parametrize("per_query", [True, False], ids=["start by query", "start by head"])
@pytest.mark.parametrize("softcap", [None, 0.7])
@pytest.mark.parametrize("window", [None, 21])
@pytest.mark.parametrize("name", ENCODINGS)
def test_attend_equals_attention_written_out(name, window, softcap, per_query, layout):
    segments, queries = SEGMENTS[layout], 5
    query, key, value = inputs(queries, 15)
    scoring = Scoring(ENCODINGS[name], SCALE, softcap, window)
    starts = torch.randint(0, 9, (HEADS, queries if per_query else 1, len(segments)))
    starts[..., 0] = 18
    positions = torch.arange(20, 20 + queries)
    bias = torch.randn(len(segments)).tolist()
    expected = literal(query, key, value, positions, starts, segments, CAUSAL, bias, scoring)
    for seen, gradients in ((dict(causal=True), False), (dict(bounds=CAUSAL), False), (dict(causal=True), True)):
        output, lse = attend(
            query.clone().requires_grad_(gradients),
            locally_encoded(key, segments, scoring.encoding),
            value,
            positions=positions,
            starts=starts,
            segments=segments,
            scoring=scoring,
            bias=bias,
            **seen,
        )
        torch.testing.assert_close(output.detach(), expected[0], atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(lse.detach(), expected[1], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("window", [None, 4])
@pytest.mark.parametrize("name", ENCODINGS)
def test_queries_may_stand_before_the_segments_that_they_see(name, window):
    segments = SEGMENTS["adjacent"]
    query, key, value = inputs(5, 15)
    scoring, positions = Scoring(ENCODINGS[name], SCALE, None, window), torch.arange(6, 11)
    starts = torch.randint(8, 20, (HEADS, 1, len(segments)))
    starts[..., -1] = 3
    expected = literal(query, key, value, positions, starts, segments, CAUSAL, [0.0] * 3, scoring)
    local = locally_encoded(key, segments, scoring.encoding)
    given = dict(positions=positions, starts=starts, segments=segments, scoring=scoring, causal=True)
    output, lse = attend(query, local, value, **given)
    torch.testing.assert_close(output, expected[0], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(lse, expected[1], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("softcap", [None, 0.7])
@pytest.mark.parametrize("name", ENCODINGS)
def test_divided_scores_are_those_of_another_temperature(name, softcap):
    query, key, _ = inputs(3, 7)
    scoring, positions = Scoring(ENCODINGS[name], SCALE, softcap), torch.arange(9, 12)
    plain, divided = (
        segment_scores(query, key, positions=positions, scoring=each) for each in (scoring, scoring.divided(0.4))
    )
    torch.testing.assert_close(divided, plain / 0.4)


def test_a_query_whose_window_holds_no_key_adds_nothing():
    query, key, value = inputs(2, 6)
    scoring = Scoring(Encoding(), SCALE, window=5)
    empty = attend(query, key, value, positions=torch.tensor([30, 31]), scoring=scoring)
    assert torch.equal(empty[0], torch.zeros_like(query)) and (empty[1] == -torch.inf).all()
    near = weigh(grouped_scores(query, key, PLAIN), value)
    assert torch.equal(merge([empty, near])[0], near[0])


@pytest.mark.parametrize("blocks", [2**20, 40], ids=["one block", "blocks of one query"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("heads", [1, HEADS], ids=["one start", "start by head"])
@pytest.mark.parametrize("name", ["rotary", "interleaved", "partial", "none"])
@pytest.mark.parametrize("seen", ["all", "causal", "bounds"])
def test_fused_backend_equals_the_reference(dtype, heads, seen, name, blocks, monkeypatch):
    segments, queries = [(4, 9), (1, 4), (11, 13), (13, 23)], 7
    query, key, value = (x.to(dtype) for x in inputs(queries, 25, seed=1))
    lower = torch.tensor([0, 0, 2, 1, 3, 4, 9])
    arguments = dict(
        positions=torch.arange(30, 30 + queries),
        starts=torch.randint(0, 20, (heads, 1, len(segments))),
        segments=segments,
        scoring=Scoring(ENCODINGS[name], SCALE),
        causal=seen == "causal",
        bounds=(lower, lower + torch.tensor([1, 2, 8, 1, 3, 3, 1])) if seen == "bounds" else None,
    )
    monkeypatch.setattr(torch_backend, "BLOCK", blocks)
    monkeypatch.setattr(torch_backend, "MAX_MOVED", blocks)
    monkeypatch.setitem(torch_backend.MAX_SCORES, "cpu", blocks)
    assert torch_backend.fused_available(query, arguments["scoring"])
    fast = attend(query, key, value, **arguments)
    monkeypatch.setattr(torch_backend, "fused_available", lambda *_: False)
    slow = attend(query, key, value, **arguments)
    tolerance = 1e-5 if dtype == torch.float32 else 0.03
    torch.testing.assert_close(fast[0], slow[0], atol=tolerance, rtol=tolerance)
    torch.testing.assert_close(fast[1], slow[1], atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("bounds", [False, True], ids=["causal", "bounds"])
def test_a_single_causal_segment_needs_no_more_than_its_keys(bounds, monkeypatch):
    seen_keys = []
    kernel = torch_backend._flash
    monkeypatch.setattr(torch_backend, "BLOCK", 2)
    monkeypatch.setattr(
        torch_backend, "_flash", lambda q, k, v, **rest: seen_keys.append(k.shape[2]) or kernel(q, k, v, **rest)
    )
    query, key, value = inputs(9, 9, seed=5)
    i = torch.arange(9)
    band = ((i - 3).clamp_min(0), i + 1)
    seen = dict(bounds=band) if bounds else dict(causal=True)
    output, _ = attend(query, key, value, positions=i, scoring=PLAIN, **seen)
    scores = query @ key.repeat_interleave(2, 0).transpose(-1, -2) * SCALE
    hidden = torch.ones(9, 9).triu(1).bool() | (torch.ones(9, 9).tril(-4).bool() & bounds)
    expected = scores.masked_fill(hidden, -torch.inf).softmax(-1) @ value.repeat_interleave(2, 0)
    torch.testing.assert_close(output, expected, atol=1e-6, rtol=1e-5)
    assert seen_keys == ([2, 4, 5, 5, 4] if bounds else [9])


def test_two_ways_to_say_what_is_seen_are_refused():
    query, key, value = inputs(9, 9)
    i = torch.arange(9)
    with pytest.raises(ArgumentError, match="pass only one of them"):
        attend(query, key, value, positions=i, scoring=PLAIN, causal=True, bounds=(i, i + 1))


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


@pytest.mark.parametrize("softcap", [None, 0.7])
@pytest.mark.parametrize("blocks", [2**20, 40], ids=["one block", "blocks of one query"])
@pytest.mark.parametrize("queries", [1, 6])
def test_segment_mass_is_the_softmax_summed_over_segments(queries, blocks, softcap, monkeypatch):
    monkeypatch.setitem(torch_backend.MAX_SCORES, "cpu", blocks)
    segments = [(7, 10), (1, 6), (6, 7)]
    query, key, _ = inputs(queries, 12, seed=2)
    used = torch.cat([key[:, begin:end] for begin, end in segments], dim=1).repeat_interleave(HEADS // GROUPS, dim=0)
    scores = query @ used.transpose(-1, -2) * SCALE
    weights = (scores if softcap is None else softcap * (scores / softcap).tanh()).softmax(-1)
    expected = torch.stack([part.sum(-1) for part in weights.split([3, 5, 1], dim=-1)], dim=-1)
    scoring = Scoring(Encoding(), SCALE, softcap)
    torch.testing.assert_close(segment_mass(query, key, segments, scoring), expected, atol=1e-6, rtol=1e-5)
    total = segment_mass(query, key, segments, scoring, total=True)
    torch.testing.assert_close(total, expected.sum(1, keepdim=True), atol=1e-5, rtol=1e-5)


def test_encoded_keys_encode_each_key_once_and_grow():
    keys, seen, encoded = torch.randn(2, 300, 4), [], EncodedKeys()

    def encode(new, first):
        indices = torch.arange(first, first + new.shape[-2])
        seen.extend(indices.tolist())
        return new + indices[:, None]

    for total in (7, 8, 9, 100, 101, 300):
        expected = keys[:, :total] + torch.arange(total)[:, None]
        assert torch.equal(encoded.update(keys[:, :total], encode), expected)
    assert seen == list(range(300))


def test_scores_depend_on_differences_of_positions_only():
    query, key, _ = inputs(1, 1, seed=3)
    near = ROTARY(query, torch.tensor([7]))[0, 0] @ ROTARY(key, torch.tensor([3]))[0, 0]
    far = ROTARY(query, torch.tensor([1007]))[0, 0] @ ROTARY(key, torch.tensor([1003]))[0, 0]
    torch.testing.assert_close(near, far, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("interleaved", [False, True])
def test_rotation_preserves_dtype_norm_and_unrotated_part(interleaved):
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


SPANS = [(5, 9), (9, 15), (15, 17), (17, 30)]


def groups_of(heads, sees_others):
    """Each document after a prefix, with or without the others, at positions drawn for each head."""
    starts = torch.randint(5, 60, (heads, len(SPANS), len(SPANS) + 1), generator=torch.Generator().manual_seed(6))
    starts[..., 0] = 0
    segments = [[(0, 5), *(span for span in SPANS if sees_others and span != own), own] for own in SPANS]
    return [
        Group(own, 61 + i, each, starts[:, i, : len(each)])
        for i, (own, each) in enumerate(zip(SPANS, segments, strict=True))
    ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["rotary", "interleaved", "partial", "none"])
@pytest.mark.parametrize("sees_others", [True, False])
@pytest.mark.parametrize("heads", [1, HEADS])
@pytest.mark.parametrize("moved", [1, 2500, 2**20], ids=["a head", "two groups", "all groups"])
def test_groups_computed_together_equal_each_by_itself(moved, heads, sees_others, name, dtype, monkeypatch):
    query, key, value = (x.to(dtype) for x in inputs(30, 30, seed=7))
    scoring, groups = Scoring(ENCODINGS[name], SCALE), groups_of(heads, sees_others)
    monkeypatch.setattr(torch_backend, "MAX_MOVED", moved)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    fast = attend_groups(query, key, value, groups, scoring)
    monkeypatch.setattr(torch_backend, "fused_available", lambda *_: False)
    slow = attend_groups(query, key, value, groups, scoring)
    tolerance = 1e-5 if dtype == torch.float32 else 0.03
    torch.testing.assert_close(fast, slow, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("blocks", [2**20, 1500, 40], ids=["all at once", "some documents", "a query"])
def test_document_mass_is_the_softmax_over_the_other_documents(blocks, monkeypatch):
    monkeypatch.setitem(torch_backend.MAX_SCORES, "cpu", blocks)
    query, key, _ = inputs(30, 30, seed=8)
    scores = query @ key.repeat_interleave(HEADS // GROUPS, dim=0).transpose(-1, -2) * SCALE
    expected = torch.zeros(HEADS, len(SPANS), len(SPANS))
    for i, own in enumerate(SPANS):
        seen = torch.zeros(30, dtype=torch.bool)
        seen[5:] = True
        seen[slice(*own)] = False
        weights = scores[:, slice(*own)].masked_fill(~seen, -torch.inf).softmax(-1).sum(1)
        expected[:, i] = torch.stack([weights[:, slice(*span)].sum(-1) for span in SPANS], dim=-1)
    found = document_mass(query, key, SPANS, PLAIN)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    assert found.diagonal(dim1=-2, dim2=-1).eq(0).all()
    assert document_mass(query, key, SPANS[:1], PLAIN).eq(0).all()


@pytest.mark.parametrize("sees_others", [True, False])
def test_gradients_of_several_calls_equal_the_references(sees_others, monkeypatch):
    monkeypatch.setattr(torch_backend, "MAX_MOVED", 1)

    def gradients():
        leaves = [x.requires_grad_() for x in inputs(30, 30, seed=9)]
        attend_groups(*leaves, groups_of(HEADS, sees_others), Scoring(ROTARY, SCALE))[0].square().sum().backward()
        return [leaf.grad for leaf in leaves]

    fast = gradients()
    monkeypatch.setattr(torch_backend, "fused_available", lambda *_: False)
    torch.testing.assert_close(fast, gradients(), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("lower", "upper"), [([0, 0, 0, 0], [0, 0, 0, 1]), ([3] * 17, [3] * 17), ([2, 9, 4], [5, 9, 40]), ([20], [30])]
)
def test_queries_that_see_no_key_get_zeros(lower, upper, monkeypatch):
    query, key, value = inputs(len(lower), 17, seed=10)
    query = query.repeat(1, 2, 1)  # more than one, or there is nothing to fuse
    bounds = torch.tensor(lower).repeat(2), torch.tensor(upper).repeat(2)
    arguments = dict(positions=torch.arange(2 * len(lower)) + 20, scoring=Scoring(ROTARY, SCALE), bounds=bounds)
    fast = attend(query, key, value, **arguments)
    blind = [low >= min(high, 17) for low, high in zip(lower, upper, strict=True)] * 2
    assert torch.equal(fast[1].isinf(), torch.tensor(blind).expand(HEADS, -1))
    monkeypatch.setattr(torch_backend, "fused_available", lambda *_: False)
    torch.testing.assert_close(fast, attend(query, key, value, **arguments), atol=1e-5, rtol=1e-5)


def test_vectors_whose_numbers_lie_apart_are_read_right():
    query, key, value = inputs(11, 11, seed=11)
    apart = value.transpose(1, 2).contiguous().transpose(1, 2)
    arguments = dict(positions=torch.arange(11), scoring=Scoring(ROTARY, SCALE), causal=True)
    torch.testing.assert_close(attend(query, key, apart, **arguments), attend(query, key, value, **arguments))
