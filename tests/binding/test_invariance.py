"""PINE is bit-identical for every order of the documents."""

import itertools
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import ragbias
from ragbias.methods import Pine
from support.random_models import random_model
from support.segments import Segments, padded

DTYPES = [torch.float32, torch.bfloat16]


def answer(model, ids, spans, mask=None, steps=6):
    """Suffix logits of the prefill, and greedily generated ids with their logits."""
    with ragbias.debias(model, Pine(), spans), torch.no_grad():
        prefill = model(ids, attention_mask=mask).logits[:, -9:]
        output = model.generate(
            ids,
            attention_mask=torch.ones_like(ids) if mask is None else mask,
            max_new_tokens=steps,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
            return_dict_in_generate=True,
            output_logits=True,
        )
    return prefill, torch.stack(output.logits), output.sequences[:, ids.shape[1] :]


def assert_same_bits(left, right):
    for one, other in zip(left, right, strict=True):
        assert torch.equal(one, other)


@pytest.fixture(scope="module", params=DTYPES, ids=str)
def model(request):
    return random_model("llama").to(request.param)


def test_all_permutations_of_four_documents(model):
    segments = Segments([11, 7, 14, 9])
    expected = answer(model, *segments.plain)
    for order in itertools.permutations(range(4)):
        assert_same_bits(answer(model, *segments.arranged(order)), expected)


def test_random_permutations_of_twenty_documents(model):
    segments = Segments([5 + index % 7 for index in range(20)], seed=3)
    expected = answer(model, *segments.plain)
    for seed in range(6):
        order = random.Random(seed).sample(range(20), 20)
        assert_same_bits(answer(model, *segments.arranged(order)), expected)


def test_permutations_within_a_padded_batch(model):
    rows = [Segments([6, 9, 4], seed=1), Segments([12, 3, 8, 5, 7], seed=2), Segments([10, 10], seed=3)]
    ids, mask, spans = padded([row.plain for row in rows])
    expected = answer(model, ids, spans, mask)
    for seed in range(6):
        rng = random.Random(seed)
        orders = [rng.sample(range(len(row.documents)), len(row.documents)) for row in rows]
        ids, mask, spans = padded([row.arranged(order) for row, order in zip(rows, orders, strict=True)])
        assert_same_bits(answer(model, ids, spans, mask), expected)


def test_equal_documents_and_documents_that_begin_alike(model):
    segments = Segments([6, 6, 6, 6], seed=5)
    segments.documents[1] = list(segments.documents[0])
    segments.documents[2] = [*segments.documents[0], 17]
    expected = answer(model, *segments.plain)
    for order in itertools.permutations(range(4)):
        assert_same_bits(answer(model, *segments.arranged(order)), expected)


@given(lengths=st.lists(st.integers(1, 9), min_size=2, max_size=6), prefix=st.integers(0, 4), data=st.data())
@settings(max_examples=25, deadline=None)
def test_any_lengths_in_any_order(lengths, prefix, data):
    model = random_model("llama", num_hidden_layers=2)
    segments = Segments(lengths, prefix=prefix, seed=sum(lengths))
    order = data.draw(st.permutations(range(len(lengths))))
    assert_same_bits(answer(model, *segments.arranged(order), steps=2), answer(model, *segments.plain, steps=2))


def test_vanilla_does_depend_on_the_order(llama):
    segments = Segments([11, 7, 14, 9])
    with torch.no_grad():
        forward, backward = (
            llama(segments.arranged(order)[0]).logits[:, -9:] for order in (range(4), range(3, -1, -1))
        )
    assert (forward - backward).abs().max() > 0.1


def test_logits_come_back_in_the_order_of_the_prompt(llama):
    segments = Segments([11, 7, 14], seed=6)
    (ids, spans), (moved, moved_spans) = segments.plain, segments.arranged([2, 0, 1])
    with torch.no_grad(), ragbias.debias(llama, Pine(), spans):
        logits = llama(ids).logits[0]
    with torch.no_grad(), ragbias.debias(llama, Pine(), moved_spans):
        moved_logits = llama(moved).logits[0]
    for moved, index in enumerate([2, 0, 1]):
        torch.testing.assert_close(logits[slice(*spans[index])], moved_logits[slice(*moved_spans[moved])])
