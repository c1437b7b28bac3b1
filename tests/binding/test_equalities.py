"""A bound model gives the same results however it is called."""

import pytest
import torch

import ragbias
from ragbias.errors import MethodError
from ragbias.methods import ChannelScaling, Pine, RoToR
from support.bound_models import IDS, METHODS, SEGMENTS, SPANS, logits
from support.random_models import random_model


def test_positional_arguments_of_the_decoder_are_read(model):
    with torch.no_grad(), ragbias.debias(model, Pine(), SPANS):
        named = model.model(input_ids=IDS, attention_mask=torch.ones_like(IDS)).last_hidden_state
        assert torch.equal(model.model(IDS, torch.ones_like(IDS)).last_hidden_state, named)


def test_embeddings_are_ordered_by_content_but_give_no_key_ids(model):
    embed, answers = model.get_input_embeddings(), []
    for order in ([0, 1, 2, 3], [3, 1, 0, 2]):
        ids, spans = SEGMENTS.arranged(order)
        with torch.no_grad(), ragbias.debias(model, RoToR(), spans):
            answers.append(model(inputs_embeds=embed(ids)).logits[:, -9:])
    assert torch.equal(*answers)
    with pytest.raises(MethodError, match="embeddings"), ragbias.debias(model, RoToR(key=len), SPANS):
        model(inputs_embeds=embed(IDS).detach())


@pytest.mark.parametrize("family", ["llama", "phi3", "gpt_neox"])
@pytest.mark.parametrize("last", [1, "all"])
def test_user_hooks_act_on_projections_that_a_method_repeats(family, last):
    model = random_model(family)
    for name, module in model.named_modules():
        if name.rpartition(".")[2] in ("q_proj", "k_proj", "qkv_proj", "query_key_value"):
            module.register_forward_hook(lambda module, args, output: output * 1.3 + 0.1)
    with ragbias.debias(model, ChannelScaling(3, 1.0, layers=None, last=last)):
        scaled = logits(model)
    torch.testing.assert_close(scaled, logits(model), atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("family", ["llama", "phi3", "gpt_neox", "mpt"])
def test_a_method_runs_with_gradients_on(family):
    model = random_model(family)
    for method in METHODS[1:3]:
        with torch.enable_grad(), ragbias.debias(model, method, SPANS):
            with_gradients = model(IDS).logits
        with ragbias.debias(model, method, SPANS):
            assert torch.equal(with_gradients.detach(), logits(model))


@pytest.mark.parametrize("method", METHODS[1:], ids=str)
def test_eager_and_sdpa_attention_give_the_same(model, method):
    eager, results = random_model("llama", attn_implementation="eager"), []
    for each in (model, eager):
        with ragbias.debias(each, method, SPANS):
            results.append(logits(each))
    assert (model.config._attn_implementation, eager.config._attn_implementation) == ("sdpa", "eager")
    torch.testing.assert_close(*results, atol=1e-4, rtol=0)


def test_beams_and_several_sequences_share_one_list_of_spans(model):
    with ragbias.debias(model, Pine(), SPANS):
        options = dict(max_new_tokens=6, do_sample=False, pad_token_id=0, attention_mask=torch.ones_like(IDS))
        beams = model.generate(IDS, num_beams=3, num_return_sequences=2, **options)
        moved, moved_spans = SEGMENTS.arranged([3, 1, 0, 2])
    with ragbias.debias(model, Pine(), moved_spans):
        again = model.generate(moved, num_beams=3, num_return_sequences=2, **options)
    assert torch.equal(beams[:, IDS.shape[1] :], again[:, IDS.shape[1] :])


def test_channel_scaling_keeps_one_key_per_token(model):
    with torch.no_grad(), ragbias.debias(model, METHODS[2]):
        cache = model(IDS, use_cache=True).past_key_values
    assert {layer.keys.shape for layer in cache.layers} == {(1, 2, IDS.shape[1], 16)}
