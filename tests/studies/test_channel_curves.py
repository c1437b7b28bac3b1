"""The channel's curve with mask and position ids perturbed."""

from dataclasses import replace

import pytest
import torch

import ragbias
from ragbias.errors import MethodError
from ragbias.methods import ChannelScaling
from ragbias_eval.calibration.samples import draw_strings
from studies.channel_curves import channel_states, measure_curves
from studies.experiment import Questions
from support.random_models import random_model

CHANNEL = 3


@pytest.fixture(scope="module")
def found(plain_lm):
    return measure_curves(plain_lm, CHANNEL, strings=5, length=50, seed=1, batch_size=2, track=lambda each: each)


def test_the_curves_are_those_of_a_mask_and_of_position_ids(plain_lm, found):
    """In the reference runs, tokens 20 to 29 do not see earlier tokens, or have positions lower by ten."""
    ids = draw_strings(plain_lm, 0, 5, 50, seed=1)
    visible = torch.ones(50, 50, dtype=torch.bool).tril()
    positions = torch.arange(50)
    inputs = {
        "plain": {},
        "mask": {"attention_mask": visible & ~block(20, 30, 0, 20)},
        "position ids": {"position_ids": (positions - 10 * ((positions >= 20) & (positions < 30)))[None]},
    }
    inputs["mask"]["attention_mask"] = torch.where(inputs["mask"]["attention_mask"], 0.0, -1e30)[None, None]
    inputs["position ids"]["attention_mask"] = torch.ones_like(ids)
    assert list(found.states) == list(inputs) and (found.span, found.by) == ((20, 30), 10)
    states = {}
    for name, given in inputs.items():
        with torch.no_grad():
            hidden = plain_lm.model.model(ids, output_hidden_states=True, **given).hidden_states
        states[name] = torch.stack([each[..., CHANNEL].double() for each in hidden[1:-1]], 1)
        torch.testing.assert_close(found.states[name], states[name], atol=1e-4, rtol=1e-4)
    for name, source in (("mask", 0), ("position ids", 10)):
        here = states["plain"][..., 20:30].mean(-1)
        torch.testing.assert_close(found.change(name), states[name][..., 20:30].mean(-1) - here, atol=1e-4, rtol=1e-3)
        there = states["plain"][..., source : source + 10].mean(-1)
        torch.testing.assert_close(found.expected(name), there - here, atol=1e-4, rtol=1e-3)


def block(first, last, begin, end):
    chosen = torch.zeros(50, 50, dtype=torch.bool)
    chosen[first:last, begin:end] = True
    return chosen


def test_a_positional_curve_is_distinguished_from_noise(found):
    plain = found.states["plain"].clone()
    plain[:, 0] = torch.arange(50).double() * 2 + 7
    found = replace(found, states={"plain": plain})
    assert found.follows[0] == pytest.approx(1) and found.repeats[0] == pytest.approx(1)
    assert max(map(abs, found.repeats[1:])) < 0.9


def test_lengths_are_scaled_with_the_strings_and_reported(found):
    assert found.where == (
        "tokens 20 to 30 do not see those before 20, or have position ids less 10 "
        "(scaled from the paper's 400, 600 and 200 of 1000 tokens to 50)"
    )


def test_strings_longer_than_the_window_are_refused(plain_lm):
    with pytest.raises(MethodError, match=r"perturbation: length=9999999; expected a whole number from 20 to"):
        measure_curves(plain_lm, CHANNEL, 2, 9_999_999, 0, 2, lambda each: each)


def test_without_position_ids_only_the_mask_is_perturbed(byte_tokenizer):
    mpt = ragbias.DebiasedLM(random_model("mpt"), byte_tokenizer, method="none")
    found = measure_curves(mpt, CHANNEL, 2, 40, 0, 2, lambda each: each)
    assert list(found.states) == ["plain", "mask"] and (found.change("mask").abs() > 1e-3).any()


def test_a_channel_scaled_by_one_is_as_it_was(plain_lm):
    ids = torch.tensor([Questions("kv", limit=1, documents=4, depths=2).samples(plain_lm)[0].prompt.ids])
    neutral, plain = (channel_states(plain_lm, ids, 3, each) for each in (ChannelScaling(3, 1.0, (1, 2)), None))
    torch.testing.assert_close(neutral, plain, atol=1e-4, rtol=1e-4)
