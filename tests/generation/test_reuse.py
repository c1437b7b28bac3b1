"""Cached documents are bit-identical in every order and batch, and equal to computing in one pass."""

import random
import threading

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ragbias import DebiasedLM, DocumentCache, Prompt
from ragbias.cache.stores import SUFFIX, FolderStore, States, read_entry
from ragbias.errors import ArgumentError, CancelledError, DocumentCacheWarning, PromptTooLongError, WrongTypeError
from support.concurrency import side_by_side
from support.random_models import FAMILIES, random_model
from support.segments import TARGET, logits, tokens

REUSABLE = ("pcw", "structured-prompting", "ape")
CORPUS = [
    "The gate is red.\n\n",
    "The wall is blue, or so they say in the village.\n\n",
    "A mill.\n\n",
    "Nobody has seen the owl since spring.\n\n",
    "The bridge was built in 1907.\n\n",
]
PREFIX, QUESTION = "Context:\n\n", "Question: what colour is the gate?\nAnswer:"


def in_one_pass(model, prompt, method):
    from ragbias import debias

    ids = torch.tensor([[*prompt.ids, *TARGET[:-1]]])
    with torch.no_grad(), debias(model, method, prompt.spans):
        return model(ids).logits[0, len(prompt.ids) - 1 :]


@pytest.mark.parametrize("family", FAMILIES)
def test_documents_computed_apart_are_as_in_one_pass(family):
    model, prompt = random_model(family), tokens()
    for method in REUSABLE:
        expected = in_one_pass(model, prompt, method)
        torch.testing.assert_close(logits(model, prompt, method), expected, atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("method", REUSABLE)
def test_every_kind_of_cache_is_bit_identical_to_none(method, dtype, tmp_path):
    model, cache = random_model("llama").to(dtype), DocumentCache(folder=tmp_path)
    prompt = tokens()
    expected = logits(model, prompt, method)
    for order in [(0, 1, 2, 3), (3, 2, 1, 0), (2, 0, 3, 1)]:
        arranged = prompt.reordered(order)
        assert torch.equal(logits(model, arranged, method), expected)
        assert torch.equal(logits(model, arranged, method, cache), expected)
        assert torch.equal(logits(model, arranged, method, DocumentCache(memory=None, folder=tmp_path)), expected)
    assert (cache.stats().misses, cache.stats().memory_hits) == (5, 10)


@pytest.mark.parametrize("family", FAMILIES)
def test_entries_of_every_family_have_the_shapes_of_its_model(family, tmp_path, recwarn):
    model, prompt, cache = random_model(family), tokens(), DocumentCache(memory=None, folder=tmp_path)
    assert torch.equal(logits(model, prompt, "pcw", cache), logits(model, prompt, "pcw", cache))
    assert cache.stats().disk_hits == 5 and not recwarn.list


def test_an_entry_of_another_dtype_is_computed_anew(tmp_path):
    model, prompt, folder = random_model("llama"), tokens(), FolderStore(tmp_path, 10**9)
    expected = logits(model, prompt, "pcw", DocumentCache(memory=None, folder=tmp_path))
    for path, _, _ in list(folder.files()):
        states = read_entry(path)
        halves = States(*(tuple(map(Tensor.half, part)) for part in (states.keys, states.values)))
        path.unlink()
        folder.put(path.name.removesuffix(SUFFIX), halves)  # with the right checksum
    with pytest.warns(
        DocumentCacheWarning, match="another shape or dtype .*; the file was renamed, and its entry is computed again"
    ):
        assert torch.equal(logits(model, prompt, "pcw", DocumentCache(memory=None, folder=tmp_path)), expected)


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_entries_are_reused_under_autocast(family, tmp_path, recwarn):
    model, prompt, cache = random_model(family), tokens(), DocumentCache(memory=None, folder=tmp_path)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(logits(model, prompt, "pcw", cache), logits(model, prompt, "pcw", cache))
    assert cache.stats().disk_hits == 5 and not recwarn.list


MODEL = random_model("llama")
SHARED_CACHE = DocumentCache()


@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(0, 11), min_size=2, max_size=6, unique=True), st.sampled_from(REUSABLE), st.integers(1, 5))
def test_any_subset_in_any_order_is_bit_identical_to_no_cache(chosen, method, suffix):
    corpus = tokens(lengths=range(2, 14), suffix=suffix).reordered(chosen)
    assert torch.equal(logits(MODEL, corpus, method, SHARED_CACHE), logits(MODEL, corpus, method))


