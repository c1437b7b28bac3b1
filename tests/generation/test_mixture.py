"""A mixture of documents: prompts with one document each, weighted by the probability of the prompt's end."""

import copy
import itertools
import random
import threading

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import processors

from ragbias import DebiasedLM, DocumentCache, Prompt
from ragbias.errors import ArgumentError, CancelledError
from ragbias.methods import Mixture
from support.concurrency import side_by_side
from support.random_models import FAMILIES, random_model

DOCUMENTS = ["A tin owl sits.\n", "Two brass whales, far away.\n", "Old boats.\n"]
PREFIX, SUFFIX = "Read:\n", "Who sits on the wall?"
PROMPT = Prompt(PREFIX, DOCUMENTS, SUFFIX)
TOKENS = 12


@pytest.fixture(scope="module")
def lm(byte_tokenizer):
    return DebiasedLM(random_model("llama"), byte_tokenizer, method="mixture")


@torch.no_grad()
def restated(lm, prompt, answer):
    """Compute the log-probability of each of the answer's tokens from those of whole sequences, one per document."""

    def ids(text, begin=False):
        return lm.tokenizer(text, add_special_tokens=begin)["input_ids"]

    suffix = ids(prompt.suffix)
    totals = []  # of the suffix without its first token, and of the suffix with each beginning of the answer
    for document in prompt.documents:
        tokens = torch.tensor([[*ids(prompt.prefix, True), *ids(document), *suffix, *answer]])
        logprobs = lm.model(tokens).logits[0, :-1].double().log_softmax(-1)
        chosen = logprobs.gather(1, tokens[0, 1:, None])[:, 0]
        end = len(chosen) - len(answer)
        likelihood = chosen[end - len(suffix) + 1 : end].sum()[None]
        totals.append(torch.cat([likelihood, chosen[end:]]).cumsum(0))
    joint = torch.stack(totals).logsumexp(0)
    return joint[1:] - joint[:-1]


def test_probabilities_equal_those_of_whole_sequences(lm):
    found = lm.generate(PROMPT, max_new_tokens=TOKENS, stop_token_ids=[], logprobs=True)
    assert found.report.method_ran == "mixture"
    expected = restated(lm, PROMPT, found.token_ids)
    assert torch.tensor(found.logprobs).double().sub(expected).abs().max() < 1e-4
    wrong = restated(lm, Prompt(PREFIX, DOCUMENTS[:2], SUFFIX), found.token_ids)
    assert wrong.sub(expected).abs().max() > 1e-3


