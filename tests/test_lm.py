"""DebiasedLM: generate, stream, batch and score agree with each other and with transformers."""

import copy
import itertools
import threading
import warnings

import pytest
import torch

from conftest import FAMILIES, random_model
from ragbias import DebiasedLM, Prompt, debias, documents, methods
from ragbias.boundaries import NumberedHeadersWarning
from ragbias.decoding import decoded
from ragbias.errors import (
    ArgumentError,
    DocumentNotFoundError,
    EmptyDocumentError,
    MethodError,
    NonFiniteLogitsError,
    PromptTooLongError,
    UnknownMethodError,
    UnsupportedModelError,
)
from ragbias.methods import ChannelScaling, PermutationVote, Pine, RoToR
from ragbias.prompt import tokenise
from ragbias.report import Generation, Report, Usage
from ragbias.scoring import logprobs_of
from ragbias.voting import elect

DOCUMENTS = ["The falcon is red.\n", "An owl sleeps in the barn at noon.\n", "Two herons.\n", "A crow counts to six.\n"]
PROMPT = Prompt("Context:\n", DOCUMENTS, "Question: who sleeps?\nAnswer:")
METHODS = [ChannelScaling(5, 0.0, layers=(1, 2)), *(name for name in methods.METHODS if name != "channel-scaling")]


def name(method):
    return method if isinstance(method, str) else method.name


@pytest.mark.parametrize("method", METHODS, ids=name)
def test_stream_and_batch_give_what_generate_gives(lm, method):
    alone = lm.generate(PROMPT, method=method, max_new_tokens=12)
    assert "".join(lm.stream(PROMPT, method=method, max_new_tokens=12)) == alone.text
    short = Prompt("Context:\n", DOCUMENTS[:2], "Q:")
    first, second = lm.batch([PROMPT, short], method=method, max_new_tokens=12)
    assert first.text == alone.text
    assert second.text == lm.generate(short, method=method, max_new_tokens=12).text
    assert alone.report.method_requested == alone.report.method_ran == name(method)


def test_none_equals_transformers(lm):
    ids = lm.tokenizer(PROMPT.text, return_tensors="pt").input_ids
    expected = lm.model.generate(ids, max_new_tokens=12, do_sample=False)[0, ids.shape[1] :].tolist()
    got = lm.generate(PROMPT, method="none", max_new_tokens=12)
    assert got.token_ids == [token for token in expected if token != 2]
    assert got.usage.prompt_tokens == ids.shape[1]
    assert got.usage.total_tokens == got.usage.prompt_tokens + got.usage.completion_tokens


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_pine_text_is_the_same_for_all_permutations_streamed_and_not(byte_tokenizer, dtype):
    lm = DebiasedLM(random_model("llama").to(dtype), byte_tokenizer)
    expected = lm.generate(PROMPT, max_new_tokens=10)
    for order in itertools.permutations(range(4)):
        prompt = PROMPT.reordered(order)
        assert lm.generate(prompt, max_new_tokens=10).token_ids == expected.token_ids
        assert "".join(lm.stream(prompt, max_new_tokens=10)) == expected.text
        assert lm.score(prompt, " the owl").logprobs == lm.score(PROMPT, " the owl").logprobs


def test_flat_prompt_with_documents_equals_the_prompt_in_parts(lm):
    flat = lm.generate(PROMPT.text, documents=[text.strip() for text in DOCUMENTS], max_new_tokens=8)
    assert flat.text == lm.generate(PROMPT, max_new_tokens=8).text
    assert (flat.report.source, flat.report.n_expected, flat.report.n_found) == ("documents", 4, 4)
    assert flat.report.spans == lm.generate(PROMPT, max_new_tokens=1).report.spans


def test_numbered_headers_are_found_and_their_numbers_can_be_stripped(lm):
    numbered = [f"[{number}] {text}" for number, text in enumerate(DOCUMENTS, 1)]
    text = "Context:\n" + "".join(numbered) + "\nQuestion: who sleeps?\nAnswer:"
    found = lm.generate(text, max_new_tokens=1)
    assert (found.report.source, found.report.method_ran, found.report.n_found) == ("headers", "pine", 4)
    with pytest.raises(DocumentNotFoundError, match="0 of 1"):
        lm.generate(text, documents=["not there"])
    bare = DebiasedLM(lm.model, lm.tokenizer, strip_numbering=True)
    without = lm.generate(Prompt("Context:\n", DOCUMENTS, "\nQuestion: who sleeps?\nAnswer:"), max_new_tokens=4)
    stripped = bare.generate(text, max_new_tokens=4)
    assert stripped.usage.prompt_tokens == without.usage.prompt_tokens
    assert stripped.text == without.text


