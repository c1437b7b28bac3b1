"""Every method on every model family: neutral parameters, cache, order, batch."""

from functools import cache
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

import ragbias
from ragbias.binding.architectures import ROTARY
from ragbias.errors import UnsupportedModelError
from ragbias.methods import (
    METHODS,
    SIW,
    AdaptiveParallelEncoding,
    AttentionMethod,
    ChannelScaling,
    Compose,
    MsPoE,
    NoInterDocumentAttention,
    NoPositions,
    ParallelContextWindows,
    Pine,
    PositionInterpolation,
    RoToR,
    SegmentMethod,
    SelfExtend,
    StructuredPrompting,
)
from support.random_models import FAMILIES, random_model
from support.segments import Segments, padded


class Entry(NamedTuple):
    """A method, and what holds for it.

    Attributes:
        method: the method as it acts.
        neutral: the method with parameters that change nothing. ``None`` for methods that change nothing if there is
            only one document, and ``NEVER_NEUTRAL`` for methods that always change something.
        cached: whether generation without a cache gives the same, unless the definition looks at the last token.
    """

    method: Any
    neutral: Any
    cached: bool


NEVER_NEUTRAL = False
ENTRIES = {
    "pine": Entry(Pine(), None, True),
    "pine, input order": Entry(Pine(order="input"), None, True),
    "pine, together in two layers": Entry(Pine(from_layer=1, to_layer=2), None, True),
    "rotor": Entry(RoToR(), None, True),
    "pcw": Entry(ParallelContextWindows(), None, True),
    "nia": Entry(NoInterDocumentAttention(), None, True),
    "structured-prompting": Entry(StructuredPrompting(), None, True),
    "ape": Entry(AdaptiveParallelEncoding(0.6, 0.7), AdaptiveParallelEncoding(1, 1), True),
    "channel-scaling": Entry(ChannelScaling(5, -0.5, (1, 2)), ChannelScaling(5, 1.0, (1, 2)), False),
    "channel-scaling, 3 queries": Entry(ChannelScaling(5, 0.0, (0, 2), 3), ChannelScaling(5, 1.0, None, 3), False),
    "channel-scaling, all queries": Entry(ChannelScaling(5, 0, (1, 2), "all"), ChannelScaling(5, 1, None, "all"), True),
    "siw": Entry(SIW(0.3, 3.0, layers=(0, None)), SIW(1.0, 1.0, layers=(0, None)), False),
    "ms-poe": Entry(MsPoE(layers=(1, None)), MsPoE(1.0, 1.0, layers=(0, None)), False),
    "ms-poe, released": Entry(MsPoE(variant="released"), MsPoE(1.0, 1.0, variant="released"), False),
    "ms-poe, entropy": Entry(MsPoE(heads="entropy", layers=(1, None)), MsPoE(1, 1, heads="entropy"), False),
    "ms-poe, random": Entry(MsPoE(heads="random", layers=(1, None)), MsPoE(1, 1, heads="random"), True),
    "ms-poe, reversed": Entry(MsPoE(heads="reversed"), MsPoE(1.0, 1.0, heads="reversed"), True),
    "position-interpolation": Entry(PositionInterpolation(2.5), PositionInterpolation(1.0), True),
    "position-interpolation, by layer": Entry(
        PositionInterpolation([1.0, 2.5, 1.8, 0.7]), PositionInterpolation([1.0] * 4), True
    ),
    "nope": Entry(NoPositions(), NEVER_NEUTRAL, True),
    "self-extend": Entry(SelfExtend(3, 8), SelfExtend(1, 8), True),
    "siw with channel scaling": Entry(
        Compose(SIW(0.3, 3.0), ChannelScaling(5, 0.0, (2, 3))), Compose(SIW(1, 1), ChannelScaling(5, 1, (2, 3))), False
    ),
    "siw with self-extend": Entry(
        Compose(SIW(0.3, 3.0), SelfExtend(3, 8)), Compose(SIW(1.0, 1.0), SelfExtend(1, 8)), False
    ),
}
ROPE_ONLY = {name for name, entry in ENTRIES.items() if entry.method.needs_rotary}
# families with the features that parameters of a method can meet: biases by distance, softcap and sliding windows,
# partial and interleaved rotary, layers without rope; all others see each method with one choice of parameters
UNUSUAL = ("llama", "mpt", "gemma2", "gpt_neox", "glm", "smollm3")
PAIRS = [
    (family, name)
    for family in FAMILIES
    for name in ENTRIES
    if (family in ROTARY or name not in ROPE_ONLY) and (family in UNUSUAL or ", " not in name)
]
ORDERS = [(2, 1, 0), (1, 2, 0)]  # besides that of the prompt
SEGMENTS, SHORTER = Segments([9, 6, 12], seed=1), Segments([4, 8, 3, 5], seed=5)
OPTIONS = dict(max_new_tokens=3, do_sample=False, eos_token_id=None, pad_token_id=0)
OPTIONS |= dict(return_dict_in_generate=True, output_logits=True)


