"""Every method against its formula in float64: prefill, then cached decoding."""

from functools import cache, partial

import pytest
import torch
from methods.restatements import methods as slow
from methods.restatements.model import Sequence, by_view, restated_logits, within

import ragbias
from ragbias import methods
from support.random_models import decisive, random_model
from support.segments import Segments

FED = [17, 203, 5, 88]

# Seeds at which no decision is near a tie and heads and documents are distinguished; the tests assert it.
MODELS = {
    "llama": dict(family="llama", seed=76, num_key_value_heads=4),
    "llama-gqa": dict(family="llama", seed=22, hidden_size=96, num_attention_heads=6, num_key_value_heads=3),
    "qwen2": dict(family="qwen2", seed=5),
    "mistral": dict(family="mistral", seed=7, sliding_window=14),
}
SLIDING = {
    "vanilla": (lambda: "none", lambda s: slow.vanilla),
    "pine-input": (lambda: methods.Pine(order="input"), slow.pine_at_input_positions),
    "rotor": (lambda: methods.RoToR(), slow.rotor),
    "pcw": (lambda: methods.ParallelContextWindows(), slow.parallel_windows),
    "nia": (lambda: methods.NoInterDocumentAttention(), slow.no_inter_document_attention),
    "structured-prompting": (lambda: methods.StructuredPrompting(), slow.structured_prompting),
}
PROMPTS = {
    "four": Segments([8, 15, 6, 11], seed=1),
    "no-prefix": Segments([9, 5, 12, 7], prefix=0, seed=1),
    "two": Segments([13, 9], seed=12),
}


def tied(ids):
    return len(ids) % 3


CASES = {
    "pine-input": (lambda: methods.Pine(order="input"), lambda s: by_view(slow.pine_at_input_positions(s))),
    "pine-canonical": (lambda: methods.Pine(order="canonical"), lambda s: by_view(slow.pine_in_canonical_order(s))),
    "pine-canonical-middle": (
        lambda: methods.Pine(order="canonical", from_layer=1, to_layer=2),
        partial(slow.pine_in_canonical_order_with_documents_alone, first=1, last=2),
    ),
    "pine-canonical-late": (
        lambda: methods.Pine(order="canonical", from_layer=2),
        partial(slow.pine_in_canonical_order_with_documents_alone, first=2, last=9),
    ),
    "rotor": (lambda: methods.RoToR(), lambda s: by_view(slow.rotor(s))),
    "rotor-key": (lambda: methods.RoToR(key=tied), lambda s: by_view(slow.rotor(s, tied))),
    "pcw": (lambda: methods.ParallelContextWindows(), lambda s: by_view(slow.parallel_windows(s))),
    "nia": (lambda: methods.NoInterDocumentAttention(), lambda s: by_view(slow.no_inter_document_attention(s))),
    "structured-prompting": (lambda: methods.StructuredPrompting(), lambda s: by_view(slow.structured_prompting(s))),
    "ape": (lambda: methods.AdaptiveParallelEncoding(), slow.adaptive_parallel_encoding),
    "ape-strong": (
        lambda: methods.AdaptiveParallelEncoding(0.3, 1.4),
        partial(slow.adaptive_parallel_encoding, temperature=0.3, scale=1.4),
    ),
    "siw": (lambda: methods.SIW(), slow.siw),
    "siw-strong": (
        lambda: methods.SIW(dense=0.2, sparse=2.5, sigma=1.2, layers=(0, 3)),
        partial(slow.siw, dense=0.2, sparse=2.5, sigma=1.2, layers=(0, 3)),
    ),
    "siw-keep": (
        lambda: methods.SIW(dense=0.2, sparse=2.5, layers=(0, 3), outside="keep"),
        partial(slow.siw, dense=0.2, sparse=2.5, layers=(0, 3), outside="keep"),
    ),
    "nope": (lambda: methods.NoPositions(), lambda s: by_view(lambda i: dict.fromkeys(range(i + 1), (0.0, 0.0, 0.0)))),
    "position-interpolation": (
        lambda: methods.PositionInterpolation(ratio=1.5),
        lambda s: by_view(slow.position_interpolation(1.5)),
    ),
    "position-interpolation-by-layer": (
        lambda: methods.PositionInterpolation(ratio=[1.0, 2.0, 1.5, 0.8]),
        lambda s: slow.layerwise_interpolation([1.0, 2.0, 1.5, 0.8]),
    ),
    "self-extend": (lambda: methods.SelfExtend(group=4, window=16), lambda s: by_view(slow.self_extend(4, 16))),
    "self-extend-3": (lambda: methods.SelfExtend(group=3, window=10), lambda s: by_view(slow.self_extend(3, 10))),
    "ms-poe": (lambda: methods.MsPoE(variant="paper"), slow.ms_poe),
    "ms-poe-wide": (
        lambda: methods.MsPoE(min_ratio=1.0, max_ratio=3.0, layers=(1, 2), variant="paper"),
        partial(slow.ms_poe, min_ratio=1.0, max_ratio=3.0, layers=(1, 2)),
    ),
    "ms-poe-alpha": (lambda: methods.MsPoE(alpha=2.0), partial(slow.ms_poe, alpha=2.0)),
    "ms-poe-entropy": (lambda: methods.MsPoE(heads="entropy"), partial(slow.ms_poe, heads="entropy")),
    "ms-poe-sequential": (lambda: methods.MsPoE(heads="sequential"), partial(slow.ms_poe, heads="sequential")),
    "ms-poe-reversed": (lambda: methods.MsPoE(heads="reversed"), partial(slow.ms_poe, heads="reversed")),
    "channel-scaling": (
        lambda: methods.ChannelScaling(5, -1.0, layers=(1, 2)),
        lambda s: slow.channel_scaling(s, 5, -1.0, (1, 2)),
    ),
    "channel-scaling-3": (
        lambda: methods.ChannelScaling(9, 0.0, layers=(0, 2), last=3),
        lambda s: slow.channel_scaling(s, 9, 0.0, (0, 2), last=3),
    ),
    "channel-scaling-two": (
        lambda: methods.ChannelScaling((9, 4), -0.5, layers=(1, 3)),
        lambda s: slow.channel_scaling(s, [9, 4], -0.5, (1, 3)),
    ),
    "siw+channel-scaling": (
        lambda: methods.Compose(methods.SIW(), methods.ChannelScaling(5, -1.0, layers=(1, 2))),
        lambda s: slow.channel_scaling(s, 5, -1.0, (1, 2), plain=slow.siw(s)),
    ),
    "siw+self-extend": (
        lambda: methods.Compose(methods.SIW(), methods.SelfExtend(group=4, window=16)),
        lambda s: slow.siw(s, view=slow.self_extend(4, 16)),
    ),
}

