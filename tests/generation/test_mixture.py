"""A mixture of documents: prompts with one document each, weighted by the probability of the prompt's end."""

import itertools

import pytest
import torch

from ragbias import DebiasedLM, DocumentCache, Prompt
from ragbias.methods import Mixture
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

    def ids(text):
        return lm.tokenizer(text, add_special_tokens=False)["input_ids"]

    suffix = ids(prompt.suffix)
    totals = []  # of the suffix without its first token, and of the suffix with each beginning of the answer
    for document in prompt.documents:
        tokens = torch.tensor([[1, *ids(prompt.prefix), *ids(document), *suffix, *answer]])
        logprobs = lm.model(tokens).logits[0, :-1].double().log_softmax(-1)
        chosen = logprobs.gather(1, tokens[0, 1:, None])[:, 0]
        end = len(chosen) - len(answer)
        totals.append(chosen[end - len(suffix) + 1 :].cumsum(0)[len(suffix) - 2 :])
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


def test_a_score_equals_the_probabilities_of_whole_sequences(lm):
    score = lm.score(PROMPT, " The owl sits.")
    expected = restated(lm, PROMPT, score.token_ids)
    assert len(score.token_ids) > 4
    assert torch.tensor(score.logprobs).double().sub(expected).abs().max() < 1e-4


@pytest.mark.parametrize("family", FAMILIES)
def test_every_order_is_bit_identical(byte_tokenizer, family):
    lm = DebiasedLM(random_model(family), byte_tokenizer, method="mixture", cache=DocumentCache())
    answers = []
    for documents in itertools.permutations([*DOCUMENTS, "A map of Old boats.\n"]):
        prompt = Prompt(PREFIX, documents, SUFFIX)
        answers.append(lm.generate(prompt, max_new_tokens=4, stop_token_ids=[], logprobs=True))
    assert {answer.report.method_ran for answer in answers} == {"mixture"}
    assert len({(*answer.token_ids, *answer.logprobs) for answer in answers}) == 1
    assert answers[0].usage.prompt_tokens_details.cached_tokens < answers[1].usage.prompt_tokens_details.cached_tokens


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
