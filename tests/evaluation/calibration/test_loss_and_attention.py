"""Losses and attention, against results from the public interface."""

import pytest
import torch

import ragbias
from ragbias.methods import SIW, ChannelScaling, NoMethod
from ragbias.prompt import TokenisedPrompt
from ragbias_eval.calibration.measurements import (
    gold_attention,
    layer_ranges,
    measure_document_attention,
    measure_losses,
    paper_layers,
)
from ragbias_eval.calibration.samples import CalibrationSettings, Sample, draw_strings, make_calibration_set
from support.random_models import FAMILIES, random_model


@pytest.fixture
def samples(lm):
    return make_calibration_set(lm, CalibrationSettings("m", questions=2, documents=4, depths=2).plan(lm.window))[0]


METHODS = [NoMethod(), ChannelScaling(3, -1.0, layers=(0, 1)), ChannelScaling((2, 5), 0.0, layers=(1, 1))]


def token_by_token(model, sample, method):
    """Compute the loss as in generation: the prompt in one pass, then the answer on its cache."""
    with torch.no_grad(), ragbias.debias(model, method):
        output = model(torch.tensor([sample.prompt.ids]), use_cache=True)
        found = []
        for token in sample.answer:
            found.append(-float(output.logits[0, -1].log_softmax(-1)[token]))
            output = model(torch.tensor([[token]]), past_key_values=output.past_key_values, use_cache=True)
    return sum(found) / len(found)


def prompts_of(samples):
    return [sample.prompt for sample in samples]


def shapeless_samples():
    """Return two prompts of different length without text, for models without a tokenizer."""
    tokens = torch.arange(3, 63).tolist()
    prefixes, documents = ([3, 4, 5], [4, 5]), [tokens[9:20], tokens[20:]]
    return [Sample(TokenisedPrompt(prefix, documents, [5]), [7, 8], 0, n) for n, prefix in enumerate(prefixes)]


def test_attention_by_layer_is_that_of_eager_attention():
    """Prompts of different length in one batch, against the weights that the model returns."""
    model, eager = random_model("llama"), random_model("llama", attn_implementation="eager")
    prompts = prompts_of(shapeless_samples())
    for prompt, found in zip(prompts, measure_document_attention(model, prompts, 2), strict=True):
        with torch.no_grad():
            attentions = eager(torch.tensor([prompt.ids]), output_attentions=True).attentions
        last = torch.stack([layer[0, :, -1].mean(0) for layer in attentions])
        expected = torch.stack([last[:, begin:end].sum(1) for begin, end in prompt.spans], dim=1)
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
def test_losses_equal_those_of_token_by_token_generation(family):
    model = random_model(family)
    for sample in shapeless_samples():
        expected = [token_by_token(model, sample, method) for method in METHODS]
        assert measure_losses(model, sample, METHODS) == pytest.approx(expected, abs=1e-3)
        assert len(set(expected)) == len(METHODS)


def test_attention_is_split_into_gold_and_the_average_other(lm, samples):
    masses = measure_document_attention(lm.model, prompts_of(samples), 3)
    for layer, (own, other) in enumerate(gold_attention(lm.model, samples, 3)):
        gold = [float(mass[layer, sample.gold]) for mass, sample in zip(masses, samples, strict=True)]
        whole = [float(mass[layer].sum()) for mass in masses]
        assert own == pytest.approx(sum(gold) / len(samples), rel=1e-4)
        assert own + 3 * other == pytest.approx(sum(whole) / len(samples), rel=1e-4)


def test_layer_ranges_follow_the_layers_that_retrieve():
    excess = [0.0, 0.3, 0.1, 0.5, 0.6, 0.2, 0.4, 0.0]
    ranges = layer_ranges([(0.05 + value, 0.05) for value in excess])
    assert ranges == {"the paper's": (2, 6), "around the best": (3, 4), "all that retrieve": (1, 6)}
    assert layer_ranges([(0.1, 0.2), (0.1, 0.1)])["around the best"] == (1, 1)
    assert [paper_layers(n) for n in (1, 4, 28, 32, 40)] == [(0, 0), (1, 3), (9, 22), (10, 25), (12, 31)]
    siw = [SIW().layer_indices(n) for n in (1, 4, 32, 33)]
    assert [(layers[0], layers[-1]) for layers in siw] == [(0, 0), (1, 2), (8, 23), (8, 24)]


def test_random_strings_depend_on_seed_and_index_only(lm):
    strings = draw_strings(lm, 0, 5, 30, seed=3)
    assert torch.equal(strings[2:4], draw_strings(lm, 2, 4, 30, seed=3))
    assert not torch.equal(strings, draw_strings(lm, 0, 5, 30, seed=4))
    assert (strings[:, 0] == lm.tokenizer.bos_token_id).all()
    assert not set(strings[:, 1:].flatten().tolist()) & set(lm.tokenizer.all_special_ids)
