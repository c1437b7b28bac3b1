"""Every intervention against a simple float64 version, on the plain model and on top of methods."""

from functools import cache

import pytest
import torch
from methods.restatements import methods as slow
from methods.restatements.model import AttentionLayer, Sequence, by_view, restated_logits

import ragbias
from ragbias.methods import (
    SIW,
    ChannelScaling,
    Compose,
    MsPoE,
    NoPositions,
    ParallelContextWindows,
    Pine,
    PositionInterpolation,
    RoToR,
    SelfExtend,
)
from studies.interventions import (
    AddToChannel,
    HideKeys,
    Intervened,
    ScaleAttention,
    ScaleChannel,
    ScaleInitialToken,
    ShiftPositions,
)
from support.random_models import decisive, random_model
from support.segments import Segments, padded

FED = [17, 203, 5, 88]
IDS, SPANS = Segments([8, 15, 6, 11], seed=1).plain  # tokens 0-7, documents 7-15-30-36-47, question 47-56
SEQUENCE = Sequence(IDS[0].tolist() + FED, IDS.shape[1], SPANS)
END = len(SEQUENCE.ids)


@cache
def model(**changes):
    """A model as in the restatements of the methods."""
    shape = dict(hidden_size=96, num_attention_heads=6, num_key_value_heads=3)
    return decisive(random_model("llama", seed=22, **shape, **changes))


def logits(of=None, **first):
    """Return logits ``[T + 4, V]`` of prefill and cached decoding of the fixed tokens."""
    of = of or model()
    with torch.no_grad():
        output = of(IDS, use_cache=True, **first)
        rows = [output.logits[0]]
        for token in FED:
            output = of(torch.tensor([[token]]), past_key_values=output.past_key_values, use_cache=True)
            rows.append(output.logits[0])
    return torch.cat(rows)


def intervened_logits(*interventions, on=None):
    with ragbias.debias(model(), Intervened(*interventions, on=on), SPANS):
        return logits()


def assert_equal(given, wanted):
    assert given.shape == wanted.shape
    assert (given.double() - wanted).abs().max() <= 1e-5 * max(1.0, float(wanted.abs().max()))


# restatements


def weighted(rule, queries, keys, factor, renormalise=True, layers=(0, 3)):
    """Multiply a rule's weights of the queries on the keys by a factor, with or without keeping each query's sum."""

    def changed(attn):
        weights = rule(attn)
        if layers[0] <= attn.layer <= layers[1]:
            for i in queries:
                before = weights[:, i].sum(1, keepdim=True)
                weights[:, i, list(keys)] *= factor
                if renormalise:
                    weights[:, i] *= before / weights[:, i].sum(1, keepdim=True)
        return weights

    return changed


def with_channel(rule, channel, change, of="both", layers=(0, 3)):
    """Wrap a rule so that queries, keys or both come from states with a changed channel."""

    class Changed(AttentionLayer):
        def query_key(self, hidden):
            changed = hidden.clone()
            changed[:, channel] = change(hidden[:, channel])
            raw, new = super().query_key(hidden), super().query_key(changed)
            return raw[0] if of == "key" else new[0], raw[1] if of == "query" else new[1]

    def rule_of(attn):
        return rule(Changed(**vars(attn)) if layers[0] <= attn.layer <= layers[1] else attn)

    return rule_of


def shifted(span, by, more=()):
    """Shift the positions of spans in the plain view."""
    moved = {i: i for i in range(END)}
    for (begin, end), amount in ((span, by), *more):
        moved |= {i: moved[i] + amount for i in range(begin, end)}
    return lambda i: {j: (moved[i], moved[j], 0.0) for j in range(i + 1)}


