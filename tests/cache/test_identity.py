"""What is kept belongs to the very model that computed it, and to how it was computed."""

import pytest
import torch
from generation.test_reuse import logits, tokens

from ragbias import DocumentCache
from ragbias.cache.identity import fingerprint, identity_of
from support.random_models import random_model


def lower_precision(model):
    model.to(torch.bfloat16).float()


def other_data(model):
    weight = model.model.layers[1].mlp.down_proj.weight
    weight.data = weight.data * 2


def other_view_of_the_data(model):
    weight = model.model.layers[1].self_attn.o_proj.weight
    weight.data = weight.data.t()


def other_frequencies(model):
    model.model.rotary_emb.inv_freq.mul_(0.5)


@pytest.mark.filterwarnings("ignore::ragbias.cache.DocumentCacheWarning")
@pytest.mark.parametrize("change", [lower_precision, other_data, other_view_of_the_data, other_frequencies])
def test_whatever_changes_what_a_model_computes_is_noticed(change):
    model, prompt, cache = random_model("llama"), tokens(), DocumentCache()
    logits(model, prompt, "pcw", cache)
    change(model)
    assert torch.equal(logits(model, prompt, "pcw", cache), logits(model, prompt, "pcw"))
    assert cache.stats().memory_hits == 0


def test_autocast_and_the_number_of_threads_round_differently_and_have_their_own_entries(monkeypatch):
    model = random_model("llama")
    plain = identity_of(model, "torch")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert identity_of(model, "torch") != plain
    monkeypatch.setattr(torch, "get_num_threads", lambda: 77)
    assert identity_of(model, "torch") != plain


@pytest.mark.filterwarnings("ignore::ragbias.cache.DocumentCacheWarning")
def test_offloaded_weights_are_read_where_they_are(tmp_path):
    accelerate = pytest.importorskip("accelerate")
    devices = dict.fromkeys(("model.embed_tokens", "model.rotary_emb", "model.norm", "lm_head"), "cpu")
    devices |= {f"model.layers.{index}": "cpu" if index < 2 else "disk" for index in range(4)}

    def offloaded(name, factor):
        model = random_model("llama")
        with torch.no_grad():
            model.model.layers[3].mlp.down_proj.weight.mul_(factor)
        return accelerate.dispatch_model(model, devices, main_device="cpu", offload_dir=str(tmp_path / name))

    model, other, prompt, cache = offloaded("one", 1), offloaded("other", 3), tokens(), DocumentCache()
    expected = logits(random_model("llama"), prompt, "pcw")
    assert all(torch.equal(logits(model, prompt, "pcw", cache), expected) for _ in range(2))
    assert cache.stats().memory_hits == 5
    assert torch.equal(logits(other, prompt, "pcw", cache), logits(other, prompt, "pcw"))
    assert cache.stats().memory_hits == 5 and not torch.equal(logits(other, prompt, "pcw"), expected)


def test_a_model_whose_weights_are_nowhere_is_like_no_other():
    models = [random_model("llama") for _ in range(2)]
    assert fingerprint(models[0]) == fingerprint(models[1])
    assert len({fingerprint(model.to("meta")) for model in models}) == 2