@pytest.fixture(scope="module")
def lms(byte_tokenizer):
    model = random_model("llama")
    return DebiasedLM(model, byte_tokenizer), DebiasedLM(model, byte_tokenizer, cache=DocumentCache())


def prompts():
    """Prompts with other documents, prefixes and questions."""
    orders = ([0, 1, 2], [2, 0], [4, 3, 1, 0], [1, 2, 4])
    texts = [[CORPUS[index] for index in order] for order in orders]
    ends = (QUESTION, "Why?", f"{QUESTION} And", "Who says so?")
    return [
        Prompt(PREFIX if at != 3 else "Read:\n", text, end)
        for at, (text, end) in enumerate(zip(texts, ends, strict=True))
    ]


@pytest.mark.parametrize("method", [*REUSABLE, "pced", "mixture"])
def test_answers_are_the_same_alone_batched_and_streamed(lms, method):
    without, cached = lms
    arguments = {"method": method, "max_new_tokens": 4, "logprobs": True}
    for prompt in prompts():
        expected, found, again = (lm.generate(prompt, **arguments) for lm in (without, cached, cached))
        assert expected.token_ids == found.token_ids == again.token_ids
        assert expected.logprobs == found.logprobs == again.logprobs
        streamed = cached.stream(prompt, method=method, max_new_tokens=4)
        assert "".join(streamed) == expected.text
    together = [lm.batch(prompts(), batch_size=4, **arguments) for lm in (without, cached)]
    for expected, found in zip(*together, strict=True):
        assert expected.token_ids == found.token_ids and expected.logprobs == found.logprobs


def test_a_batch_answers_as_each_prompt_alone(lms):
    for lm in lms:
        alone = [lm.generate(prompt, method="ape", max_new_tokens=4).token_ids for prompt in prompts()]
        assert [each.token_ids for each in lm.batch(prompts(), method="ape", max_new_tokens=4)] == alone


def test_report_and_usage_count_cached_tokens(byte_tokenizer):
    lm = DebiasedLM(random_model("llama"), byte_tokenizer, method="ape", cache=DocumentCache())
    first, second = (lm.generate(Prompt(PREFIX, CORPUS[:3], QUESTION), max_new_tokens=2) for _ in range(2))
    cached = second.usage.prompt_tokens - len(QUESTION)
    assert first.report.cached_tokens == 0 and second.report.cached_tokens == cached
    assert second.usage.cached_tokens == cached
    other = lm.generate(Prompt(PREFIX, [CORPUS[4], CORPUS[1]], QUESTION), max_new_tokens=2)
    assert other.report.cached_tokens == len(PREFIX) + 1 + len(CORPUS[1])  # and BOS


def test_warming_computes_each_document_once_and_resumes(byte_tokenizer, tmp_path):
    def lm():
        return DebiasedLM(random_model("llama"), byte_tokenizer, "pcw", cache=DocumentCache(folder=tmp_path))

    done = []
    assert lm().warm(PREFIX, CORPUS[:2], progress=done.append) == 2 and done == [1, 2]
    again = lm()
    assert again.warm(PREFIX, CORPUS) == 3
    answer = again.generate(Prompt(PREFIX, CORPUS[::-1], QUESTION), max_new_tokens=2)
    assert answer.report.cached_tokens == answer.usage.prompt_tokens - len(QUESTION)


def test_no_text_reaches_the_folder(byte_tokenizer, tmp_path):
    lm = DebiasedLM(random_model("llama"), byte_tokenizer, "pcw", cache=DocumentCache(folder=tmp_path))
    lm.warm(PREFIX, CORPUS)
    written = b"".join(path.read_bytes() + path.name.encode() for path in tmp_path.iterdir())
    assert written and not any(text.strip().encode() in written for text in CORPUS)


def test_a_changed_weight_never_meets_an_old_entry():
    model, prompt, cache = random_model("llama"), tokens(), DocumentCache()
    logits(model, prompt, "pcw", cache)
    with torch.no_grad():
        model.model.layers[1].mlp.down_proj.weight[3, 5] += 0.5
    with pytest.warns(DocumentCacheWarning, match="several models share"):
        changed = logits(model, prompt, "pcw", cache)
    assert torch.equal(changed, logits(model, prompt, "pcw")) and cache.stats().misses == 10


