"""Cached states are used only by the same model in the same setup."""

from types import SimpleNamespace

import pytest
import torch

from ragbias import DocumentCache
from ragbias.cache.identity import digest_of_model, identity_of
from support.random_models import random_model
from support.segments import logits, tokens


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


def other_epsilon(model):
    model.model.layers[1].input_layernorm.variance_epsilon = 0.5


def other_scale_of_scores(model):
    model.model.layers[1].self_attn.scaling *= 3


def other_activation(model):
    model.model.layers[0].mlp.act_fn = torch.nn.Tanh()


def other_scale_of_rotations(model):
    model.model.rotary_emb.attention_scaling = 2.0


class Adapted(torch.nn.Module):
    """A projection with two low-rank adapters, with the attributes of peft's layers."""

    def __init__(self, base):
        super().__init__()
        self.base_layer, self._active_adapter, self._disable_adapters = base, ["a"], False
        self.scaling = {"a": 1.0, "b": 1.0}
        torch.manual_seed(1)
        self.lora = torch.nn.ParameterDict({name: torch.randn_like(base.weight) for name in "ab"})

    def forward(self, x):
        active = [] if self._disable_adapters else self._active_adapter
        return self.base_layer(x) + sum(self.scaling[name] * (x @ self.lora[name].T) for name in active)


def adapted(model):
    attention = model.model.layers[0].self_attn
    attention.v_proj = Adapted(attention.v_proj)
    return model


CHANGES_OF_ADAPTERS = {
    "set_adapter": lambda layer: setattr(layer, "_active_adapter", ["b"]),
    "disable_adapters": lambda layer: setattr(layer, "_disable_adapters", True),
    "lora_alpha": lambda layer: layer.scaling.update(a=8.0),
}


@pytest.mark.filterwarnings("ignore::ragbias.errors.DocumentCacheWarning")
@pytest.mark.parametrize(
    "change",
    [
        *(lower_precision, other_data, other_view_of_the_data, other_frequencies, other_epsilon),
        *(other_scale_of_scores, other_activation, other_scale_of_rotations),
    ],
)
def test_whatever_changes_what_a_model_computes_is_noticed(change):
    model, prompt, cache = random_model("llama"), tokens(), DocumentCache()
    logits(model, prompt, "pcw", cache)
    change(model)
    assert torch.equal(logits(model, prompt, "pcw", cache), logits(model, prompt, "pcw"))
    assert cache.stats().memory_hits == 0


@pytest.mark.filterwarnings("ignore::ragbias.errors.DocumentCacheWarning")
@pytest.mark.parametrize("change", CHANGES_OF_ADAPTERS)
def test_adapters_share_no_entries(change, tmp_path):
    model, prompt = adapted(random_model("llama")), tokens()
    before = logits(model, prompt, "pcw", DocumentCache(folder=tmp_path))
    CHANGES_OF_ADAPTERS[change](model.model.layers[0].self_attn.v_proj)
    cache = DocumentCache(folder=tmp_path)  # as in another process
    after = logits(model, prompt, "pcw", cache)
    assert torch.equal(after, logits(model, prompt, "pcw")) and not torch.equal(after, before)
    assert cache.stats().disk_hits == 0


def test_equal_codes_with_other_scales_are_other_weights():
    scale = torch.ones(3)
    models = [random_model("llama") for _ in range(3)]
    for model, absmax in zip(models, (scale, scale.clone(), scale * 2), strict=True):
        model.model.layers[0].self_attn.o_proj.weight.quant_state = SimpleNamespace(absmax=absmax, blocksize=64)
    prints = [digest_of_model(model) for model in models]
    assert prints[0] == prints[1] != prints[2]
    scale.mul_(2)
    assert digest_of_model(models[0]) == prints[2]


def test_settings_of_mkl_have_their_own_entries(monkeypatch):
    model = random_model("llama")
    plain = identity_of(model, "torch")
    for name in ("MKL_CBWR", "MKL_ENABLE_INSTRUCTIONS"):
        monkeypatch.setenv(name, "AVX2")
        assert identity_of(model, "torch") != plain
        monkeypatch.delenv(name)


def test_autocast_and_thread_counts_have_separate_entries(monkeypatch):
    model = random_model("llama")
    plain = identity_of(model, "torch")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert identity_of(model, "torch") != plain
    monkeypatch.setattr(torch, "get_num_threads", lambda: 77)
    assert identity_of(model, "torch") != plain


@pytest.mark.filterwarnings("ignore::ragbias.errors.DocumentCacheWarning")
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
    assert digest_of_model(models[0]) == digest_of_model(models[1])
    assert len({digest_of_model(model.to("meta")) for model in models}) == 2


def test_portable_entries_differ_by_model_and_dtype_only(monkeypatch):
    model, other, half = random_model("llama"), random_model("llama"), random_model("llama").to(torch.bfloat16)
    other_epsilon(other)
    portable = identity_of(model, "torch", portable=True)
    assert (
        len({portable, identity_of(model, "torch"), *(identity_of(each, "torch", True) for each in (other, half))}) == 4
    )
    monkeypatch.setattr(torch, "get_num_threads", lambda: 77)
    monkeypatch.setattr(torch, "__version__", "77")
    model._tp_plan = {"model.embed_tokens": "another version"}
    assert identity_of(model, "triton", portable=True) == portable


@pytest.mark.filterwarnings("ignore::ragbias.errors.DocumentCacheWarning")
def test_a_portable_cache_reads_what_other_thread_counts_wrote(tmp_path, monkeypatch):
    model, prompt = random_model("llama"), tokens()
    expected = logits(model, prompt, "pcw", DocumentCache(folder=tmp_path, portable=True))
    monkeypatch.setattr(torch, "get_num_threads", lambda: 77)
    for portable, hits in ((True, 5), (False, 0)):
        cache = DocumentCache(memory=None, folder=tmp_path, portable=portable)
        assert torch.equal(logits(model, prompt, "pcw", cache), expected)
        assert cache.stats().disk_hits == hits
