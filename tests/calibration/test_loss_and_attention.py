"""Losses and attention against what the public interface computes."""

import json

import pytest
import torch

import ragbias
from ragbias.calibration import perturbation
from ragbias.calibration.answer_loss import losses
from ragbias.calibration.calibration_set import Sample, calibration_set
from ragbias.calibration.calibration_settings import CalibrationSettings
from ragbias.calibration.gold_attention import attention_to, ends, gold_attention, layer_ranges, papers_layers
from ragbias.calibration.mean_hidden_states import random_strings, summed_states
from ragbias.calibration.perturbation import (
    ScaledAttention,
    attention_by_factor,
    cropped_mask,
    curve_correlations,
    thirds,
)
from ragbias.methods import SIW, ChannelScaling, NoMethod
from ragbias.methods.profiles import Profile
from ragbias.prompt import TokenisedPrompt
from support.random_models import FAMILIES, random_model


@pytest.fixture
def samples(lm):
    return calibration_set(lm, CalibrationSettings("m", questions=2, documents=4, depths=2).plan(lm.window)).choose


@pytest.mark.parametrize("method", [NoMethod(), ChannelScaling(3, -1.0, layers=(0, 1))])
def test_losses_are_those_of_generating_token_by_token(lm, samples, method):
    """Batched, padded and in one pass, against prompt, then token after token on the cache."""
    samples = [
        Sample(
            TokenisedPrompt(s.prompt.prefix[n:], s.prompt.documents, s.prompt.suffix), s.answer[: 3 + n % 2], s.gold, n
        )
        for n, s in enumerate(samples)
    ]
    expected = []
    for sample in samples:
        with torch.no_grad(), ragbias.debias(lm.model, method):
            output = lm.model(torch.tensor([sample.prompt.ids]), use_cache=True)
            found = []
            for token in sample.answer:
                found.append(-float(output.logits[0, -1].log_softmax(-1)[token]))
                output = lm.model(torch.tensor([[token]]), past_key_values=output.past_key_values, use_cache=True)
        expected.append(sum(found) / len(found))
    done = []
    assert losses(lm.model, samples, method, 3, done.append) == pytest.approx(expected, abs=2e-4)
    assert sum(done) == len(samples)


def prompts_of(samples):
    return [sample.prompt for sample in samples]


def shapeless_samples():
    """Two prompts of different length without text, for models without a tokenizer."""
    tokens = torch.arange(3, 63).tolist()
    prefixes, documents = ([3, 4, 5], [4, 5]), [tokens[9:20], tokens[20:]]
    return [Sample(TokenisedPrompt(prefix, documents, [5]), [7, 8], 0, n) for n, prefix in enumerate(prefixes)]


def test_attention_by_layer_is_that_of_eager_attention():
    """Unequal prompts in one batch, against the weights that the model itself gives out."""
    model, eager = random_model("llama"), random_model("llama", attn_implementation="eager")
    prompts = prompts_of(shapeless_samples())
    for prompt, found in zip(prompts, attention_to(model, prompts, 2), strict=True):
        with torch.no_grad():
            attentions = eager(torch.tensor([prompt.ids]), output_attentions=True).attentions
        last = torch.stack([layer[0, :, -1].mean(0) for layer in attentions])
        expected = torch.stack([last[:, begin:end].sum(1) for begin, end in prompt.spans], dim=1)
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
def test_losses_of_a_batch_are_those_of_each_prompt(family):
    model, samples = random_model(family), shapeless_samples()
    method = ChannelScaling(3, 0.0, layers=(1, 2))
    alone = [losses(model, [sample], method, 1)[0] for sample in samples]
    assert losses(model, samples, method, 2) == pytest.approx(alone, abs=1e-3)


@pytest.mark.parametrize("family", FAMILIES)
def test_attention_with_factor_1_is_the_unscaled_one_on_every_family(family):
    model, prompts = random_model(family), prompts_of(shapeless_samples())
    plain = attention_to(model, prompts, 2)
    for factor, same in ((1.0, True), (-2.0, False)):
        scaling = ChannelScaling(3, factor, layers=(1, 2))
        scaled = attention_to(model, prompts, 2, observe=lambda scaling=scaling: ScaledAttention(scaling))
        for found, expected in zip(scaled, plain, strict=True):
            assert torch.allclose(found, expected, atol=1e-4) == same
            assert torch.allclose(found[0], expected[0], atol=1e-4)  # the first layer is not scaled


