"""The channel's curve with mask and position ids perturbed, and attention with the channel scaled."""

import json

import pytest
import torch

import ragbias
from ragbias.errors import MethodError
from ragbias.evaluation.experiments.perturbation import attention_by_factor, channel_states, measure, thirds
from ragbias.evaluation.experiments.questions import Questions
from ragbias.evaluation.prompts.random_strings import random_strings
from ragbias.methods import ChannelScaling
from ragbias.methods.attention_sorting import DocumentAttention
from ragbias.methods.profiles import Profile
from ragbias.prompt import TokenisedPrompt
from support.random_models import random_model

PROFILE = Profile("small", 64, 4, 3, 0.0, (1, 2))


@pytest.fixture(scope="module")
def lm(llama, byte_tokenizer):
    return ragbias.DebiasedLM(llama, byte_tokenizer, method="none")


@pytest.fixture(scope="module")
def samples(lm):
    return Questions("kv", limit=1, documents=4, depths=2).samples(lm)


@pytest.fixture(scope="module")
def found(lm, samples):
    return measure(lm, PROFILE, samples, strings=5, length=50, seed=1, batch_size=2, track=lambda each: each)


def test_the_curves_are_those_of_a_mask_and_of_position_ids(lm, found):
    """Given to the model itself: tokens 20 to 29 do not see those before them, or stand ten positions earlier."""
    ids = random_strings(lm, 0, 5, 50, seed=1)
    visible = torch.ones(50, 50, dtype=torch.bool).tril()
    positions = torch.arange(50)
    inputs = {
        "plain": {},
        "mask": {"attention_mask": visible & ~block(20, 30, 0, 20)},
        "position ids": {"position_ids": (positions - 10 * ((positions >= 20) & (positions < 30)))[None]},
    }
    inputs["mask"]["attention_mask"] = torch.where(inputs["mask"]["attention_mask"], 0.0, -1e30)[None, None]
    inputs["position ids"]["attention_mask"] = torch.ones_like(ids)
    assert list(found.curves) == list(inputs) and (found.span, found.by) == ((20, 30), 10)
    states = {}
    for name, given in inputs.items():
        with torch.no_grad():
            hidden = lm.model.model(ids, output_hidden_states=True, **given).hidden_states
        states[name] = torch.stack([each[..., PROFILE.channel].double() for each in hidden[1:-1]], 1)
        torch.testing.assert_close(found.curves[name], states[name].mean(0), atol=1e-4, rtol=1e-4)
    for name, source in (("mask", 0), ("position ids", 10)):
        here = states["plain"][..., 20:30].mean(-1)
        torch.testing.assert_close(found.changes[name], states[name][..., 20:30].mean(-1) - here, atol=1e-4, rtol=1e-3)
        there = states["plain"][..., source : source + 10].mean(-1)
        torch.testing.assert_close(found.expected[name], there - here, atol=1e-4, rtol=1e-3)
    halves = torch.stack([states["plain"][::2].mean(0), states["plain"][1::2].mean(0)])
    torch.testing.assert_close(found.halves, halves, atol=1e-4, rtol=1e-4)


def block(first, last, begin, end):
    chosen = torch.zeros(50, 50, dtype=torch.bool)
    chosen[first:last, begin:end] = True
    return chosen


def test_a_curve_that_follows_the_position_is_told_from_noise(found):
    found.curves["plain"][0] = torch.arange(50).double() * 2 + 7
    found.halves[:, 0] = torch.arange(50).double()
    assert found.follows[0] == pytest.approx(1) and found.repeats[0] == pytest.approx(1)
    assert max(map(abs, found.repeats[1:])) < 0.9


def test_lengths_are_scaled_with_the_strings_and_that_is_said(found):
    assert found.where == (
        "tokens 20 to 30 do not see those before 20, or have position ids less 10 "
        "(scaled from the paper's 400, 600 and 200 of 1000 tokens to 50)"
    )


def test_strings_longer_than_the_window_are_refused(lm):
    with pytest.raises(MethodError, match=r"perturbation: length=9999999; expected a whole number from 20 to"):
        measure(lm, PROFILE, [], 2, 9_999_999, 0, 2, lambda each: each)


def test_a_profile_of_another_model_is_refused(lm):
    with pytest.raises(MethodError, match="the profile is for a model of hidden size 4096 with 32 layers"):
        measure(lm, Profile("large", 4096, 32, 3, 0.0, (1, 2)), [], 2, 50, 0, 2, lambda each: each)


def test_a_model_without_position_ids_has_its_mask_perturbed_alone(byte_tokenizer, samples):
    mpt = ragbias.DebiasedLM(random_model("mpt"), byte_tokenizer, method="none")
    found = measure(mpt, PROFILE, samples[:1], 2, 40, 0, 2, lambda each: each)
    assert list(found.curves) == ["plain", "mask"] and (found.changes["mask"].abs() > 1e-3).any()


def test_attention_to_thirds_is_that_of_the_scaled_queries_and_keys(lm, samples):
    given = attention_by_factor(lm, PROFILE, samples, lambda each: each)
    masses = []
    for sample in samples:
        prompt, observer = thirds(sample.prompt), DocumentAttention()
        with torch.no_grad(), ragbias.debias(lm.model, observer, prompt.spans):
            lm.model(torch.tensor([prompt.ids]))
        masses.append(observer.mass[0][1:3].mean(0))
    first, _, last = torch.stack(masses).mean(0).tolist()
    assert given[1.0] == pytest.approx((first, last), rel=1e-4)
    assert len(set(given.values())) > 1
    ids = torch.tensor([samples[0].prompt.ids])
    neutral, plain = (channel_states(lm, ids, 3, each) for each in (ChannelScaling(3, 1.0, (1, 2)), None))
    torch.testing.assert_close(neutral, plain, atol=1e-4, rtol=1e-4)


def test_thirds_cover_the_documents_and_are_equally_long():
    prompt = TokenisedPrompt([0] * 4, [[1, 2, 3, 4, 5], [6, 7, 8]], [9])
    assert thirds(prompt) == TokenisedPrompt([0] * 4, [[1, 2, 3], [4, 5, 6], [7, 8]], [9])
    assert thirds(prompt).spans == [(4, 7), (7, 10), (10, 12)]


def test_the_command_draws_tells_and_writes(cli, tmp_path):
    out, numbers = tmp_path / "p.png", tmp_path / "p.json"
    size = ("--strings", "3", "--length", "60", "--limit", "1", "--documents", "4")
    code, said, errors = cli("experiment", "perturbation", *size, "--channel", "53", "--out", out, "--json", numbers)
    assert code == 0, errors
    found = json.loads(numbers.read_text())
    assert "scaled from the paper's" in " ".join(said.split()) and out.stat().st_size > 10_000
    assert found["channel"] == 53 and found["span"] == [24, 36] and found["by"] == 12
    assert list(found["perturbations"]) == ["mask", "position ids"] and len(found["attention_by_factor"]) == 7
    code, _, errors = cli("experiment", "perturbation", *size, "--channel", "128", "--out", out)
    assert code == 2 and "channel=128; expected an index below hidden_size=128" in " ".join(errors.split())