def test_a_folder_of_another_model_warns_and_the_request_runs(tmp_path):
    prompt = tokens()
    logits(random_model("llama"), prompt, "pcw", DocumentCache(folder=tmp_path))
    other = random_model("llama", seed=1)
    with pytest.warns(DocumentCacheWarning, match="contains documents of other models"):
        found = logits(other, prompt, "pcw", DocumentCache(folder=tmp_path))
    assert torch.equal(found, logits(other, prompt, "pcw"))


def test_a_method_that_caches_nothing_warns_once_and_runs(byte_tokenizer):
    model = random_model("llama")
    lm, plain = DebiasedLM(model, byte_tokenizer, cache=DocumentCache()), DebiasedLM(model, byte_tokenizer)
    prompt = Prompt(PREFIX, CORPUS, QUESTION)
    for method in ("pine", "permutation-vote", "long-context-reorder"):
        with pytest.warns(
            DocumentCacheWarning, match=rf"{method} runs without its .* ape, mixture, pced, pcw"
        ) as caught:
            answers = [lm.generate(prompt, method=method, max_new_tokens=4) for _ in range(2)]
        assert len(caught) == 1
        assert {each.text for each in answers} == {plain.generate(prompt, method=method, max_new_tokens=4).text}


def test_a_plain_default_warns_of_its_cache_a_plain_call_not(byte_tokenizer, recwarn):
    model, prompt = random_model("llama"), Prompt(PREFIX, CORPUS, QUESTION)
    DebiasedLM(model, byte_tokenizer, "ape", cache=DocumentCache()).generate(prompt, method="none", max_new_tokens=1)
    assert not [each for each in recwarn if each.category is DocumentCacheWarning]
    with pytest.warns(DocumentCacheWarning, match="none runs without its document cache"):
        DebiasedLM(model, byte_tokenizer, "none", cache=DocumentCache()).generate(prompt, max_new_tokens=1)


def test_dynamic_frequencies_beyond_the_window_take_one_pass():
    rope = dict(rope_type="dynamic", rope_theta=10000.0, factor=2.0)
    model = random_model("llama", rope_parameters=rope, max_position_embeddings=24)
    prompt, cache = tokens(), DocumentCache()
    with pytest.warns(DocumentCacheWarning, match="longer than the model's rotary frequencies allow"):
        found = logits(model, prompt, "pcw", cache)
    assert cache.stats().misses == 0
    assert torch.equal(found, logits(model, prompt, "pcw"))


def test_threads_with_one_small_cache_get_what_each_gets_alone(byte_tokenizer):
    model = random_model("llama")
    plain = DebiasedLM(model, byte_tokenizer)
    lm = DebiasedLM(model, byte_tokenizer, cache=DocumentCache(memory="60kB"))  # which contains some of the documents
    expected = [plain.generate(prompt, method="ape", max_new_tokens=4).logprobs for prompt in prompts()]
    found, failed = {}, []

    def ask(number):
        try:
            for at in random.Random(number).sample(range(4), 4):
                found[number, at] = lm.generate(prompts()[at], method="ape", max_new_tokens=4).logprobs
        except Exception as error:
            failed.append(error)

    side_by_side([threading.Thread(target=ask, args=(number,)) for number in range(6)])
    assert not failed and all(value == expected[at] for (_, at), value in found.items())


def test_a_cancelled_request_stops_between_documents(byte_tokenizer):
    lm, cancelled = DebiasedLM(random_model("llama"), byte_tokenizer, "pcw"), threading.Event()
    cancelled.set()
    with pytest.raises(CancelledError, match="cancelled before its answer began"):
        lm.generate(Prompt(PREFIX, CORPUS, QUESTION), max_new_tokens=4, cancelled=cancelled)


def test_wrong_caches_are_named(byte_tokenizer):
    model = random_model("llama")
    with pytest.raises(WrongTypeError, match="cache='4GB'; expected a ragbias.DocumentCache"):
        DebiasedLM(model, byte_tokenizer, cache="4GB")
    with pytest.raises(ArgumentError, match="no cache to warm"):
        DebiasedLM(model, byte_tokenizer).warm(PREFIX, CORPUS)
    with pytest.raises(PromptTooLongError, match="retrieve fewer or shorter documents"):
        DebiasedLM(model, byte_tokenizer, "pcw", cache=DocumentCache()).warm(PREFIX, ["long " * 10_000])
    with pytest.warns(DocumentCacheWarning, match="pine runs without"):
        DebiasedLM(model, byte_tokenizer, "pine", cache=DocumentCache()).warm(PREFIX, CORPUS[:1])
