"""Special features of models work, or are refused by name."""

import itertools
import subprocess
import sys

import bitsandbytes
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache

import ragbias
from ragbias.binding import ARCHITECTURES
from ragbias.binding.architectures import window_of
from ragbias.errors import UnsupportedModelError
from ragbias.methods import ChannelScaling, Pine, PositionInterpolation, RoToR, SelfExtend
from support.random_models import FAMILIES, SIZES, random_model
from support.segments import Segments, padded

SEGMENTS = Segments([9, 14, 7, 12])
IDS, SPANS = SEGMENTS.plain
WHOLE = [(SPANS[0][0], SPANS[-1][1])]
BASE = dict(rope_theta=10000.0)
ORIGINAL = 32  # prompts are longer, so the scaling is at work
ROPES = {
    "linear": dict(BASE, rope_type="linear", factor=3.0),
    "llama3": dict(
        BASE,
        rope_type="llama3",
        factor=8.0,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
        original_max_position_embeddings=ORIGINAL,
    ),
    "yarn": dict(BASE, rope_type="yarn", factor=4.0, original_max_position_embeddings=ORIGINAL),
    "dynamic": dict(BASE, rope_type="dynamic", factor=4.0),
    "longrope": dict(
        BASE,
        rope_type="longrope",
        short_factor=[1.0 + 0.1 * index for index in range(8)],
        long_factor=[1.5 + 0.4 * index for index in range(8)],
        factor=4.0,
        original_max_position_embeddings=ORIGINAL,
    ),
}


def scaled_model(rope, family="llama"):
    limits = dict(max_position_embeddings=ORIGINAL) if rope == "dynamic" else dict(max_position_embeddings=128)
    return random_model(family, rope_parameters=ROPES[rope], **limits)


@torch.no_grad()
def logits(model, ids=IDS, **options):
    return model(ids, **options).logits


def debiased(model, method, spans=None, ids=IDS, **options):
    with ragbias.debias(model, method, spans):
        return logits(model, ids, **options)


def assert_close(left, right):
    torch.testing.assert_close(left, right, atol=1e-5 * max(1.0, float(right.abs().max())), rtol=0)


# rope scaling


@pytest.mark.parametrize("rope", ROPES)
def test_every_rope_scaling_is_the_models_own(rope):
    plain = logits(scaled_model(rope))
    assert (plain - logits(random_model("llama"))).abs().max() > 0.1
    for method, spans in ((Pine(), WHOLE), (PositionInterpolation(1.0), None), (ChannelScaling(3, 1.0, None), None)):
        assert_close(debiased(scaled_model(rope), method, spans), plain)


@pytest.mark.parametrize("rope", ROPES)
def test_every_rope_scaling_is_invariant_and_batches(rope):
    model, rows = scaled_model(rope), [Segments([5, 6, 4], 3, 5, seed=1).plain, (IDS, SPANS)]
    expected = debiased(model, Pine(), SPANS)[:, -9:]
    for order in itertools.permutations(range(4)):
        moved, spans = SEGMENTS.arranged(order)
        assert torch.equal(debiased(model, Pine(), spans, moved)[:, -9:], expected)
    ids, mask, spans = padded(rows)
    together = debiased(model, Pine(), spans, ids, attention_mask=mask)
    for index, (row, own) in enumerate(rows):
        assert_close(together[index, -5:], debiased(model, Pine(), own, row)[0, -5:])


@pytest.mark.parametrize("rope", ["dynamic", "longrope"])
def test_length_dependent_frequencies_are_fixed_at_the_prompt(rope):
    model = scaled_model(rope)
    longer = Segments([40, 30, 30]).plain[0]
    fresh = debiased(scaled_model(rope), Pine(), SPANS)
    logits(model, longer)
    assert torch.equal(debiased(model, Pine(), SPANS), fresh)
    with torch.no_grad(), ragbias.debias(model, Pine(), SPANS):
        prefill = model(IDS, use_cache=True)
        steps = [model(torch.tensor([[7]]), past_key_values=prefill.past_key_values).logits for _ in range(3)]
        other = model(IDS, use_cache=True)
        model(longer[:, :70])
        again = [model(torch.tensor([[7]]), past_key_values=other.past_key_values).logits for _ in range(3)]
    assert all(torch.equal(left, right) for left, right in zip(steps, again, strict=True))


def test_longrope_with_a_fused_projection_as_in_phi3():
    half = dict(ROPES["longrope"], partial_rotary_factor=0.5)
    half |= dict(short_factor=[1.0, 1.1, 1.2, 1.3], long_factor=[1.5, 2.0, 2.5, 3.0])
    model = random_model("phi3", rope_parameters=half, original_max_position_embeddings=ORIGINAL)
    assert_close(debiased(model, Pine(), WHOLE), logits(model))


def test_an_unknown_rope_type_is_refused_by_name():
    model = random_model("llama")
    model.config.rope_parameters = dict(BASE, rope_type="spiral")
    with pytest.raises(UnsupportedModelError, match=r"'spiral'.*yarn"):
        debiased(model, Pine(), SPANS)


# sliding layers