def test_documents_block_names_the_documents(lm):
    with documents(DOCUMENTS):
        assert lm.generate(PROMPT.text, max_new_tokens=2).report.n_found == 4
    assert lm.generate(PROMPT.text, max_new_tokens=2).report.method_ran == "none"


def test_score_is_the_log_probability_of_generation(lm):
    for method in METHODS:
        answer = lm.generate(PROMPT, method=method, max_new_tokens=4)
        assert len(answer.token_ids) == 4
        text = lm.tokenizer.decode(answer.token_ids)
        if lm.tokenizer(text, add_special_tokens=False).input_ids != answer.token_ids:
            continue
        best = lm.score(PROMPT, text, method=method)
        worse = lm.score(PROMPT, text[:-1] + ("a" if text[-1] != "a" else "b"), method=method)
        assert best.total > worse.total
        assert max(best.logprobs) <= 0


def test_score_agrees_with_one_forward_pass_of_the_plain_model(lm):
    score = lm.score(PROMPT, " an owl", method="none")
    ids = lm.tokenizer(PROMPT.text, return_tensors="pt").input_ids
    both = torch.cat([ids, torch.tensor([score.token_ids])], dim=1)
    with torch.no_grad():
        logprobs = lm.model(both).logits[0].log_softmax(-1)[ids.shape[1] - 1 : -1]
    expected = logprobs.gather(1, both[0, ids.shape[1] :, None])[:, 0]
    torch.testing.assert_close(torch.tensor(score.logprobs), expected, atol=1e-4, rtol=0)


# log-probabilities


@pytest.mark.parametrize("method", ["none", "pine", "ms-poe", "permutation-vote"])
def test_logprobs_are_those_of_the_chosen_tokens(lm, method):
    settings = dict(method=method, max_new_tokens=6)
    answer = lm.generate(PROMPT, logprobs=True, **settings)
    plain = lm.generate(PROMPT, **settings)
    assert (plain.text, plain.logprobs) == (answer.text, None)
    assert len(answer.logprobs) == len(answer.token_ids)
    batched = lm.batch([PROMPT, Prompt("Context:\n", DOCUMENTS[:2], "Q:")], logprobs=True, **settings)
    torch.testing.assert_close(batched[0].logprobs, answer.logprobs, atol=1e-4, rtol=0)
    if method != "permutation-vote":
        request = lm.prepare(PROMPT, method=method)
        torch.testing.assert_close(answer.logprobs, logprobs_of(lm.model, request, answer.token_ids), atol=1e-4, rtol=0)


def test_logprobs_of_a_sample_are_those_before_temperature_with_stop_strings_too(lm):
    settings = dict(max_new_tokens=12, temperature=3.0, top_k=20, seed=3, method="none")
    answer = lm.generate(PROMPT, logprobs=True, **settings)
    expected = logprobs_of(lm.model, lm.prepare(PROMPT, method="none"), answer.token_ids)
    torch.testing.assert_close(answer.logprobs, expected, atol=1e-4, rtol=0)
    stopped = lm.generate(PROMPT, logprobs=True, stop=[answer.text[4:6]], **settings)
    assert len(stopped.logprobs) == len(stopped.token_ids) < len(answer.token_ids)
    torch.testing.assert_close(stopped.logprobs, expected[: len(stopped.logprobs)], atol=1e-4, rtol=0)
    stream = lm.stream(PROMPT, logprobs=True, **settings)
    assert "".join(stream) == answer.text
    assert stream.generation.logprobs == answer.logprobs


# special tokens, batches


def test_special_tokens_are_left_in_the_text_only_where_they_are_named(lm):
    tokenizer = copy.deepcopy(lm.tokenizer)
    tokenizer.add_special_tokens({"additional_special_tokens": ["[TOOL_CALLS]", "[INST]"]})
    call, other = tokenizer.convert_tokens_to_ids(["[TOOL_CALLS]", "[INST]"])
    ids = [*tokenizer("ab", add_special_tokens=False).input_ids, call, other, 2]
    assert decoded(tokenizer, ids) == "ab"
    assert decoded(tokenizer, ids, ["[TOOL_CALLS]", "<tool_call>"]) == "ab[TOOL_CALLS]"
    assert decoded(tokenizer, ids, ["<tool_call>"]) == "ab"


