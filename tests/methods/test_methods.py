"""Methods that change the order of the documents."""

import itertools
import random
import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import ragbias
from ragbias import methods
from ragbias.errors import MethodError, UnknownMethodError
from ragbias.methods import (
    SIW,
    AdaptiveParallelEncoding,
    AttentionSorting,
    CanonicalOrder,
    ChannelScaling,
    Compose,
    LongContextReorder,
    MsPoE,
    PermutationVote,
    Pine,
    PositionInterpolation,
    RoToR,
    SelfExtend,
)
from ragbias.methods.attention_sorting import DocumentAttention
from support.random_models import random_model
from support.segments import Segments


def no_attention(order):
    raise AssertionError("this method needs no attention")


def numbered(count):
    return [[index] for index in range(count)]


@pytest.mark.parametrize("count", range(2, 12))
def test_long_context_reorder_equals_langchains(count):
    from langchain_community.document_transformers import LongContextReorder as Theirs
    from langchain_core.documents import Document

    theirs = Theirs().transform_documents([Document(str(index)) for index in range(count)])
    ours = LongContextReorder().rank(numbered(count), no_attention).order
    assert ours == tuple(int(document.page_content) for document in theirs)


def test_haystack_style_puts_the_best_first_and_the_second_last():
    assert LongContextReorder(style="haystack").rank(numbered(5), no_attention).order == (0, 2, 4, 3, 1)
    assert LongContextReorder(style="haystack").rank(numbered(4), no_attention).order == (0, 2, 3, 1)


@given(st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=3), min_size=1, max_size=6), st.randoms())
def test_canonical_order_does_not_depend_on_the_order(documents, rng):
    shuffled = rng.sample(documents, len(documents))
    ordered, again = (
        [each[index] for index in CanonicalOrder().rank(each, no_attention).order] for each in (documents, shuffled)
    )
    assert ordered == again == sorted(documents)


def test_attention_sorting_sorts_ascending_and_repeats():
    calls = []

    def attention(order):
        calls.append(list(order))
        return [0.3, 0.1, 0.2] if len(calls) == 1 else [0.1, 0.3, 0.2]

    assert AttentionSorting(rounds=2).rank(numbered(3), attention).order == (0, 2, 1)
    assert calls == [[0, 1, 2], [1, 2, 0]]


def test_attention_sorting_by_the_mean_divides_by_the_length():
    documents = [[1, 2, 3, 4], [5], [6, 7]]
    assert AttentionSorting().rank(documents, lambda order: [0.4, 0.2, 0.3]).order == (1, 2, 0)
    by_mean = AttentionSorting(score="mean").rank(documents, lambda order: [0.4, 0.2, 0.3])
    assert by_mean.order == (0, 2, 1) and by_mean.scores == (0.1, 0.2, 0.15)