@pytest.mark.parametrize("family", ["mistral", "gemma2", "gemma3_text"])
@pytest.mark.parametrize("method", [Pine(), RoToR(), SelfExtend(1, 8), ChannelScaling(3, 1.0, None)], ids=str)
def test_a_cache_that_forgets_is_made_to_keep_every_key(family, method):
    model = random_model(family)
    spans = WHOLE if method.needs_documents else None
    cache = DynamicCache(config=model.config)
    with torch.no_grad(), ragbias.debias(model, method, spans):
        model(IDS, past_key_values=cache)
        assert {layer.keys.shape[2] for layer in cache.layers} == {IDS.shape[1]}
        step = model(torch.tensor([[7]]), past_key_values=cache).logits
    assert_close(step, logits(model, torch.cat([IDS, torch.tensor([[7]])], dim=1))[:, -1:])


# families


def test_every_declared_family_has_a_model_in_the_tests():
    assert set(ARCHITECTURES) == {*FAMILIES, "gemma3"}


def test_the_window_of_an_unsupported_family_is_in_its_config():
    assert window_of(random_model("mpt").config) == 512
    model = random_model("llama")
    assert window_of(model.config) == 4096
    model.config.model_type = "stablelm"
    assert window_of(model.config) == 4096


DECLARATIONS = """
import sys
import ragbias.attention, ragbias.binding
from ragbias.binding.architectures import ARCHITECTURES, ROTARY
assert set(ARCHITECTURES) - set(ROTARY) == {"mpt"}
assert not {"torch", "transformers"} & set(sys.modules)
from ragbias.attention import attend
from ragbias.binding.hooks import debias
assert callable(attend) and callable(debias) and "torch" in sys.modules
"""


def test_what_is_supported_can_be_read_without_torch():
    done = subprocess.run([sys.executable, "-c", DECLARATIONS], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_gemma3_with_its_vision_tower_runs_on_text():
    text = dict(
        vocab_size=300,
        num_hidden_layers=2,
        head_dim=16,
        layer_types=["sliding_attention", "full_attention"],
        sliding_window=24,
        **SIZES,
    )
    vision = dict(hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, image_size=28)
    torch.manual_seed(0)
    config = AutoConfig.for_model("gemma3", text_config=text, vision_config=vision)
    model = AutoModelForCausalLM.from_config(config).eval()
    assert_close(debiased(model, Pine(), WHOLE), logits(model))
    moved, spans = SEGMENTS.arranged([2, 0, 3, 1])
    assert torch.equal(debiased(model, Pine(), spans, moved)[:, -9:], debiased(model, Pine(), SPANS)[:, -9:])


@pytest.mark.parametrize("family", ["gpt2", "bloom", "stablelm", "gpt_oss", "deepseek_v3", "t5"])
def test_other_families_are_refused_by_name_with_what_works(family):
    model = random_model("llama")
    model.config.model_type = family  # the type alone decides, before anything is touched
    with pytest.raises(UnsupportedModelError, match=rf"'{family}'.*llama.*mpt"):
        debiased(model, Pine(), SPANS)


# several devices, quantised weights


@pytest.mark.parametrize("method", [Pine(), ChannelScaling(3, 0.0, None)], ids=str)
def test_a_model_spread_over_two_devices_gives_the_same(method, tmp_path):
    from accelerate import dispatch_model

    expected = debiased(random_model("llama"), method, SPANS)
    devices = {"model.embed_tokens": "cpu", "model.rotary_emb": "cpu", "model.norm": "disk", "lm_head": "disk"}
    devices |= {f"model.layers.{index}": "cpu" if index < 2 else "disk" for index in range(4)}
    spread = dispatch_model(random_model("llama"), devices, main_device="cpu", offload_dir=str(tmp_path))
    assert spread.model.layers[3].self_attn.q_proj.weight.device.type == "meta"  # it is elsewhere until it is called
    assert torch.equal(debiased(spread, method, SPANS), expected)


def replace_linear_layers(model, make):
    for name, module in list(model.named_modules()):
        if isinstance(module, torch.nn.Linear) and "lm_head" not in name:
            parent, _, child = name.rpartition(".")
            setattr(model.get_submodule(parent), child, make(module))


def four_bit(linear):
    quantised = bitsandbytes.nn.Linear4bit(
        linear.in_features, linear.out_features, bias=linear.bias is not None, compute_dtype=torch.float32
    )
    quantised.weight = bitsandbytes.nn.Params4bit(linear.weight.data, requires_grad=False, quant_type="nf4")
    quantised.bias = linear.bias
    return quantised.to("cpu")


def back_to_float(linear):
    weight = bitsandbytes.functional.dequantize_4bit(linear.weight.data, linear.weight.quant_state)
    full = torch.nn.Linear(linear.in_features, linear.out_features, bias=linear.bias is not None)
    full.weight, full.bias = torch.nn.Parameter(weight), linear.bias
    return full


@pytest.mark.parametrize("family", ["llama", "phi3", "gpt_neox", "mpt"])
@pytest.mark.parametrize("method", [Pine(), ChannelScaling(3, 0.0, (1, 2))], ids=str)
def test_quantised_weights_match_their_values_and_are_invariant(method, family):
    model = random_model(family)
    replace_linear_layers(model, four_bit)
    quantised = debiased(model, method, SPANS)
    moved, spans = SEGMENTS.arranged([2, 0, 3, 1])
    again = debiased(model, method, spans, moved)[:, -9:]
    assert torch.equal(again, quantised[:, -9:]) == method.invariant
    replace_linear_layers(model, back_to_float)
    assert_close(quantised, debiased(model, method, SPANS))
    assert (quantised - debiased(random_model(family), method, SPANS)).abs().max() > 0.1