def test_scaled_attention_is_that_of_scaled_queries_and_keys(samples):
    """The logits are those of the method; the last token's weights those of eager attention with changed inputs."""
    model, eager = random_model("llama"), random_model("llama", attn_implementation="eager")
    method, prompt = ChannelScaling(3, -2.0, layers=(1, 1)), prompts_of(samples)[0]
    ids, spans = prompt.ids, prompt.spans

    def scaled(module, args):
        hidden = args[0].clone()
        hidden[..., 3] *= -2.0
        return (hidden,)

    for projection in (eager.model.layers[1].self_attn.q_proj, eager.model.layers[1].self_attn.k_proj):
        projection.register_forward_pre_hook(scaled)
    observer = ScaledAttention(method)
    with torch.no_grad():
        with ragbias.debias(model, method):
            expected = model(torch.tensor([ids])).logits
        with ragbias.debias(model, observer, spans):
            torch.testing.assert_close(model(torch.tensor([ids])).logits, expected)
        last = eager(torch.tensor([ids]), output_attentions=True).attentions[1][0, :, -1].mean(0)
    expected = torch.stack([last[begin:end].sum() for begin, end in spans])
    torch.testing.assert_close(observer.mass[0][1], expected, atol=1e-5, rtol=1e-4)


def test_gold_attention_is_split_into_gold_and_the_average_other(lm, samples):
    masses = attention_to(lm.model, prompts_of(samples), 3)
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
    assert [papers_layers(n) for n in (1, 4, 28, 32, 40)] == [(0, 0), (1, 3), (9, 22), (10, 25), (12, 31)]
    assert [ends(SIW(), n) for n in (1, 4, 32, 33)] == [(0, 0), (1, 2), (8, 23), (8, 24)]


def test_random_strings_depend_on_seed_and_index_only(lm):
    strings = random_strings(lm, 0, 5, 30, seed=3)
    assert torch.equal(strings[2:4], random_strings(lm, 2, 4, 30, seed=3))
    assert not torch.equal(strings, random_strings(lm, 0, 5, 30, seed=4))
    assert (strings[:, 0] == lm.tokenizer.bos_token_id).all()
    assert not set(strings[:, 1:].flatten().tolist()) & set(lm.tokenizer.all_special_ids)


def test_a_cropped_mask_hides_all_but_the_last_tokens(lm):
    ids = random_strings(lm, 0, 2, 24, seed=0)
    plain = summed_states(lm, ids)
    whole, cropped = (summed_states(lm, ids, attention_mask=cropped_mask(lm, 24, width)) for width in (24, 6))
    assert abs(whole - plain).max() < 1e-4
    assert abs(cropped[:, :6] - plain[:, :6]).max() < 1e-4
    assert abs(cropped[1, 6:] - plain[1, 6:]).max() > 1e-2


def test_perturbations_report_every_factor_and_layer(lm, samples):
    profile, done = Profile("random-llama", 64, 4, 3, 0.0, (1, 2)), []
    by_factor = attention_by_factor(lm, profile, samples, 3, done.append)
    plain = attention_to(lm.model, [thirds(sample.prompt) for sample in samples], 3)
    first, _, last = torch.stack(plain)[:, 1:3].mean((0, 1)).tolist()
    neutral = next(each for each in by_factor if each["factor"] == 1)
    assert (neutral["first_third"], neutral["last_third"]) == pytest.approx((first, last), rel=1e-4)
    assert len({each["first_third"] for each in by_factor}) == len(by_factor)
    plan = CalibrationSettings("m", strings=6, length=40, batch_size=3).plan(lm.window)
    curves = curve_correlations(lm, profile, plan, done.append)
    constant = next(curve for curve in curves if curve["perturbation"] == "position ids plus 10")
    assert constant["correlation_by_layer"] == pytest.approx([1.0] * len(constant["correlation_by_layer"]), abs=1e-3)
    assert sum(done) == len(by_factor) * len(samples) + 5 * 6


def test_thirds_cover_the_documents_and_are_equally_long():
    prompt = TokenisedPrompt([0] * 4, [[1, 2, 3, 4, 5], [6, 7, 8]], [9])
    assert thirds(prompt) == TokenisedPrompt([0] * 4, [[1, 2, 3], [4, 5, 6], [7, 8]], [9])
    assert thirds(prompt).spans == [(4, 7), (7, 10), (10, 12)]


def test_the_perturbation_command_writes_what_it_shows(monkeypatch, capsys, tmp_path):
    arguments = ["--questions=1", "--strings=4", "--length=40", f"--json={tmp_path / 'p.json'}"]
    monkeypatch.setattr("sys.argv", ["perturbation", "--model", "tiny", *arguments])
    perturbation.main()
    assert "Correlation of the channel's curve" in " ".join(capsys.readouterr().out.split())
    written = json.loads((tmp_path / "p.json").read_text())
    assert [each["factor"] for each in written["attention"]] == list(perturbation.FACTORS)
    assert len(written["curves"]) == 4
    monkeypatch.setattr("sys.argv", ["perturbation", "--model", "tiny", "--strings=0"])
    with pytest.raises(SystemExit) as ended:
        perturbation.main()
    assert ended.value.code == 2 and "strings=0" in capsys.readouterr().err