@torch.no_grad()
def test_document_attention_equals_the_models_attention_weights():
    eager = random_model("llama", attn_implementation="eager")
    ids, spans = Segments([5, 9, 3], seed=8).plain
    weights = eager(ids, output_attentions=True).attentions
    last = torch.stack([layer[0, :, -1] for layer in weights]).mean((0, 1))
    expected = [float(last[begin:end].sum()) for begin, end in spans]
    model, observer = random_model("llama"), DocumentAttention()
    plain = model(ids).logits
    with ragbias.debias(model, observer, spans):
        assert torch.equal(model(ids).logits, plain)
    assert observer.weights[0].mean(0).tolist() == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: AttentionSorting(rounds=0), "attention-sorting: rounds=0"),
        (lambda: AttentionSorting(rounds=True), "attention-sorting: rounds=True"),
        (lambda: AttentionSorting(score="max"), "attention-sorting: score='max'"),
        (lambda: LongContextReorder(style="other"), "long-context-reorder: style='other'"),
        (lambda: PositionInterpolation(0), "position-interpolation: ratio=0"),
        (lambda: PositionInterpolation(-1.5), "position-interpolation: ratio=-1.5"),
        (lambda: PositionInterpolation([1.0, 0.0]), "position-interpolation: ratio of layer 1=0.0"),
        (lambda: PositionInterpolation([1.0, "2"]), "position-interpolation: ratio of layer 1='2'"),
        (lambda: AdaptiveParallelEncoding(temperature=0), "ape: temperature=0"),
        (lambda: AdaptiveParallelEncoding(temperature=-0.5), "ape: temperature=-0.5"),
        (lambda: AdaptiveParallelEncoding(scale=0.0), "ape: scale=0.0"),
        (lambda: AdaptiveParallelEncoding(scale=float("inf")), "ape: scale=inf"),
        (lambda: AdaptiveParallelEncoding(scale="1"), "ape: scale='1'"),
        (lambda: PositionInterpolation(float("inf")), "position-interpolation: ratio=inf"),
        (lambda: MsPoE(min_ratio=0), "ms-poe: min_ratio=0"),
        (lambda: MsPoE(max_ratio="2"), "ms-poe: max_ratio='2'"),
        (lambda: MsPoE(min_ratio=1.8, max_ratio=1.2), "ms-poe: min_ratio=1.8"),
        (lambda: MsPoE(variant="draft"), "ms-poe: variant='draft'"),
        (lambda: MsPoE(heads="normal"), "ms-poe: heads='normal'"),
        (lambda: MsPoE(alpha=0), "ms-poe: alpha=0"),
        (lambda: MsPoE(heads="random", seed=-1), "ms-poe: seed=-1"),
        (lambda: SelfExtend(group=0), "self-extend: group=0"),
        (lambda: SelfExtend(window=0), "self-extend: window=0"),
        (lambda: SelfExtend(group=2.0), "self-extend: group=2.0"),
        (lambda: SIW(dense=0), "siw: dense=0"),
        (lambda: SIW(sparse=-1), "siw: sparse=-1"),
        (lambda: SIW(sigma=float("nan")), "siw: sigma=nan"),
        (lambda: PositionInterpolation(10**400), "position-interpolation: ratio=1000000000"),
        (lambda: ChannelScaling(3, 1e300, layers=None), "channel-scaling: factor=1e+300"),
        (lambda: RoToR(key="id"), "rotor: key='id'"),
        (lambda: RoToR(selective="no"), "rotor: selective='no'"),
        (lambda: PermutationVote(samples=0), "permutation-vote: samples=0"),
        (lambda: PermutationVote(seed=-1), "permutation-vote: seed=-1"),
        (lambda: Pine(order="random"), "pine: order='random'"),
        (lambda: Pine(from_layer=0.5), "pine: from_layer=0.5"),
        (lambda: Pine(to_layer=True), "pine: to_layer=True"),
        (lambda: ChannelScaling(-1, 0.0, layers=None), "channel-scaling: channel=-1"),
        (lambda: ChannelScaling((3, 3), 0.0, layers=None), "channel-scaling: channel=(3, 3)"),
        (lambda: ChannelScaling((3, 4.0), 0.0, layers=None), "channel-scaling: channel=4.0"),
        (lambda: ChannelScaling((), 0.0, layers=None), "channel-scaling: channel=()"),
        (lambda: ChannelScaling(1, float("nan"), layers=None), "channel-scaling: factor=nan"),
        (lambda: ChannelScaling(1, 0.0, layers=None, last=0), "channel-scaling: last=0"),
    ],
)
def test_parameters_out_of_range_are_refused(make, words):
    with pytest.raises(MethodError, match=re.escape(words)):
        make()


CHANNEL = ChannelScaling(1, 0.0, layers=(0, 1))


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ((MsPoE(), SelfExtend()), "only one"),
        ((Pine(), PositionInterpolation()), "only one"),
        ((SIW(), SIW()), "with itself"),
        ((SIW(), AttentionSorting()), "before the model runs"),
        ((SIW(), "pine"), "inside the model"),
        ((SIW(), Pine()), "no paper"),
        ((SIW(),), "no paper"),
        ((SIW(), CHANNEL, SelfExtend()), "no paper"),
    ],
)
def test_contradictory_compositions_are_refused_with_the_reason(given, reason):
    with pytest.raises(MethodError, match=reason):
        Compose(*given)


def test_a_composition_is_the_same_in_any_order():
    assert Compose(SIW(), CHANNEL) == Compose(CHANNEL, SIW())
    assert hash(Compose(SIW(), SelfExtend())) == hash(Compose(SelfExtend(), SIW()))
    assert Compose(SIW(), SelfExtend()) != Compose(SIW(), CHANNEL)