def test_a_batch_takes_prompts_made_ready(lm):
    ready = [lm.prepare(PROMPT), lm.prepare(PROMPT.text, method="none")]
    answers = lm.batch(ready, max_new_tokens=8)
    assert [answer.report.method_ran for answer in answers] == ["pine", "none"]
    assert answers[0].text == lm.generate(PROMPT, max_new_tokens=8).text


def test_a_prompt_near_the_windows_end_takes_no_room_from_the_others(lm):
    long = "a" * (lm.window - 4)
    short, cut = lm.batch(["hello", long], method="none", max_new_tokens=9)
    assert short.text == lm.generate("hello", method="none", max_new_tokens=9).text
    assert cut.usage.completion_tokens <= 3


# stopping and sampling


def test_stop_strings_across_token_borders_are_never_shown(lm):
    whole = lm.generate(PROMPT, max_new_tokens=16).text
    stop = whole[5:8]
    expected = whole[: whole.find(stop)]
    cut = lm.generate(PROMPT, max_new_tokens=16, stop=[stop])
    assert (cut.text, cut.finish_reason) == (expected, "stop")
    pieces = list(lm.stream(PROMPT, max_new_tokens=16, stop=[stop]))
    assert "".join(pieces) == expected
    assert lm.batch([PROMPT, PROMPT], max_new_tokens=16, stop=[stop])[1].text == expected


def test_a_seed_repeats_a_sample_and_leaves_the_global_generator_alone(lm):
    settings = dict(max_new_tokens=12, temperature=1.5, top_p=0.9)
    torch.manual_seed(0)
    before = torch.get_rng_state()
    first = lm.generate(PROMPT, seed=1, **settings)
    assert torch.equal(torch.get_rng_state(), before)
    assert lm.generate(PROMPT, seed=1, **settings).text == first.text
    assert lm.batch([PROMPT, PROMPT], seed=1, **settings)[1].text == first.text
    assert len({lm.generate(PROMPT, seed=seed, **settings).text for seed in range(6)}) > 1


def test_sampling_follows_the_distribution_of_the_model(lm):
    """Gumbel noise samples the softmax: frequencies of the first token match its probabilities."""
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


@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": -1},
        {"temperature": float("nan")},
        {"top_p": 0.0, "temperature": 1},
        {"top_k": 0, "temperature": 1},
        {"max_new_tokens": 0},
        {"stop": [""]},
        {"eos_token_id": 5},
        {"num_beams": 2},
        {"max_new_tokens": 2.5},
        {"temperature": "0.5"},
        {"top_k": 2.5, "temperature": 1},
        {"stop": [1]},
        {"stop": 1},
        {"seed": 1.5},
        {"logprobs": "yes"},
        {"repetition_penalty": 0},
    ],
    ids=str,
)
def test_settings_out_of_range_are_refused_at_once(lm, settings):
    with pytest.raises(ArgumentError, match=next(iter(settings)).replace("stop", "stop string")):
        lm.generate(PROMPT, **settings)
    with pytest.raises(ArgumentError):
        lm.stream(PROMPT, **settings)


# what cannot run


def test_one_document_or_none_runs_plain_and_says_so(lm):
    for count, words in ((0, "no documents"), (1, "one document")):
        prompt = Prompt("Context:\n", DOCUMENTS[:count], "Q:")
        answer = lm.generate(prompt, max_new_tokens=4)
        assert (answer.report.method_requested, answer.report.method_ran) == ("pine", "none")
        assert words in answer.report.reason
        assert answer.text == lm.generate(prompt, method="none", max_new_tokens=4).text


def test_documents_at_the_very_end_run_plain_and_the_report_says_so(lm):
    answer = lm.generate(Prompt("Context:\n", DOCUMENTS, ""), max_new_tokens=3)
    assert answer.report.method_ran == "none"
    assert "ends with the documents" in answer.report.reason


def test_documents_with_footers_run_plain_and_the_report_says_so(lm):
    text = "Context:\n" + "\n\n".join(f"{body.strip()}\nSource: {i}" for i, body in enumerate(DOCUMENTS)) + "\n\nQ:"
    answer = lm.generate(text, documents=[body.strip() for body in DOCUMENTS], max_new_tokens=4)
    assert (answer.report.method_ran, answer.report.n_found) == ("none", 4)
    assert "footer" in answer.report.reason
    assert answer.text == lm.generate(text, method="none", max_new_tokens=4).text


