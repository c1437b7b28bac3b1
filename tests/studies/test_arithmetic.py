"""Operation counts, against counts by hand and pair by pair."""

import pytest
from transformers import AutoConfig

from ragbias.methods import (
    SIW,
    AttentionMethod,
    ChannelScaling,
    MsPoE,
    NoInterDocumentAttention,
    NoMethod,
    ParallelContextWindows,
    Pine,
    PositionInterpolation,
    RoToR,
    SelfExtend,
    StructuredPrompting,
)
from studies.arithmetic import (
    ModelShape,
    PromptLengths,
    added_multiply_adds,
    decode_limit,
    plain_prefill,
    plain_reads,
    prefill_limit,
    shape_of,
)
from studies.speed_inputs import make_config

SHAPE = ModelShape(hidden=10, intermediate=7, heads=4, key_heads=2, head_dim=3, layers=3, vocabulary=11)
LENGTHS = PromptLengths(prefix=2, documents=(3, 1, 4), suffix=2)


def visible(lengths, sees_others):
    """Count the visible pairs of a segment method one by one."""
    parts = [0] * lengths.prefix + [part for part, length in enumerate(lengths.documents, 1) for _ in range(length)]
    parts += [len(lengths.documents) + 1] * lengths.suffix
    last = len(lengths.documents) + 1

    def sees(query, key):
        if parts[query] in (0, last) or parts[key] in (0, parts[query]):
            return key <= query
        return sees_others and parts[key] != last

    return sum(sees(query, key) for query in range(len(parts)) for key in range(len(parts)))


def test_the_plain_model_is_counted_as_by_hand():
    # q and o: 10 x 12 each; k and v: 10 x 6 each; MLP: 3 x 10 x 7; 12 tokens see 78 keys, scored and weighed over 12
    layer = 12 * (120 + 120 + 60 + 60 + 210) + 2 * 12 * 78
    assert plain_prefill(SHAPE, LENGTHS) == 3 * layer + 10 * 11
    assert plain_reads(SHAPE, [LENGTHS, LENGTHS]) == 3 * (570 + 2 * 2 * 6 * 12) + 110


def test_methods_add_what_they_let_be_seen_more():
    plain = visible(LENGTHS, False) + 3 * 1 + 4 * 4  # below the diagonal, a document sees the ones before it
    assert plain == 78
    for method in (ParallelContextWindows(), NoInterDocumentAttention(), StructuredPrompting()):
        assert added_multiply_adds(method, SHAPE, LENGTHS) == 2 * 12 * (visible(LENGTHS, False) - 78) < 0
    rotor = added_multiply_adds(RoToR(), SHAPE, LENGTHS)
    assert rotor == 2 * 12 * (visible(LENGTHS, True) - 78) == 2 * 12 * 19
    importances = 3 * 5 + 1 * 7 + 4 * 4 + 2 * 8
    assert added_multiply_adds(Pine(), SHAPE, LENGTHS) == rotor + 12 * importances
    assert added_multiply_adds(Pine(order="canonical"), SHAPE, LENGTHS) == rotor  # nothing is measured
    apart = 2 * 12 * (visible(LENGTHS, False) - 78)
    late = added_multiply_adds(Pine(order="canonical", from_layer=1), SHAPE, LENGTHS)
    assert late == (2 * rotor + apart) / 3  # of three layers


def test_methods_that_score_one_query_add_one_row():
    row = 12 * 12  # a score with each of 12 tokens, over heads of 12 dimensions in all
    assert added_multiply_adds(MsPoE(), SHAPE, LENGTHS) == row
    assert added_multiply_adds(MsPoE(heads="reversed"), SHAPE, LENGTHS) == 0
    assert added_multiply_adds(SIW(), SHAPE, LENGTHS) == 2 * row
    keys, query = 12 * 6, 10 * 12
    assert added_multiply_adds(ChannelScaling(0, 0.0, None), SHAPE, LENGTHS) == keys + query + 2 * row
    two = added_multiply_adds(ChannelScaling(0, 0.0, None, last=2), SHAPE, LENGTHS)
    assert two == keys + 2 * query + 2 * (row + row - 12)
    for method in (SelfExtend(), PositionInterpolation(), NoMethod(), ChannelScaling(0, 0.0, None, last="all")):
        assert added_multiply_adds(method, SHAPE, LENGTHS) == 0


def test_a_method_counts_in_its_layers_only_and_in_each_prompt():
    other = PromptLengths(1, (5, 5), 3)
    plain = plain_prefill(SHAPE, LENGTHS) + plain_prefill(SHAPE, other)
    added = added_multiply_adds(Pine(), SHAPE, LENGTHS) + added_multiply_adds(Pine(), SHAPE, other)
    assert prefill_limit(SHAPE, [LENGTHS, other], Pine(layers=(1, 1))) == pytest.approx(1 + added / plain)
    assert prefill_limit(SHAPE, [LENGTHS, other], Pine()) == pytest.approx(1 + 3 * added / plain)
    assert prefill_limit(SHAPE, [LENGTHS], NoMethod()) == 1


def test_decoding_reads_raw_keys_to_measure_importances():
    reads = plain_reads(SHAPE, [LENGTHS, LENGTHS])
    assert decode_limit(SHAPE, [LENGTHS, LENGTHS], Pine()) == pytest.approx(1 + 3 * 2 * 6 * 8 / reads)
    for method in (Pine(order="canonical"), RoToR(), ParallelContextWindows(), MsPoE(), ChannelScaling(0, 0.0, None)):
        assert decode_limit(SHAPE, [LENGTHS], method) == 1


def test_a_method_nobody_counted_has_no_limit():
    class Own(AttentionMethod):
        name = "own"

    assert prefill_limit(SHAPE, [LENGTHS], Own()) is None
    assert decode_limit(SHAPE, [LENGTHS], Own()) is None


@pytest.mark.parametrize(("count", "tokens", "ratio"), [(20, 140, 1.09), (100, 300, 1.71)])
def test_pine_at_8b_comes_to_the_ratios_of_the_design(count, tokens, ratio):
    shape = shape_of(make_config("8b", 2))
    assert prefill_limit(shape, [PromptLengths(20, (tokens,) * count, 30)], Pine()) == pytest.approx(ratio, abs=0.005)


@pytest.mark.parametrize(
    ("family", "settings", "weights"),
    [
        ("llama", dict(num_key_value_heads=2, intermediate_size=96), 2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 96),
        ("gpt_neox", dict(intermediate_size=96), 4 * 64 * 64 + 2 * 64 * 96),
        ("mpt", dict(d_model=64, n_heads=4, n_layers=1), 4 * 64 * 64 + 2 * 64 * 256),
        (
            "qwen3_moe",
            dict(num_key_value_heads=2, head_dim=16, num_experts=8, num_experts_per_tok=2, moe_intermediate_size=32),
            2 * 64 * 64 + 2 * 64 * 32 + 2 * 3 * 64 * 32,
        ),
    ],
)
def test_shapes_are_read_from_configs_of_other_families(family, settings, weights):
    sizes = {} if family == "mpt" else dict(hidden_size=64, num_attention_heads=4)
    shape = shape_of(AutoConfig.for_model(family, **sizes, **settings))
    assert shape.weights(shape.active_experts) == weights
