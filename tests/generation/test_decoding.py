"""Decoding: log-probabilities, special tokens, stop strings, sampling, streams, rejected logits."""

import copy
import threading
import time
from dataclasses import replace

import pytest
import torch

from ragbias import DebiasedLM, Prompt
from ragbias.errors import NonFiniteLogitsError
from ragbias.generation import GenerationSettings, GrowingText
from ragbias.generation.decoding import decode_tokens, safe_length
from ragbias.generation.scoring import logprobs_of
from ragbias.models.loading import load_tokenizer
from support.prompts import ANIMALS, PROMPT
from support.random_models import random_model


@pytest.mark.parametrize("method", ["none", "pine", "ms-poe", "permutation-vote"])
def test_logprobs_are_those_of_the_chosen_tokens(lm, method):
    settings = dict(method=method, max_new_tokens=6)
    answer = lm.generate(PROMPT, logprobs=True, **settings)
    plain = lm.generate(PROMPT, **settings)
    assert (plain.text, plain.logprobs) == (answer.text, None)
    assert len(answer.logprobs) == len(answer.token_ids)
    batched = lm.batch([PROMPT, Prompt("Context:\n", ANIMALS[:2], "Q:")], logprobs=True, **settings)
    torch.testing.assert_close(batched[0].logprobs, answer.logprobs, atol=1e-4, rtol=0)
    if method != "permutation-vote":
        request = lm.prepare(PROMPT, method=method)
        torch.testing.assert_close(
            answer.logprobs, logprobs_of(lm.loaded, request, answer.token_ids), atol=1e-4, rtol=0
        )


def test_logprobs_of_a_sample_are_those_before_temperature(lm):
    settings = dict(max_new_tokens=12, temperature=3.0, top_k=20, seed=3, method="none")
    answer = lm.generate(PROMPT, logprobs=True, **settings)
    expected = logprobs_of(lm.loaded, lm.prepare(PROMPT, method="none"), answer.token_ids)
    torch.testing.assert_close(answer.logprobs, expected, atol=1e-4, rtol=0)
    stopped = lm.generate(PROMPT, logprobs=True, stop=[answer.text[4:6]], **settings)
    assert len(stopped.logprobs) == len(stopped.token_ids) < len(answer.token_ids)
    torch.testing.assert_close(stopped.logprobs, expected[: len(stopped.logprobs)], atol=1e-4, rtol=0)
    stream = lm.stream(PROMPT, logprobs=True, **settings)
    assert "".join(stream) == answer.text
    assert stream.generation.logprobs == answer.logprobs


def test_special_tokens_stay_in_the_text_only_if_named(lm):
    tokenizer = copy.deepcopy(lm.tokenizer)
    tokenizer.add_special_tokens({"additional_special_tokens": ["[TOOL_CALLS]", "[INST]"]})
    call, other = tokenizer.convert_tokens_to_ids(["[TOOL_CALLS]", "[INST]"])
    ids = [*tokenizer("ab", add_special_tokens=False).input_ids, call, other, 2]
    assert decode_tokens(tokenizer, ids) == "ab"
    assert decode_tokens(tokenizer, ids, ["[TOOL_CALLS]", "<tool_call>"]) == "ab[TOOL_CALLS]"
    assert decode_tokens(tokenizer, ids, ["<tool_call>"]) == "ab"


def test_decoding_takes_no_time_with_thousands_of_added_tokens(lm):
    tokenizer = copy.deepcopy(lm.tokenizer)
    tokenizer.add_tokens([f"<unused{index}>" for index in range(3000)], special_tokens=True)
    ids = tokenizer.encode("ab<unused7>", add_special_tokens=False)
    begin = time.perf_counter()
    assert (decode_tokens(tokenizer, ids), decode_tokens(tokenizer, ids, ["<unused7>"])) == ("ab", "ab<unused7>")
    assert time.perf_counter() - begin < 1  # it grew with their square: minutes for Gemma's


def test_stop_strings_across_token_borders_are_never_shown(lm):
    whole = lm.generate(PROMPT, max_new_tokens=16).text
    stop = whole[5:8]
    expected = whole[: whole.find(stop)]
    cut = lm.generate(PROMPT, max_new_tokens=16, stop=[stop])
    assert (cut.text, cut.finish_reason) == (expected, "stop")
    pieces = list(lm.stream(PROMPT, max_new_tokens=16, stop=[stop]))
    assert "".join(pieces) == expected
    assert lm.batch([PROMPT, PROMPT], max_new_tokens=16, stop=[stop])[1].text == expected


def test_a_seed_repeats_a_sample_without_the_global_generator(lm):
    settings = dict(max_new_tokens=12, temperature=1.5, top_p=0.9)
    torch.manual_seed(0)
    before = torch.get_rng_state()
    first = lm.generate(PROMPT, seed=1, **settings)
    assert torch.equal(torch.get_rng_state(), before)
    assert lm.generate(PROMPT, seed=1, **settings).text == first.text
    assert lm.batch([PROMPT, PROMPT], seed=1, **settings)[1].text == first.text
    assert len({lm.generate(PROMPT, seed=seed, **settings).text for seed in range(6)}) > 1


