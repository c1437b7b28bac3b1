"""Losses and attention against what the public interface computes."""

import json

import pytest
import torch

import ragbias
from conftest import random_model
from ragbias.calibration import perturb
from ragbias.calibration.attention import (
    _giving_weights,
    _scaled_projections,
    gold_attention,
    last_token_attention,
    layer_ranges,
    middle_half,
)
from ragbias.calibration.hidden import random_strings, summed_states
from ragbias.calibration.loss import losses
from ragbias.calibration.perturb import attention_by_factor, cropped_mask, curve_correlations
from ragbias.calibration.samples import Sample, calibration_set
from ragbias.errors import UnsupportedModelError
from ragbias.methods import ChannelScaling
from ragbias.profiles import Profile
from ragbias.prompt import TokenisedPrompt


@pytest.fixture
def samples(lm):
    return calibration_set(lm, "kv", 2, 4, 2, 0, None).choose


@pytest.mark.parametrize("scaling", [None, (3, -1.0, (0, 1))])
def test_losses_are_those_of_generating_token_by_token(lm, samples, scaling):
    """Batched, padded and in one pass, against prompt, then token after token on the cache."""
    samples = [
        Sample(
            TokenisedPrompt(s.prompt.prefix[n:], s.prompt.documents, s.prompt.suffix), s.answer[: 3 + n % 2], s.gold, n
        )
        for n, s in enumerate(samples)
    ]
    method = "none" if scaling is None else ChannelScaling(scaling[0], scaling[1], layers=scaling[2])
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
    assert losses(lm.model, samples, scaling, 3, done.append) == pytest.approx(expected, abs=2e-4)
    assert sum(done) == len(samples)


