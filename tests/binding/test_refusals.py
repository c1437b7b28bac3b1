"""Spans, models, masks and caches that a binding refuses, each named in the error."""

import pytest
import torch

import ragbias
from ragbias.errors import (
    BindingError,
    EmptyDocumentError,
    MethodError,
    NoDocumentsError,
    SpanError,
    UnknownMethodError,
    UnsupportedModelError,
)
from ragbias.methods import AttentionSorting, Pine
from support.bound_models import IDS, SEGMENTS, SPANS, logits, snapshot
from support.random_models import random_model
from support.segments import Segments, padded


@pytest.mark.parametrize(
    ("spans", "error", "words"),
    [
        (None, NoDocumentsError, "spans="),
        ([], NoDocumentsError, "spans="),
        ([(5, 9), (8, 12)], SpanError, "overlap"),
        ([(5, 9), (9, 9)], EmptyDocumentError, r"\(9, 9\)"),
        ([(5, 9), (9, 400)], SpanError, "outside"),
        ([(-2, 4), (4, 9)], SpanError, "outside"),
        ([(5, 9), (10, 12)], SpanError, "9 to 10"),
        ([(5, 9), (9, 47)], SpanError, "after the documents"),
        ([[(5, 9), (9, 12)], [(5, 9), (9, 12)]], SpanError, "2 sequences"),
        ([(5.5, 9), (9, 12)], SpanError, "whole numbers"),
        ([(5, 9, 3)], SpanError, "pairs"),
        ([5, 9], SpanError, "pairs"),
    ],
)
def test_spans_that_make_no_sense(model, spans, error, words):
    before = snapshot(model)
    with pytest.raises(error, match=words), ragbias.debias(model, Pine(), spans):
        logits(model)
    assert snapshot(model) == before


def test_names_models_and_caches_that_are_refused(model):
    with pytest.raises(UnknownMethodError, match="'pin'"):
        ragbias.debias(model, "pin", SPANS).__enter__()
    with pytest.raises(MethodError, match="DebiasedLM"):
        ragbias.debias(model, AttentionSorting(), SPANS).__enter__()
    with torch.no_grad():
        cache = model(IDS[:, :6], use_cache=True).past_key_values
    with pytest.raises(BindingError, match="6 tokens"), ragbias.debias(model, Pine(), SPANS):
        model(IDS[:, 6:], past_key_values=cache)


@pytest.mark.parametrize(
    ("mask", "words"),
    [
        (torch.ones_like(IDS).index_fill(1, torch.tensor([IDS.shape[1] - 1]), 0), "left"),
        (torch.ones(1, 1, IDS.shape[1], IDS.shape[1], dtype=torch.bool).tril(), "2-D"),
    ],
    ids=["right padding", "custom"],
)
def test_right_padding_and_custom_masks_are_refused(model, mask, words):
    with pytest.raises(BindingError, match=words), ragbias.debias(model, Pine(), SPANS), torch.no_grad():
        model(IDS, attention_mask=mask)


@pytest.mark.parametrize("columns", [IDS.shape[1] - 2, IDS.shape[1] + 2])
def test_a_mask_of_another_length_is_refused(model, columns):
    mask = torch.ones(1, columns, dtype=torch.long)
    with pytest.raises(BindingError, match=rf"{columns} columns"), ragbias.debias(model, Pine(), SPANS):
        model(IDS, attention_mask=mask)


def repeated(cache):
    cache.batch_repeat_interleave(2)
    return 4


def dropped(cache):
    cache.batch_select_indices(torch.tensor([1]))
    return 1


def swapped(cache):
    cache.reorder_cache(torch.tensor([1, 0]))
    return 2


@pytest.mark.parametrize("change", [repeated, dropped, swapped])
def test_a_cache_whose_sequences_changed_is_refused(model, change):
    ids, mask, spans = padded([SEGMENTS.plain, Segments([6, 9, 4], seed=1).plain])
    with torch.no_grad(), ragbias.debias(model, Pine(), spans):
        cache = model(ids, attention_mask=mask, use_cache=True).past_key_values
        batch = change(cache)
        with pytest.raises(BindingError, match="sequences are not those of the 2 prompts"):
            model(torch.full((batch, 1), 5), past_key_values=cache)


def test_a_cache_that_plain_tokens_entered_is_refused(model):
    with torch.no_grad(), ragbias.debias(model, Pine(), SPANS):
        cache = model(IDS, use_cache=True).past_key_values
        cache.crop(-2)
        with ragbias.debias(model, "none"):
            model(IDS[:, -2:], past_key_values=cache)
        with pytest.raises(BindingError, match="did not run under"):
            model(IDS[:, -1:], past_key_values=cache)


def test_a_compiled_model_is_refused_by_name():
    model = random_model("llama")
    model.model.layers[1].compile(backend="eager")
    with pytest.raises(UnsupportedModelError, match=r"torch\.compile"), ragbias.debias(model, Pine(), SPANS):
        pass