def test_the_greedy_token_is_the_most_probable_one(lm):
    first = lm.generate(PROMPT, max_new_tokens=1, stop_token_ids=[], logprobs=True)
    scores = [float(restated(lm, PROMPT, [token])[0]) for token in range(lm.model.config.vocab_size)]
    assert scores[first.token_ids[0]] == pytest.approx(max(scores), abs=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_score_equals_the_probabilities_of_whole_sequences(byte_tokenizer, family):
    lm = DebiasedLM(random_model(family), byte_tokenizer, method="mixture")
    score = lm.score(PROMPT, " The owl sits.")
    expected = restated(lm, PROMPT, score.token_ids)
    assert len(score.token_ids) > 4
    assert torch.tensor(score.logprobs).double().sub(expected).abs().max() < 1e-3


@pytest.mark.parametrize(("prefix", "suffix"), [(PREFIX, "?"), ("", SUFFIX), ("", "?")])
@pytest.mark.parametrize("bos", [True, False], ids=["bos", "no bos"])
def test_prefixes_may_be_empty_and_suffixes_one_token(lm, prefix, suffix, bos):
    tokenizer = copy.deepcopy(lm.tokenizer)
    if not bos:
        tokenizer.backend_tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    model = DebiasedLM(lm.model, tokenizer, method="mixture")
    prompt = Prompt(prefix, DOCUMENTS, suffix)
    found = model.generate(prompt, max_new_tokens=4, stop_token_ids=[], logprobs=True)
    assert found.report.method_ran == "mixture"
    assert found.usage.prompt_tokens == 3 * (bos + len(prefix) + len(suffix)) + len("".join(DOCUMENTS))
    expected = restated(model, prompt, found.token_ids)
    assert torch.tensor(found.logprobs).double().sub(expected).abs().max() < 1e-4


@pytest.mark.parametrize("family", FAMILIES)
def test_every_order_is_bit_identical(byte_tokenizer, family):
    lm = DebiasedLM(random_model(family), byte_tokenizer, method="mixture", cache=DocumentCache())
    answers = []
    for documents in itertools.permutations([*DOCUMENTS, "A map of Old boats.\n"]):
        prompt = Prompt(PREFIX, documents, SUFFIX)
        answers.append(lm.generate(prompt, max_new_tokens=4, stop_token_ids=[], logprobs=True))
    assert {answer.report.method_ran for answer in answers} == {"mixture"}
    assert len({(*answer.token_ids, *answer.logprobs) for answer in answers}) == 1
    assert answers[0].usage.cached_tokens < answers[1].usage.cached_tokens


def test_cache_batch_and_stream_change_no_bit(lm):
    other = Prompt(PREFIX, ["Nine whales.\n", *DOCUMENTS], "Where?")
    settings = dict(max_new_tokens=TOKENS, stop_token_ids=[], logprobs=True)
    alone = lm.generate(PROMPT, **settings)
    batch = lm.batch([other, PROMPT], **settings)
    parts = list(lm.stream(PROMPT, **settings))
    assert batch[1].logprobs == alone.logprobs and batch[1].text == alone.text
    assert "".join(parts) == alone.text
    assert batch[0].logprobs != alone.logprobs


def test_one_document_is_the_plain_model(lm):
    prompt = Prompt(PREFIX, DOCUMENTS[:1], SUFFIX)
    found = lm.generate(prompt, max_new_tokens=TOKENS, stop_token_ids=[], logprobs=True)
    plain = lm.generate(prompt, method="segmented", max_new_tokens=TOKENS, stop_token_ids=[], logprobs=True)
    assert found.report.method_ran == "mixture"
    assert found.token_ids == plain.token_ids and found.logprobs == pytest.approx(plain.logprobs, abs=1e-4)


def test_equal_documents_weigh_as_one(lm):
    once = lm.generate(PROMPT, max_new_tokens=TOKENS, stop_token_ids=[], logprobs=True)
    twice = Prompt(PREFIX, DOCUMENTS * 2, SUFFIX)
    found = lm.generate(twice, method=Mixture(), max_new_tokens=TOKENS, stop_token_ids=[], logprobs=True)
    assert found.token_ids == once.token_ids and found.logprobs == pytest.approx(once.logprobs, abs=1e-4)


@settings(max_examples=5)
@given(st.lists(st.text("ab.", min_size=1, max_size=9), min_size=1, max_size=40), st.integers(0, 40), st.randoms())
def test_forty_documents_of_any_length_have_no_order(lm, texts, long, rng):
    documents = [f"{text}{'z' * 300 if index == long else ''}\n" for index, text in enumerate(texts)]
    cached = DebiasedLM(lm.model, lm.tokenizer, method="mixture", cache=DocumentCache())
    first, second = (
        cached.generate(Prompt(PREFIX, order, SUFFIX), max_new_tokens=2, stop_token_ids=[], logprobs=True)
        for order in (documents, rng.sample(documents, len(documents)))
    )
    assert first.report.method_ran == "mixture"
    assert (first.token_ids, first.logprobs) == (second.token_ids, second.logprobs)
    expected = restated(lm, Prompt(PREFIX, documents, SUFFIX), first.token_ids)
    assert torch.tensor(first.logprobs).double().sub(expected).abs().max() < 1e-3


def test_bfloat16_has_the_same_bits_in_every_order(byte_tokenizer, tmp_path):
    model = random_model("llama").to(torch.bfloat16)
    caches = [None, DocumentCache(folder=tmp_path), DocumentCache(memory=None, folder=tmp_path)]
    answers = [
        DebiasedLM(model, byte_tokenizer, method="mixture", cache=cache).generate(
            Prompt(PREFIX, order, SUFFIX), max_new_tokens=TOKENS, logprobs=True
        )
        for cache in caches
        for order in itertools.permutations(DOCUMENTS)
    ]
    assert len({(*answer.token_ids, *answer.logprobs) for answer in answers}) == 1
    lengths = [len(PREFIX) + 1 + len(document) for document in DOCUMENTS]
    assert [answer.report.cached_tokens for answer in answers[-6:]] == [sum(lengths)] * 6


def test_documents_of_other_methods_are_reused(lm):
    cached = DebiasedLM(lm.model, lm.tokenizer, method="pcw", cache=DocumentCache())
    assert cached.warm(PREFIX, DOCUMENTS) == 3
    found = cached.generate(PROMPT, method="mixture", max_new_tokens=TOKENS, logprobs=True)
    assert cached.cache.stats().misses == 4  # the prefix and three documents, while warming
    assert found.report.cached_tokens == found.usage.prompt_tokens - 3 * len(SUFFIX)
    assert found.logprobs == lm.generate(PROMPT, max_new_tokens=TOKENS, logprobs=True).logprobs


@pytest.mark.parametrize(
    "arguments",
    [
        dict(temperature=1.5, seed=4),
        dict(temperature=0.9, top_k=20, top_p=0.8, seed=5),
        dict(repetition_penalty=1.5),
        dict(suppress_tokens=list(range(3, 150))),
        dict(bad_words_ids=[[40], [41, 42]], min_new_tokens=6),
        dict(prefix_allowed_tokens_fn=lambda index, ids: [50, 51, 52 + len(ids) % 7]),
    ],
    ids=lambda arguments: next(iter(arguments)),
)
def test_arguments_of_generation_keep_the_order_out(lm, arguments):
    answers = [
        lm.generate(Prompt(PREFIX, order, SUFFIX), max_new_tokens=8, stop_token_ids=[], logprobs=True, **arguments)
        for order in itertools.permutations(DOCUMENTS)
    ]
    assert len({(*answer.token_ids, *answer.logprobs) for answer in answers}) == 1
    plain = lm.generate(PROMPT, max_new_tokens=8, stop_token_ids=[], logprobs=True)
    assert answers[0].logprobs != plain.logprobs
    if "prefix_allowed_tokens_fn" in arguments:
        assert set(answers[0].token_ids) <= set(range(50, 60))


def test_a_stop_string_ends_every_prompt(lm):
    text = lm.generate(PROMPT, max_new_tokens=TOKENS, stop_token_ids=[]).text
    stop = text[5:7]
    found = lm.generate(PROMPT, max_new_tokens=TOKENS, stop=[stop])
    assert found.text == text[: text.find(stop)] and found.finish_reason == "stop"
    assert found.text == "".join(lm.stream(PROMPT, max_new_tokens=TOKENS, stop=[stop]))


def test_sequences_that_only_some_prompts_forbid_are_refused(lm):
    for method in ("mixture", "pced"):
        with pytest.raises(ArgumentError, match=f"{method}: .*pass no_repeat_ngram_size=0, or use repetition_penalty"):
            lm.generate(PROMPT, method=method, no_repeat_ngram_size=2)


def test_rotary_frequencies_of_the_length_run_without_a_cache(byte_tokenizer):
    rope = dict(rope_type="dynamic", rope_theta=10000.0, factor=2.0)
    model = random_model("llama", rope_parameters=rope, max_position_embeddings=200)
    lm = DebiasedLM(model, byte_tokenizer, method="mixture", cache=DocumentCache())
    with pytest.warns(UserWarning, match="rotary frequencies"):
        found = lm.generate(PROMPT, max_new_tokens=TOKENS, stop_token_ids=[], logprobs=True)
    expected = restated(lm, PROMPT, found.token_ids)
    assert torch.tensor(found.logprobs).double().sub(expected).abs().max() < 1e-4
    assert lm.score(PROMPT, "owl").logprobs


def test_cancelling_stops_before_and_within_the_answer(lm):
    cancelled = threading.Event()
    stream = lm.stream(PROMPT, max_new_tokens=500, stop_token_ids=[], min_new_tokens=400)
    next(stream)
    stream.close()
    cancelled.set()
    with pytest.raises(CancelledError, match="cancelled before its answer began"):
        lm.generate(PROMPT, max_new_tokens=4, cancelled=cancelled)
    assert lm.generate(PROMPT, max_new_tokens=4).usage.completion_tokens <= 4


def test_threads_get_what_each_gets_alone(lm):
    orders = [random.Random(seed).sample(DOCUMENTS, 3) for seed in range(4)]
    expected = lm.generate(PROMPT, max_new_tokens=6, logprobs=True).logprobs
    found = []

    def ask(order):
        found.append(lm.generate(Prompt(PREFIX, order, SUFFIX), max_new_tokens=6, logprobs=True).logprobs)

    side_by_side([threading.Thread(target=ask, args=(order,)) for order in orders])
    assert found == [expected] * 4