@pytest.fixture(scope="module")
def models():
    return {family: random_model(family) for family in FAMILIES}


def assert_close(left, right):
    scale = max(1.0, float(right.abs().max()))
    torch.testing.assert_close(left, right, atol=1e-5 * scale, rtol=0)


@torch.no_grad()
def generated(model, method, ids, spans, mask=None, use_cache=True):
    """Generated ids ``[batch, steps]`` and their logits ``[steps, batch, V]``."""
    mask = torch.ones_like(ids) if mask is None else mask
    with ragbias.debias(model, method, spans):
        output = model.generate(ids, attention_mask=mask, use_cache=use_cache, **OPTIONS)
    return output.sequences[:, ids.shape[1] :], torch.stack(output.logits)


@cache
def plain(model):
    """The plain model's answer, and its logits of the whole prompt."""
    with torch.no_grad():
        prefill = model(SEGMENTS.plain[0], use_cache=True).logits
    return *generated(model, "none", SEGMENTS.plain[0], None), prefill


class Pair(NamedTuple):
    """A model with a method, and its answer to the prompt, which all tests of the pair share."""

    model: PreTrainedModel
    entry: Entry
    answer: tuple[Tensor, Tensor]


@pytest.fixture(scope="module", params=PAIRS, ids=lambda pair: "-".join(pair))
def pair(request, models):
    family, name = request.param
    return Pair(models[family], ENTRIES[name], generated(models[family], ENTRIES[name].method, *SEGMENTS.plain))


@pytest.mark.parametrize("name", ENTRIES)
def test_methods_run_under_autocast(models, name):
    ids, spans = SEGMENTS.plain
    autocast = torch.autocast("cpu", dtype=torch.bfloat16)
    with autocast, torch.no_grad(), ragbias.debias(models["llama"], ENTRIES[name].method, spans):
        assert models["llama"](ids).logits.isfinite().all()


def test_only_neutral_parameters_give_the_plain_model(pair):
    model, (method, neutral, _) = pair.model, pair.entry
    ids, spans = SEGMENTS.plain
    answer, logits, of_prompt = plain(model)
    assert (logits[0] - pair.answer[1][0]).abs().max() > 1e-3
    if neutral is NEVER_NEUTRAL:
        return
    neutral = neutral or method
    if isinstance(neutral, SegmentMethod):
        spans = [(spans[0][0], spans[-1][1])]
    with torch.no_grad(), ragbias.debias(model, neutral, spans):
        assert_close(model(ids, use_cache=True).logits, of_prompt)
    same = generated(model, neutral, ids, spans)
    assert torch.equal(answer, same[0])
    assert_close(same[1], logits)


def test_generation_without_a_cache_gives_the_same_if_it_can(pair):
    if not pair.entry.cached:
        return
    uncached = generated(pair.model, pair.entry.method, *SEGMENTS.plain, use_cache=False)
    assert torch.equal(pair.answer[0], uncached[0])
    assert_close(pair.answer[1], uncached[1])


def test_it_is_bit_identical_in_any_order_iff_it_claims_so(pair):
    method = pair.entry.method
    others = [generated(pair.model, method, *SEGMENTS.arranged(order)) for order in ORDERS]
    same = all(torch.equal(one, other) for each in others for one, other in zip(each, pair.answer, strict=True))
    assert same == method.invariant


def test_a_row_of_a_batch_equals_its_single_run(pair):
    method = pair.entry.method
    ids, mask, spans = padded([SEGMENTS.plain, SHORTER.plain])
    together = generated(pair.model, method, ids, spans, mask)
    for row, alone in enumerate((pair.answer, generated(pair.model, method, *SHORTER.plain))):
        assert torch.equal(together[0][row], alone[0][0])
        assert_close(together[1][:, row], alone[1][:, 0])


@pytest.mark.parametrize("family", FAMILIES)
def test_ape_with_temperature_and_scale_one_is_pcw_to_the_bit(models, family):
    prompt = Segments([9, 6, 12], seed=6).plain
    ones, pcw = (
        generated(models[family], method, *prompt)
        for method in (AdaptiveParallelEncoding(1.0, 1), ParallelContextWindows())
    )
    assert torch.equal(ones[0], pcw[0])
    assert torch.equal(ones[1], pcw[1])


@pytest.mark.parametrize("name", sorted(ROPE_ONLY))
def test_methods_for_rotary_positions_are_refused_on_alibi(models, name):
    ids, spans = Segments([9, 6], seed=1).plain
    with pytest.raises(UnsupportedModelError, match="alibi"):
        generated(models["mpt"], ENTRIES[name].method, ids, spans)


def test_every_method_inside_the_model_is_here():
    inside = {name for name, method in METHODS.items() if issubclass(method, AttentionMethod)}
    assert inside == {entry.method.name for entry in ENTRIES.values() if not isinstance(entry.method, Compose)}
