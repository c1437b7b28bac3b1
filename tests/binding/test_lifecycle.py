"""A binding leaves the model unchanged, however it ends."""

import gc

import pytest
import torch
from torch import nn

import ragbias
from ragbias.errors import MethodError
from ragbias.methods import ChannelScaling, Pine
from support.bound_models import IDS, METHODS, SPANS, logits, snapshot
from support.random_models import random_model
from support.segments import Segments


class Interrupt(nn.Module):
    def __init__(self, error):
        super().__init__()
        self.error = error

    def forward(self, *_):
        raise self.error


@pytest.mark.parametrize(
    "error", [RuntimeError("in a layer"), KeyboardInterrupt("in a layer")], ids=["exception", "ctrl-c"]
)
@pytest.mark.parametrize("method", METHODS, ids=str)
def test_model_is_untouched_after_an_error_inside_a_layer(model, method, error):
    before, expected = snapshot(model), logits(model)
    mlp = model.model.layers[1].mlp
    model.model.layers[1].mlp = Interrupt(error)
    try:
        with pytest.raises(type(error), match=str(error)), ragbias.debias(model, method, SPANS):
            logits(model)
    finally:
        model.model.layers[1].mlp = mlp
    assert snapshot(model) == before
    assert torch.equal(logits(model), expected)


@pytest.mark.parametrize("family", ["mpt", "phi3", "gpt_neox", "gemma3_text"])
@pytest.mark.parametrize("method", [Pine(), ChannelScaling(5, 0.0, layers=(1, 2))], ids=str)
def test_models_with_other_modules_are_untouched_too(family, method):
    model = random_model(family)
    before, expected = snapshot(model), logits(model)
    handle = model.get_output_embeddings().register_forward_pre_hook(Interrupt(KeyboardInterrupt()).forward)
    with pytest.raises(KeyboardInterrupt), ragbias.debias(model, method, SPANS):
        logits(model)
    handle.remove()
    assert snapshot(model) == before
    assert torch.equal(logits(model), expected)


def test_success_and_a_refused_method_leave_the_model_untouched(model):
    before, expected = snapshot(model), logits(model)
    with ragbias.debias(model, Pine(), SPANS):
        assert not torch.allclose(logits(model)[:, -9:], expected[:, -9:], atol=1e-3)
    with pytest.raises(MethodError, match=r"layers=\(0, 99\) do not fit a model of 4 layers"):
        ragbias.debias(model, ChannelScaling(1, 0, layers=(0, 99))).__enter__()
    assert snapshot(model) == before
    assert torch.equal(logits(model), expected)


def test_layers_outside_the_range_are_not_touched(model):
    with ragbias.debias(model, ChannelScaling(5, 0.0, layers=(1, 1))):
        attention = [layer.self_attn for layer in model.model.layers]
        assert [bool(module._forward_pre_hooks) for module in attention] == [False, True, False, False]
        assert attention[0].config is attention[2].config is model.config
        assert attention[1].config is not model.config


def test_the_innermost_context_counts(model):
    plain = logits(model)
    with ragbias.debias(model, Pine(), SPANS):
        pine = logits(model)
        with ragbias.debias(model, "none"):
            assert torch.equal(logits(model), plain)
        with ragbias.debias(model, ChannelScaling(5, 0.0, layers=(1, 1))):
            inner = logits(model)
        assert torch.equal(logits(model), pine)
    with ragbias.debias(model, ChannelScaling(5, 0.0, layers=(1, 1))):
        assert torch.equal(logits(model), inner)


def test_one_context_runs_many_prompts_and_interleaved_decode(model):
    other = Segments([8, 5, 11, 7], seed=9).plain[0]
    with torch.no_grad(), ragbias.debias(model, Pine(), SPANS):
        first, second = model(IDS, use_cache=True), model(other, use_cache=True)
        token = torch.tensor([[5]])
        mixed = [model(token, past_key_values=run.past_key_values).logits for run in (first, second)]
    for ids, expected in zip((IDS, other), mixed, strict=True):
        with torch.no_grad(), ragbias.debias(model, Pine(), SPANS):
            alone = model(token, past_key_values=model(ids, use_cache=True).past_key_values).logits
        assert torch.equal(alone, expected)


def test_no_state_of_a_prompt_outlives_its_cache(model):
    with torch.no_grad(), ragbias.debias(model, Pine(), SPANS):
        logits(model)
        binding = model.model._forward_pre_hooks
        (hook,) = binding.values()
        sessions = hook.owner._sessions
        gc.collect()
        assert len(sessions) == 0
