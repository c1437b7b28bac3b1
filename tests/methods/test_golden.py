"""Parity with the authors' own implementations."""

import itertools

import pytest
import torch

import ragbias
from golden_cases import case_names, load_case, run
from ragbias.methods import ChannelScaling, Pine

ATOL = 2e-4
STEPS = 8


@pytest.mark.parametrize("name", case_names("pine"))
def test_pine_equals_the_reference(name):
    case = load_case("pine", name)
    with ragbias.debias(case.model, Pine(), case.spans):
        prefill, decoded, ids = run(case.model, case.tensors["input_ids"], STEPS)
    torch.testing.assert_close(prefill, case.tensors["prefill_logits"], atol=ATOL, rtol=0)
    torch.testing.assert_close(decoded, case.tensors["decode_logits"], atol=ATOL, rtol=0)
    assert ids == case.tensors["generated_ids"].tolist()


@pytest.mark.parametrize("name", [name for name in case_names("pine") if "1doc" not in name])
def test_pine_equals_the_reference_for_permuted_documents(name):
    case = load_case("pine", name)
    ids = case.tensors["input_ids"]
    prefix, suffix = ids[: case.spans[0][0]], ids[case.spans[-1][1] :]
    for order, expected in zip(case.tensors["perms"].tolist(), case.tensors["perm_suffix_logits"], strict=True):
        documents = [ids[slice(*case.spans[index])] for index in order]
        ends = [len(prefix), *itertools.accumulate(map(len, documents), initial=len(prefix))][1:]
        with ragbias.debias(case.model, Pine(), list(itertools.pairwise(ends))):
            prefill, _, _ = run(case.model, torch.cat([prefix, *documents, suffix]), 0 + 1)
        torch.testing.assert_close(prefill[-len(suffix) :], expected, atol=ATOL, rtol=0)


@pytest.mark.parametrize("name", case_names("channel_scaling"))
def test_channel_scaling_equals_the_reference(name):
    case = load_case("channel_scaling", name)
    settings = case.info["method_params"]
    (channel,), layers = settings["dims"], settings["layers"]
    method = ChannelScaling(
        channel, settings["factor"], layers=(layers[0], layers[-1]), last=settings["last_recompute_tokens"]
    )
    with ragbias.debias(case.model, method):
        prefill, decoded, ids = run(case.model, case.tensors["input_ids"], STEPS)
        cache = case.model(case.tensors["input_ids"][None], use_cache=True).past_key_values
    torch.testing.assert_close(prefill, case.tensors["prefill_logits"], atol=ATOL, rtol=0)
    torch.testing.assert_close(decoded, case.tensors["decode_logits"], atol=ATOL, rtol=0)
    assert ids == case.tensors["generated_ids"].tolist()
    torch.testing.assert_close(cache.layers[2].keys[0], case.tensors["prefill_cache_k_layer2"], atol=ATOL, rtol=0)
