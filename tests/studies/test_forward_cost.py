"""Time and memory of methods relative to the plain model."""

import time

import pytest
import torch

from ragbias import debias
from ragbias.methods import METHODS, AttentionMethod, Pine
from ragbias_eval.cost import peak_memory
from studies.speed import measure
from studies.speed_inputs import draw_prompts, in_every_layer
from support.random_models import random_model

CPU = torch.device("cpu")
NAMES = [name for name, method in METHODS.items() if issubclass(method, AttentionMethod)]


@pytest.mark.serial
def test_every_in_model_method_is_measured_in_a_ragged_batch():
    llama = random_model("llama", num_hidden_layers=1)
    batch = draw_prompts([6, 9, 4], 2, llama.config.vocab_size, CPU, ragged=True)
    done = []
    methods = {name: in_every_layer(name) for name in NAMES}
    costs = measure(llama, methods, batch, steps=2, rounds=2, progress=lambda: done.append(1))
    assert list(costs) == ["none", *NAMES]
    assert len(done) == (1 + 2) * len(costs)  # memory, then two rounds
    for cost in costs.values():
        for name in ("prefill", "first_token", "decode"):
            median, low, high = getattr(cost, f"{name}_seconds")
            assert 0 < low <= median <= high
            median, low, high = getattr(cost, f"{name}_ratio")
            assert 0 < low <= median <= high
        assert cost.first_token_seconds[0] > cost.prefill_seconds[0]
        assert cost.prefill_limit > 0 and cost.decode_limit >= 1
    plain = costs["none"]
    assert plain.prefill_ratio == plain.first_token_ratio == plain.decode_ratio == (1, 1, 1)
    assert plain.peak_ratio == 1


@pytest.mark.serial
def test_work_that_takes_long_is_seen_where_it_is_done():
    """Methods that wait half a second, in the prefill or in decoding."""

    def slow(in_prefill):
        class Slow(Pine):
            def attention(self, call):
                if call.prefill == in_prefill:
                    time.sleep(0.5)
                return super().attention(call)

        return Slow()

    model = random_model("llama", num_hidden_layers=1)
    batch = draw_prompts([10] * 3, 1, model.config.vocab_size, CPU)
    costs = measure(model, {"prefill": slow(True), "decoding": slow(False)}, batch, steps=2, rounds=3)
    prefill, decoding = costs["prefill"], costs["decoding"]
    assert min(prefill.prefill_seconds[0], prefill.first_token_seconds[0], decoding.decode_seconds[0]) > 0.5
    assert max(decoding.prefill_seconds[0], decoding.first_token_seconds[0], prefill.decode_seconds[0]) < 0.5


def test_padded_sequences_decode_as_they_do_alone():
    """In a padded batch, each sequence generates the same tokens as without padding."""
    model = random_model("qwen2")
    batch = draw_prompts([8, 8, 8], 3, model.config.vocab_size, CPU, ragged=True)

    def tokens(method, ids, spans, inputs):
        chosen = []
        with torch.no_grad(), debias(model, method, spans):
            output = model(ids, use_cache=True, logits_to_keep=1, **inputs(0))
            for step in range(1, 4):
                chosen.append(output.logits[:, -1:].argmax(-1))
                output = model(chosen[-1], past_key_values=output.past_key_values, **inputs(step))
        return torch.cat(chosen, dim=1).tolist()

    for method in ("none", "pine", "ms-poe"):
        together = tokens(method, batch.ids, batch.spans, batch.inputs)
        for own, prompt in zip(together, batch.prompts, strict=True):
            assert tokens(method, torch.tensor([prompt.ids]), prompt.spans, lambda step: {}) == [own]


def test_peak_memory_is_the_highest_point_and_not_the_sum():
    held = torch.zeros(1000)

    def action():
        for _ in range(3):
            first = torch.ones(250_000)
            second = torch.ones(500_000)
            del first, second
        return held

    assert 3_000_000 <= peak_memory(CPU, action) <= 3_100_000


def test_methods_by_name_act_in_every_layer():
    for name in NAMES:
        assert list(in_every_layer(name).layer_indices(3)) == [0, 1, 2]