NEUTRAL = {
    "vanilla": lambda s: by_view(slow.vanilla),
    "rotor": lambda s: by_view(slow.rotor(s)),
    "pcw": lambda s: by_view(slow.parallel_windows(s)),
    "nia": lambda s: by_view(slow.no_inter_document_attention(s)),
    "structured-prompting": lambda s: by_view(slow.structured_prompting(s)),
    "position-interpolation": lambda s: by_view(slow.position_interpolation(1.0)),
    "self-extend": lambda s: by_view(slow.self_extend(4, 1024)),
    "siw": partial(slow.siw, dense=1.0, sparse=1.0),
    "ms-poe": partial(slow.ms_poe, min_ratio=1.0, max_ratio=1.0, layers=(0, None)),
    "channel-scaling": lambda s: slow.channel_scaling(s, 5, 1.0, (0, 3), last=3),
}


@cache
def model(name):
    """A model whose float32 errors are below a third of the tolerance."""
    return decisive(random_model(**MODELS[name], num_hidden_layers=4))


def logits(name, ids):
    """Return logits ``[T + 4, V]`` of prefill and cached decoding of the fixed tokens."""
    with torch.no_grad():
        output = model(name)(ids, use_cache=True)
        rows = [output.logits[0]]
        for token in FED:
            output = model(name)(torch.tensor([[token]]), past_key_values=output.past_key_values, use_cache=True)
            rows.append(output.logits[0])
    return torch.cat(rows).double()


@cache
def plain(name, prompt):
    return logits(name, PROMPTS[prompt].plain[0])


def assert_equal(given, wanted):
    assert given.shape == wanted.shape
    assert (given - wanted).abs().max() <= 1e-5 * max(1.0, float(wanted.abs().max()))


def assert_decided(case, sequence):
    """Check that no decision is nearly tied, which rounding could change, and that outcomes vary."""
    outcomes = [decision.outcome for decision in sequence.decisions]
    assert all(decision.margin > 1e-4 for decision in sequence.decisions)
    if case == "ms-poe-alpha":  # equal scores, where they come up, are broken by index
        assert any(len(set(scores)) == len(scores) for scores in outcomes)
    elif case.startswith("ms-poe"):
        assert all(len(set(scores)) == len(scores) for scores in outcomes)
    elif case.startswith("siw"):
        assert any(any(dense) and not all(dense) for dense in outcomes)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(
    ("name", "prompt"),
    [("llama", "four"), ("llama-gqa", "four"), ("qwen2", "four"), ("llama-gqa", "no-prefix"), ("llama-gqa", "two")],
)
def test_method_equals_its_restatement(name, prompt, case):
    build, restate = CASES[case]
    ids, spans = PROMPTS[prompt].plain
    sequence = Sequence(ids[0].tolist() + FED, ids.shape[1], spans)
    wanted = restated_logits(model(name), sequence, restate(sequence))
    assert_decided(case, sequence)
    with ragbias.debias(model(name), build(), spans):
        given = logits(name, ids)
    changed = (given - plain(name, prompt))[[ids.shape[1] - 1, -1]].abs().amax(1)
    assert changed.min() > 2e-3
    assert_equal(given, wanted)


@pytest.mark.parametrize("case", SLIDING)
def test_sliding_windows_count_assigned_positions(case):
    build, view = SLIDING[case]
    ids, spans = PROMPTS["four"].plain
    sequence = Sequence(ids[0].tolist() + FED, ids.shape[1], spans)
    wanted = restated_logits(model("mistral"), sequence, by_view(within(14, view(sequence))))
    unlimited = restated_logits(model("mistral"), sequence, by_view(view(sequence)))
    assert (wanted - unlimited)[-1].abs().max() > 2e-3
    with ragbias.debias(model("mistral"), build(), spans):
        assert_equal(logits("mistral", ids), wanted)


@pytest.mark.parametrize("rule", NEUTRAL)
@pytest.mark.parametrize("name", ["llama", "llama-gqa", "qwen2"])
def test_neutral_restatement_equals_the_plain_model(name, rule):
    ids, spans = Segments([21], seed=4).plain
    sequence = Sequence(ids[0].tolist() + FED, ids.shape[1], spans)
    assert_equal(logits(name, ids), restated_logits(model(name), sequence, NEUTRAL[rule](sequence)))