def test_batch_takes_lists(lm):
    with pytest.raises(ArgumentError, match="list of prompts"):
        lm.batch("abc")
    with pytest.raises(ArgumentError, match="one entry"):
        lm.batch([PROMPT, PROMPT], documents=[None])


def test_a_finished_stream_ends_for_every_reader(lm):
    stream = lm.stream(PROMPT, max_new_tokens=6)
    pieces: list[str] = []
    readers = [threading.Thread(target=lambda: pieces.extend(stream), daemon=True) for _ in range(3)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join(timeout=20)
    assert not any(reader.is_alive() for reader in readers)


def test_errors_have_their_own_class(lm):
    with pytest.raises(EmptyDocumentError, match="document 1 of 2"):
        Prompt("a", ["x", " \n"], "b")
    with pytest.raises(UnknownMethodError, match="'pines'.*pine"):
        lm.generate(PROMPT, method="pines")
    with pytest.raises(DocumentNotFoundError, match="1 of 2"):
        lm.generate(PROMPT.text, documents=[DOCUMENTS[0], "This stands nowhere."])
    with pytest.raises(PromptTooLongError, match=r"\d+ tokens.*4096"):
        lm.generate(Prompt("", ["word " * 900, "another " * 500], "?"))
    with pytest.raises(MethodError, match="ragbias calibrate"):
        lm.generate(PROMPT, method="channel-scaling")
    with pytest.raises(MethodError, match="channel=64"):
        lm.generate(PROMPT, method=ChannelScaling(64, 0, layers=(0, 1)))
    with pytest.raises(MethodError, match="layers"):
        lm.generate(PROMPT, method=Pine(layers=(2, 9)))


def test_unsupported_architecture_is_refused_by_name_but_runs_plain(byte_tokenizer):
    model = random_model("stablelm")
    with pytest.raises(UnsupportedModelError, match=r"stablelm.*llama"):
        DebiasedLM(model, byte_tokenizer, method="pine").generate(PROMPT)
    assert (
        DebiasedLM(model, byte_tokenizer, method="none").generate(PROMPT, max_new_tokens=2).usage.completion_tokens == 2
    )


def test_nan_logits_raise_instead_of_an_answer(byte_tokenizer):
    model = random_model("llama", seed=1)
    with torch.no_grad():
        model.lm_head.weight[7] = torch.nan
    lm = DebiasedLM(model, byte_tokenizer)
    with pytest.raises(NonFiniteLogitsError, match="NaN"):
        lm.generate(PROMPT)
    with pytest.raises(NonFiniteLogitsError):
        list(lm.stream(PROMPT))
    with pytest.raises(NonFiniteLogitsError):
        lm.score(PROMPT, "abc")


# streams


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


def test_eight_threads_with_different_methods_give_what_they_give_alone(lm):
    work = [(method, Prompt("Context:\n", DOCUMENTS[i:] + DOCUMENTS[:i], "Q:")) for i, method in enumerate(METHODS[:4])]
    work += [(method, PROMPT.reordered([2, 0, 3, 1])) for method in METHODS[:4]]
    expected = [lm.generate(prompt, method=method, max_new_tokens=10).token_ids for method, prompt in work]
    results: dict[tuple[int, int], list[int]] = {}
    barrier = threading.Barrier(len(work))

    def run(index):
        method, prompt = work[index]
        barrier.wait()
        for round_ in range(3):
            results[index, round_] = lm.generate(prompt, method=method, max_new_tokens=10).token_ids

    threads = [threading.Thread(target=run, args=(index,)) for index in range(len(work))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {(index, round_): ids for index, ids in enumerate(expected) for round_ in range(3)}


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_answers_the_same_in_any_order(byte_tokenizer, family):
    lm = DebiasedLM(random_model(family), byte_tokenizer)
    texts = {
        lm.generate(Prompt(PROMPT.prefix, [DOCUMENTS[i] for i in order], PROMPT.suffix), max_new_tokens=5).text
        for order in ((0, 1, 2, 3), (3, 1, 0, 2))
    }
    assert len(texts) == 1


def test_numbered_headers_are_warned_of_once_and_can_be_stripped(llama, byte_tokenizer):
    flat = (
        "Context:\n"
        + "\n".join(f"[{number}] {text.strip()}" for number, text in enumerate(DOCUMENTS, 1))
        + "\n\nQ: who?"
    )
    lm = DebiasedLM(llama, byte_tokenizer)
    with pytest.warns(NumberedHeadersWarning, match="strip_numbering=True"):
        assert lm.prepare(flat).report.source == "headers"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        lm.prepare(flat)
        DebiasedLM(llama, byte_tokenizer, strip_numbering=True).prepare(flat)


# voting and routing


def generation(text, length=1):
    return Generation(text, [1] * length, Usage(10, length), Report("a", "a", "prompt", (), 0, 0), "stop")


def test_the_most_frequent_text_wins_and_the_usage_is_the_sum():
    def refuse(index):
        raise AssertionError("there is no tie")

    winner = elect([generation("owl"), generation(" heron\n", 3), generation("heron", 2)], refuse)
    assert (winner.text, winner.usage) == (" heron\n", Usage(30, 6))


def test_a_tie_goes_to_the_highest_mean_log_probability():
    tied = [generation("owl"), generation("heron"), generation("crow"), generation("owl"), generation("heron")]
    assert elect(tied, {0: -2.0, 1: -1.0}.__getitem__).text == "heron"
    assert elect(tied, {0: -1.0, 1: -2.0}.__getitem__).text == "owl"


def test_a_vote_is_the_vote_of_its_shuffles(lm):
    method = PermutationVote(samples=4, seed=3)
    tokens = [lm.tokenizer(text, add_special_tokens=False).input_ids for text in DOCUMENTS]
    orders = method.orders(tokens)
    assert all(sorted(order) == [0, 1, 2, 3] for order in orders) and len(set(map(tuple, orders))) > 1
    shuffled = [Prompt(PROMPT.prefix, [DOCUMENTS[index] for index in order], PROMPT.suffix) for order in orders]
    answers = [lm.generate(prompt, method="none", max_new_tokens=6) for prompt in shuffled]
    scores = []
    for prompt, answer in zip(shuffled, answers, strict=True):
        ids = tokenise(prompt, lm.tokenizer).ids + answer.token_ids
        with torch.no_grad():
            logprobs = lm.model(torch.tensor([ids[:-1]])).logits[0, -len(answer.token_ids) :].log_softmax(-1)
        scores.append(float(logprobs.gather(1, torch.tensor(answer.token_ids)[:, None]).mean()))
    got = lm.generate(PROMPT, method=method, max_new_tokens=6)
    assert got.text == elect(answers, scores.__getitem__).text
    assert got.report.method_ran == "permutation-vote"
    assert got.usage.prompt_tokens == sum(answer.usage.prompt_tokens for answer in answers)


def test_a_vote_does_not_depend_on_the_order_and_has_no_score(lm):
    texts = set()
    for order in itertools.permutations(range(4)):
        prompt = Prompt(PROMPT.prefix, [DOCUMENTS[index] for index in order], PROMPT.suffix)
        texts.add(lm.generate(prompt, method=PermutationVote(samples=3), max_new_tokens=4).text)
    assert len(texts) == 1
    with pytest.raises(MethodError, match="no score"):
        lm.score(PROMPT, "x", method="permutation-vote")


def test_selective_rotor_takes_the_more_confident_of_the_two(lm):
    ran = set()
    for count in (2, 3, 4):
        for last in ("Answer:", "Reply:", "It is"):
            prompt = Prompt("Context:\n", DOCUMENTS[:count], f"Question: who?\n{last}")
            answers = {name: lm.generate(prompt, method=name, max_new_tokens=3) for name in ("none", "rotor")}
            tokens, first = tokenise(prompt, lm.tokenizer), {}
            for name in answers:
                with torch.no_grad(), debias(lm.model, name, tokens.spans):
                    first[name] = lm.model(torch.tensor([tokens.ids])).logits[0, -1].softmax(-1).max().item()
            chosen = lm.generate(prompt, method=RoToR(selective=True), max_new_tokens=3)
            expected = max(first, key=first.__getitem__)
            assert (chosen.report.method_ran, chosen.text) == (expected, answers[expected].text)
            assert ("selective" in chosen.report.reason) == (expected == "none")
            ran.add(expected)
    assert ran == {"none", "rotor"}


def test_selective_rotor_is_refused_around_a_bare_model(llama):
    with pytest.raises(MethodError, match="DebiasedLM"), debias(llama, RoToR(selective=True), [(3, 5), (5, 9)]):
        pass
    with pytest.raises(MethodError, match="DebiasedLM"), debias(llama, "permutation-vote", [(3, 5), (5, 9)]):
        pass