def test_last_tokens_attention_is_that_of_eager_attention(lm, samples):
    prompts = [sample.prompt.ids[n:] for n, sample in enumerate(samples)]
    found = last_token_attention(lm.model, prompts)
    assert lm.model.config._attn_implementation == "sdpa"
    for prompt, weights in zip(prompts, found, strict=True):
        with torch.no_grad(), _giving_weights(lm.model):
            attentions = lm.model(torch.tensor([prompt]), output_attentions=True).attentions
        expected = torch.stack([layer[0, :, -1].mean(0) for layer in attentions])
        torch.testing.assert_close(weights, expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("family", ["gemma2", "phi3", "mpt"])
def test_attention_and_losses_are_measured_on_other_families(family):
    """Sliding layers that have forgotten, a fused projection, ALiBi: rows of a padded batch equal single ones."""
    model, tokens = random_model(family), torch.arange(3, 63).tolist()
    prefixes, documents = ([3, 4, 5], [4, 5]), [tokens[9:20], tokens[20:]]
    samples = [Sample(TokenisedPrompt(prefix, documents, [5]), [7, 8], 0, n) for n, prefix in enumerate(prefixes)]
    prompts = [sample.prompt.ids for sample in samples]
    for weights, prompt in zip(last_token_attention(model, prompts), prompts, strict=True):
        torch.testing.assert_close(weights, last_token_attention(model, [prompt])[0], atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(weights.sum(1), torch.ones(4), atol=1e-5, rtol=0)
    together = losses(model, samples, (3, 0.0, (1, 2)), 2)
    assert together == pytest.approx([losses(model, [sample], (3, 0.0, (1, 2)), 1)[0] for sample in samples], abs=1e-3)
    neutral = ChannelScaling(3, 1.0, layers=(1, 2))
    if family != "gemma2":
        with pytest.raises(UnsupportedModelError, match="separate projections only"):
            last_token_attention(model, prompts, neutral)
    else:
        for pair in zip(
            last_token_attention(model, prompts), last_token_attention(model, prompts, neutral), strict=True
        ):
            torch.testing.assert_close(*pair, atol=1e-5, rtol=1e-4)


def test_the_scaled_last_token_is_that_of_the_method(lm, samples):
    """The token that is run again with the channel scaled gives the logits of the method's own prefill."""
    method, ids = ChannelScaling(3, -2.0, layers=(1, 2)), torch.tensor([samples[0].prompt.ids])
    with torch.no_grad():
        with ragbias.debias(lm.model, method):
            output = lm.model(ids, use_cache=True)
        output.past_key_values.crop(-1)
        with _giving_weights(lm.model), _scaled_projections(lm.model, method):
            again = lm.model(ids[:, -1:], past_key_values=output.past_key_values, use_cache=True)
        plain = lm.model(ids)
    torch.testing.assert_close(again.logits[0, -1], output.logits[0, -1], atol=1e-4, rtol=1e-4)
    assert (plain.logits[0, -1] - output.logits[0, -1]).abs().max() > 1e-2
    neutral = last_token_attention(lm.model, [samples[0].prompt.ids], ChannelScaling(3, 1.0, layers=(1, 2)))[0]
    torch.testing.assert_close(
        neutral, last_token_attention(lm.model, [samples[0].prompt.ids])[0], atol=1e-5, rtol=1e-4
    )


def test_gold_attention_adds_up_over_the_documents(lm, samples):
    gold = gold_attention(lm.model, samples, 3)
    for layer, (own, other) in enumerate(gold):
        weights = last_token_attention(lm.model, [sample.prompt.ids for sample in samples])
        to_documents = sum(
            float(w[layer, s.prompt.spans[0][0] : s.prompt.spans[-1][1]].sum())
            for w, s in zip(weights, samples, strict=True)
        )
        assert own + 3 * other == pytest.approx(to_documents / len(samples), rel=1e-4)


def test_layer_ranges_follow_the_layers_that_retrieve():
    excess = [0.0, 0.3, 0.1, 0.5, 0.6, 0.2, 0.4, 0.0]
    ranges = layer_ranges([(0.05 + value, 0.05) for value in excess])
    assert ranges == {"middle half": (2, 5), "around the best": (3, 4), "all that retrieve": (1, 6)}
    assert layer_ranges([(0.1, 0.2), (0.1, 0.1)])["around the best"] == (1, 1)
    assert [middle_half(n) for n in (1, 4, 32, 33)] == [(0, 0), (1, 2), (8, 23), (8, 24)]


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
    profile, done = Profile("random-llama", 64, 3, 3, 0.0, (1, 2)), []
    rows = attention_by_factor(lm, profile, samples, 3, done.append)
    assert [row["factor"] for row in rows] == [2.0, 1.5, 1.0, 0.5, 0.0, -0.5, -1.0]
    assert all(0 < row["first_third"] < 1 and 0 < row["last_third"] < 1 for row in rows)
    curves = curve_correlations(lm, profile, 6, 40, 0, 3, done.append)
    constant = next(curve for curve in curves if curve["perturbation"] == "position ids plus 10")
    assert constant["correlation_by_layer"] == pytest.approx([1.0] * len(constant["correlation_by_layer"]), abs=1e-3)
    assert sum(done) == 7 * len(samples) + 5 * 6


def test_the_perturbation_command_writes_what_it_shows(monkeypatch, capsys, tmp_path):
    arguments = ["--questions=1", "--strings=4", "--length=40", f"--json={tmp_path / 'p.json'}"]
    monkeypatch.setattr("sys.argv", ["perturb", "--model", "tiny", *arguments])
    perturb.main()
    assert "Correlation of the channel's curve" in " ".join(capsys.readouterr().out.split())
    written = json.loads((tmp_path / "p.json").read_text())
    assert (len(written["attention"]), len(written["curves"])) == (7, 4)
    monkeypatch.setattr("sys.argv", ["perturb", "--model", "tiny", "--strings=0"])
    with pytest.raises(SystemExit) as ended:
        perturb.main()
    assert ended.value.code == 2 and "strings=0" in capsys.readouterr().err