plain = by_view(slow.vanilla)
QUESTION = range(47, END)
HIDE = HideKeys((30, 50), (3, 28))
CASES = {
    "hide": ([HIDE], None, weighted(plain, range(30, 50), range(3, 28), 0)),
    "hide-named": ([HideKeys("question", 2)], None, weighted(plain, QUESTION, range(30, 36), 0)),
    "hide-prefix": ([HideKeys("documents", "prefix")], None, weighted(plain, range(7, 47), range(7), 0)),
    "hide-in-layers": (
        [HideKeys((20, None), (0, 20), layers=(1, 2))],
        None,
        weighted(plain, range(20, END), range(20), 0, layers=(1, 2)),
    ),
    "hide-twice": (
        [HideKeys("question", 0), HideKeys("question", 3)],
        None,
        weighted(plain, QUESTION, [*range(7, 15), *range(36, 47)], 0),
    ),
    "double": ([ScaleAttention("question", 1, 2.0)], None, weighted(plain, QUESTION, range(15, 30), 2)),
    "double-raw": (
        [ScaleAttention("question", 1, 2.0, renormalise=False)],
        None,
        weighted(plain, QUESTION, range(15, 30), 2, renormalise=False),
    ),
    "shift": ([ShiftPositions((20, 40), -15)], None, by_view(shifted((20, 40), -15))),
    "shift-to-the-end": ([ShiftPositions("question", 30)], None, by_view(shifted((47, END), 30))),
    "shift-twice": (
        [ShiftPositions(0, 9), ShiftPositions((10, 20), -4)],
        None,
        by_view(shifted((7, 15), 9, [((10, 20), -4)])),
    ),
    "scale-channel": ([ScaleChannel(5, -1.5)], None, with_channel(plain, 5, lambda c: -1.5 * c)),
    "scale-channel-of-queries": (
        [ScaleChannel(5, 3.0, layers=(2, None), of="query")],
        None,
        with_channel(plain, 5, lambda c: 3 * c, "query", (2, 3)),
    ),
    "subtract": ([AddToChannel(9, -2.0)], None, with_channel(plain, 9, lambda c: c - 2)),
    "add-to-keys": ([AddToChannel(9, 1.5, of="key")], None, with_channel(plain, 9, lambda c: c + 1.5, "key")),
    "d-it": (
        [ScaleInitialToken((1, 3), within=0.2)],
        None,
        weighted(plain, [*range(15, 30), *range(36, 47)], [0], 0.2, renormalise=False),
    ),
    "i-it": (
        [ScaleInitialToken(2, elsewhere=3.0)],
        None,
        weighted(plain, [*range(1, 30), *range(36, 56)], [0], 3, renormalise=False),
    ),
    "both-with-another-token": (
        [ScaleInitialToken(1, within=0.2, elsewhere=3.0, token=9)],
        None,
        weighted(
            weighted(plain, range(15, 30), [9], 0.2, renormalise=False),
            [*range(10, 15), *range(30, 56)],
            [9],
            3,
            renormalise=False,
        ),
    ),
    "all-kinds": (
        [HIDE, ShiftPositions((20, 40), -15), ScaleChannel(5, 2.0), ScaleAttention("question", 3, 4.0)],
        None,
        weighted(
            weighted(with_channel(by_view(shifted((20, 40), -15)), 5, lambda c: 2 * c), range(30, 50), range(3, 28), 0),
            QUESTION,
            range(36, 47),
            4,
        ),
    ),
    "hide-on-canonical-pine": (
        [HideKeys("question", 1), HideKeys((16, 20), (1, 12))],
        Pine(order="canonical"),
        weighted(
            weighted(by_view(slow.pine_in_canonical_order(SEQUENCE)), QUESTION, range(15, 30), 0),
            range(16, 20),
            range(1, 12),
            0,
        ),
    ),
    "double-on-rotor-where-it-does-not-act": (
        [ScaleAttention("question", (40, 45), 2.0, layers=(3, 3)), AddToChannel(3, 1.0)],
        RoToR(),
        weighted(
            with_channel(by_view(slow.rotor(SEQUENCE)), 3, lambda c: c + 1), QUESTION, range(40, 45), 2, layers=(3, 3)
        ),
    ),
    "hide-on-ms-poe-in-other-layers": (
        [HIDE],
        MsPoE(layers=(1, 2)),
        weighted(slow.ms_poe(SEQUENCE, layers=(1, 2)), range(30, 50), range(3, 28), 0),
    ),
    "hide-on-pcw": (
        [HideKeys("question", 1)],
        ParallelContextWindows(),
        weighted(by_view(slow.parallel_windows(SEQUENCE)), QUESTION, range(15, 30), 0),
    ),
    "double-on-siw-and-self-extend": (
        [ScaleAttention("question", 0, 2.0)],
        Compose(SIW(), SelfExtend(4, 16)),
        weighted(slow.siw(SEQUENCE, view=slow.self_extend(4, 16)), QUESTION, range(7, 15), 2),
    ),
    "shift-on-siw": ([ShiftPositions(1, 12)], SIW(), slow.siw(SEQUENCE, view=shifted((15, 30), 12))),
    "shift-on-scaled-channel-in-other-layers": (
        [ShiftPositions("question", 5, layers=(3, 3)), ScaleChannel(2, 2.0, layers=(1, 3))],
        ChannelScaling(5, -1.0, layers=(1, 2)),
        lambda attn: (
            with_channel(by_view(shifted((47, END), 5)), 2, lambda c: 2 * c)(attn)
            if attn.layer == 3
            else with_channel(slow.channel_scaling(SEQUENCE, 5, -1.0, (1, 2)), 2, lambda c: 2 * c, layers=(1, 3))(attn)
        ),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_intervention_equals_its_restatement(case):
    interventions, on, rule = CASES[case]
    wanted = restated_logits(model(), SEQUENCE, rule)
    assert (wanted - unchanged(on))[47:].abs().max() > 2e-3
    assert_equal(intervened_logits(*interventions, on=on), wanted)


@cache
def unchanged(on):
    with ragbias.debias(model(), "none" if on is None else on, SPANS):
        return logits().double()


NEUTRAL = {
    "channel": [ScaleChannel(5, 1), AddToChannel(5, 0)],
    "shift": [ShiftPositions((5, 50), 0)],
    "attention": [ScaleAttention("question", (3, 40), 1), ScaleAttention("question", 1, 1, renormalise=False)],
    "initial-token": [ScaleInitialToken((0, 1))],
    "hide": [HideKeys((3, 10), (20, 40))],  # what comes later is seen by none of them
}


@pytest.mark.parametrize("case", NEUTRAL)
def test_neutral_intervention_is_the_plain_model(case):
    assert_equal(intervened_logits(*NEUTRAL[case]), unchanged(None))


def test_hiding_equals_a_mask_and_shifting_equals_position_ids():
    eager = model(attn_implementation="eager")
    count = IDS.shape[1]
    visible = torch.ones(count, count, dtype=torch.bool).tril()
    visible[30:50, 3:28] = False
    mask = torch.zeros(count, count).masked_fill(~visible, torch.finfo(torch.float32).min)
    positions = torch.arange(count)
    positions[20:40] -= 15
    with torch.no_grad():
        masked = eager(IDS, attention_mask=mask[None, None]).logits[0]
        moved = eager(IDS, position_ids=positions[None], attention_mask=torch.ones_like(IDS)).logits[0]
    assert_equal(intervened_logits(HIDE)[:count], masked.double())
    assert_equal(intervened_logits(ShiftPositions((20, 40), -15))[:count], moved.double())


def test_siws_rule_for_the_documents_it_finds():
    found = SIW(dense=0.3, sparse=2.0, layers=(1, 1))
    rule = slow.siw(SEQUENCE, 0.3, 2.0, layers=(1, 1))
    SEQUENCE.decisions.clear()
    restated_logits(model(), SEQUENCE, rule)
    dense = tuple(index for index, is_dense in enumerate(SEQUENCE.decisions[-1].outcome) if is_dense)
    assert 0 < len(dense) < 4
    given = intervened_logits(ScaleInitialToken(dense, within=0.3, elsewhere=2.0, layers=(1, 1)))
    assert_equal(given, unchanged(found))


def test_each_sequence_of_a_padded_batch_is_as_alone():
    prompts = [Segments([8, 15, 6], seed=1).plain, Segments([5, 4, 9], prefix=3, seed=2).plain]
    ids, mask, spans = padded(prompts)
    changes = [HideKeys("question", 1), ShiftPositions((2, 10), 7), ScaleInitialToken(0, elsewhere=2.0)]
    for on in (None, ChannelScaling(5, -1.0, layers=(1, 2))):
        method = Intervened(*changes, on=on)
        with torch.no_grad(), ragbias.debias(model(), method, spans):
            together = model()(ids, attention_mask=mask).logits[:, -1]
        for row, (own, own_spans) in zip(together, prompts, strict=True):
            with torch.no_grad(), ragbias.debias(model(), method, own_spans):
                assert_equal(model()(own).logits[0, -1], row.double())


@pytest.mark.parametrize("family", ["qwen3", "phi3", "gemma2", "gpt_neox", "smollm3", "cohere", "mpt"])
def test_families_take_every_intervention(family):
    built = random_model(family, attn_implementation="eager")
    changes = [HideKeys((30, 40), (2, 20)), ScaleAttention("question", 1, 2.0), AddToChannel(3, 1.0)]
    changes += [] if family == "mpt" else [ShiftPositions((20, 30), 4)]
    with torch.no_grad():
        before = built(IDS).logits
        with ragbias.debias(built, Intervened(*changes), SPANS):
            changed = built(IDS).logits
        neutral = [HideKeys((2, 5), (20, 40)), ScaleAttention("question", 1, 1.0), AddToChannel(3, 0.0)]
        neutral += [] if family == "mpt" else [ShiftPositions((20, 30), 0)]
        with ragbias.debias(built, Intervened(*neutral), SPANS):
            torch.testing.assert_close(built(IDS).logits, before, atol=2e-4, rtol=1e-4)
    assert (changed - before)[0, -1].abs().max() > 1e-2


def test_shifting_is_refused_where_a_method_gives_positions():
    for on in (Pine(), PositionInterpolation(2.0), NoPositions(), Compose(SIW(), SelfExtend())):
        words = f"shift on {on.name.split('+')[0]}.*both assign positions"
        with pytest.raises(ragbias.errors.MethodError, match=words):
            Intervened(ShiftPositions(0, 3), on=on)


def test_nearly_all_weight_may_lie_on_hidden_keys():
    """With sharp attention, the remaining weights are 0 in float32, so the plain model's scores are changed instead."""
    sharp, eager = (random_model("llama", attn_implementation=name) for name in ("sdpa", "eager"))
    hidden = HideKeys((20, 40), (0, 20))
    mask = torch.ones(56, 56, dtype=torch.bool).tril()
    mask[20:40, :20] = False
    with torch.no_grad():
        for built in (sharp, eager):
            for layer in built.model.layers:
                layer.self_attn.q_proj.weight *= 60
        wanted = eager(IDS, attention_mask=torch.where(mask, 0, torch.finfo(torch.float32).min)[None, None]).logits
        with ragbias.debias(sharp, Intervened(hidden)):
            torch.testing.assert_close(sharp(IDS).logits, wanted, atol=1e-3, rtol=1e-3)
        with (
            pytest.raises(ragbias.errors.MethodError, match="nope: in layer 0 a query has weight only on hidden keys"),
            ragbias.debias(sharp, Intervened(hidden, on=NoPositions())),
        ):
            sharp(IDS)