def test_sampling_follows_the_distribution_of_the_model(lm):
    """Gumbel noise samples from the softmax: frequencies of the first token match its probabilities."""
    ids = lm.tokenizer(PROMPT.text, return_tensors="pt").input_ids
    with torch.no_grad():
        probabilities = (lm.model(ids).logits[0, -1] / 4).softmax(-1)
    draws = lm.batch([PROMPT] * 600, method="none", max_new_tokens=1, temperature=4.0, batch_size=100)
    counts = torch.zeros_like(probabilities)
    for draw in draws:
        counts[draw.token_ids[0] if draw.token_ids else 2] += 1
    top = probabilities.topk(5).indices
    spread = 4 * (probabilities * (1 - probabilities) / 600).sqrt()
    assert ((counts / 600 - probabilities).abs() <= spread)[top].all()


def test_a_finished_stream_ends_for_every_reader(lm):
    stream = lm.stream(PROMPT, max_new_tokens=6)
    pieces: list[str] = []
    readers = [threading.Thread(target=lambda: pieces.extend(stream), daemon=True) for _ in range(3)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join(timeout=20)
    assert not any(reader.is_alive() for reader in readers)


def test_nan_logits_raise_instead_of_an_answer(byte_tokenizer):
    model = random_model("llama", seed=1)
    with torch.no_grad():
        model.lm_head.weight[7] = torch.nan
    lm = DebiasedLM(model, byte_tokenizer)
    with pytest.raises(NonFiniteLogitsError, match="NaN"):
        lm.generate(PROMPT)
    with pytest.raises(NonFiniteLogitsError, match="NaN"):
        list(lm.stream(PROMPT))
    with pytest.raises(NonFiniteLogitsError, match="NaN"):
        lm.score(PROMPT, "abc")


def test_an_error_reaches_the_consumer_of_a_stream(lm):
    def fail(*_):
        raise RuntimeError("in the middle of a layer")

    handle = lm.model.model.layers[1].mlp.register_forward_pre_hook(fail)
    try:
        with pytest.raises(RuntimeError, match="in the middle"):
            list(lm.stream(PROMPT))
    finally:
        handle.remove()


@pytest.mark.parametrize("end", ["close", "drop"])
def test_a_closed_or_dropped_stream_stops_computing(lm, end):
    steps = []
    handle = lm.model.register_forward_hook(lambda *_: steps.append(1))
    stream = lm.stream(PROMPT, max_new_tokens=3000)
    try:
        next(stream)
        worker = stream._thread
        if end == "close":
            stream.close()
            assert next(stream, None) is None
        else:
            del stream
        worker.join(timeout=20)
        assert not worker.is_alive()
        assert len(steps) < 1000
    finally:
        handle.remove()


@pytest.mark.parametrize("temperature", [1e-300, 1e-40, 1e-7])
def test_a_temperature_next_to_nothing_is_greedy(lm, temperature):
    assert lm.generate(PROMPT, temperature=temperature, seed=0).text == lm.generate(PROMPT).text


@pytest.mark.parametrize("method", ["none", "pine", "mixture"])
def test_a_request_that_is_cancelled_ends_by_itself(lm, method):
    left = threading.Event()
    left.set()
    requests = [lm.prepare(PROMPT, method=method) for _ in range(2)]
    own, other = lm.batch([replace(requests[0], cancelled=left), requests[1]], max_new_tokens=5, min_new_tokens=5)
    alone = lm.generate(PROMPT, method=method, max_new_tokens=5, min_new_tokens=5)
    assert other.token_ids == alone.token_ids
    assert own.token_ids[0] == alone.token_ids[0] and own.token_ids[1:] != alone.token_ids[1:]


def test_a_stop_string_longer_than_the_text_costs_nothing():
    begin = time.perf_counter()
    assert safe_length("hello a", ["a" * 2_000_000]) == len("hello ")
    assert time.perf_counter() - begin < 1


@pytest.mark.parametrize("text", ["one two three", "naïve “日本語” 🎉🎉 end", "a STOP b", "end ST", "🎉"])
def test_a_growing_text_equals_the_whole_text(monkeypatch, text):
    tokenizer, lengths = load_tokenizer("tiny", {}), []
    decode = tokenizer.decode
    ids = tokenizer(text * 20, add_special_tokens=False)["input_ids"]
    whole = decode(ids, skip_special_tokens=True).partition("STOP")[0]
    monkeypatch.setattr(tokenizer, "decode", lambda ids, **how: lengths.append(len(ids)) or decode(ids, **how))
    growing = GrowingText(tokenizer, GenerationSettings(stop=("STOP",)))
    sent = "".join(growing.add([token]) for token in ids)
    assert max(lengths) < 16
    assert growing.end() == (whole, whole[len(sent) :]) and len(whole) - len(sent) < len("STOP")