UNFIT = [
    Pine(layers=(0, 4)), Pine(layers=(-1, 2)), Pine(layers=(3, 1)), Pine(layers=(0.5, 2)), Pine(layers=(True, 2)),
    Pine(layers=(None, 2)), Pine(layers="ab"), Pine(layers=()), Pine(from_layer=4), Pine(to_layer=4),
    Pine(from_layer=2, to_layer=1), MsPoE(layers=0), PositionInterpolation([1.0, 2.0]), PositionInterpolation(()),
    Pine(layers=[0, 1, 2]), SIW(layers=(2, 9)), MsPoE(layers=(5, None)), ChannelScaling(64, 0.0, layers=None),
    ChannelScaling((1, 64), 0.0, layers=None), Compose(SIW(layers=(0, 7)), CHANNEL),
    Compose(SIW(), ChannelScaling(99, 0.0, layers=None)),
]  # fmt: skip


@pytest.mark.parametrize("method", UNFIT)
def test_parameters_that_do_not_fit_the_model_are_refused(llama, method):
    with pytest.raises(MethodError, match="layer|channel"), ragbias.debias(llama, method, [(3, 5), (5, 9)]):
        pass


def test_rotors_key_sorts_the_documents():
    documents = [[5, 1], [3, 9], [4, 9]]
    assert RoToR().document_order(documents) == [1, 2, 0]
    assert RoToR(key=lambda ids: ids[-1]).document_order(documents) == [0, 1, 2]
    assert RoToR(key=lambda ids: -ids[-1]).document_order(documents) == [1, 2, 0]


def test_profiles_are_found_by_the_models_name():
    expected = ChannelScaling(213, 0, layers=(10, 25))
    assert ChannelScaling.from_profile("mistralai/Mistral-7B-Instruct-v0.2") == expected
    assert methods.get("channel-scaling", "/models/mistral-7b-instruct-v0.2/") == expected
    with pytest.raises(MethodError, match="ragbias calibrate"):
        ChannelScaling.from_profile("unknown/model")


def test_ms_poe_draws_a_random_order_by_seed_for_each_layer(llama):
    ids, spans = Segments([8, 5], seed=2).plain

    def ratios(seed):
        drawn = {}

        class Watched(MsPoE):
            def _ratios(self, seq):
                found = super()._ratios(seq)
                drawn[seq.layer] = found[1].tolist()
                return found

        with torch.no_grad(), ragbias.debias(llama, Watched(heads="random", layers=(0, None), seed=seed), spans):
            llama(ids)
        return drawn

    assert ratios(3) == ratios(3)
    by_seed = [ratios(seed) for seed in range(12)]
    assert len({str(each) for each in by_seed}) > 1
    assert any(len({str(each) for each in layers.values()}) > 1 for layers in by_seed)


def test_every_method_is_found_by_its_name():
    for name in methods.METHODS:
        if name != "channel-scaling":
            assert methods.get(name).name == name
    with pytest.raises(UnknownMethodError, match="did you mean 'attention-sorting'"):
        methods.get("attention_sorting")
    with pytest.raises(UnknownMethodError, match=r"an instance such as Pine\(\)"):
        methods.get(Pine)
    with pytest.raises(UnknownMethodError, match="'none' runs the plain model"):
        methods.get(5)


def test_pine_ablations_differ_all_invariant_but_input_order(llama):
    segments = Segments([8, 5, 11, 7], seed=2)
    results = {}
    for order in ("importance", "reverse", "canonical", "input"):
        for arrangement in (range(4), random.Random(1).sample(range(4), 4)):
            ids, spans = segments.arranged(arrangement)
            with torch.no_grad(), ragbias.debias(llama, Pine(order=order), spans):
                logits = llama(ids).logits[:, -9:]
            same = torch.equal(results.setdefault(order, logits), logits)
            assert same or order == "input"
        assert Pine(order=order).invariant == same
    for one, other in itertools.combinations(results.values(), 2):
        assert not torch.allclose(one, other, atol=1e-2)


def test_a_wrong_order_of_pine_names_those_without_importances():
    with pytest.raises(MethodError, match="order='none'; expected one of .*'canonical' sorts by .*'input' moves no"):
        Pine(order="none")
