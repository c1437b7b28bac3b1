"""Parallel experts: prompts with one document each, decoded together."""

import itertools

import pytest
import torch

from ragbias import DebiasedLM, Prompt
from ragbias.errors import MethodError, PromptTooLongError
from ragbias.methods import ParallelExperts
from support.random_models import FAMILIES, random_model

DOCUMENTS = ["A tin owl sits.\n", "Two brass whales, far away.\n", "Old boats.\n"]
PREFIX, SUFFIX = "Read:\n", "Who sits?"
PROMPT = Prompt(PREFIX, DOCUMENTS, SUFFIX)
METHODS = {
    "paper": ParallelExperts(),
    "released": ParallelExperts(variant="released"),
    "contrast": ParallelExperts(contrast=0.5),
    "prior": ParallelExperts(prior=[0.2, 1.0, 0.5], gamma=2.5),
}


@pytest.fixture(scope="module")
def lm(byte_tokenizer):
    return DebiasedLM(random_model("llama"), byte_tokenizer, method="pced")


@torch.no_grad()
def restated(lm, documents, steps, method):
    """Compute the expected tokens one by one, with a full pass of each prompt."""

    def prompt(text):
        return [1, *lm.tokenizer(text, add_special_tokens=False)["input_ids"]]

    prompts = [prompt(PREFIX + document + SUFFIX) for document in ["", *documents]]
    answer, b = [], None
    for _ in range(steps):
        s = torch.stack([lm.model(torch.tensor([ids + answer])).logits[0, -1] for ids in prompts]).double()
        if b is None:
            p = s.softmax(-1)
            m = (p[:1] + p[1:]) / 2
            terms = (p[:1] * (p[:1] / m).log() + p[1:] * (p[1:] / m).log()) / 2
            b = (terms if method.variant == "released" else terms.sum(-1, keepdim=True)).clamp(0, 1)
            b = b if method.contrast is None else method.contrast
        best, tokens = ((1 + b) * s[1:] - b * s[:1]).max(-1)
        prior = torch.tensor(method.prior or [1.0] * len(documents)).double()
        answer.append(int(tokens[(best + method.gamma * prior.log()).argmax()]))
    return answer


@pytest.mark.parametrize("name", METHODS)
def test_it_equals_the_formula_run_prompt_by_prompt(lm, name):
    method = METHODS[name]
    found = lm.generate(PROMPT, method=method, max_new_tokens=12, stop_token_ids=[])
    assert found.token_ids == restated(lm, DOCUMENTS, 12, method)[: len(found.token_ids)]
    assert len(found.token_ids) > 5
    assert found.report.method_ran == "pced"


def test_the_variants_and_the_plain_model_answer_differently(lm):
    answers = {
        name: tuple(lm.generate(PROMPT, method=method, max_new_tokens=12).token_ids) for name, method in METHODS.items()
    }
    answers["none"] = tuple(lm.generate(PROMPT, method="none", max_new_tokens=12).token_ids)
    assert len(set(answers.values())) >= 4


def test_equal_experts_are_the_single_expert(lm):
    for document in DOCUMENTS:
        alone = lm.generate(Prompt(PREFIX, [document], SUFFIX), max_new_tokens=10)
        together = lm.generate(Prompt(PREFIX, [document] * 3, SUFFIX), max_new_tokens=10)
        assert alone.report.method_ran == together.report.method_ran == "pced"
        assert (
            alone.token_ids
            == together.token_ids
            == restated(lm, [document], 10, ParallelExperts())[: len(alone.token_ids)]
        )


def test_every_order_of_the_documents_gives_the_same_bits(lm):
    found = [
        lm.generate(Prompt(PREFIX, order, SUFFIX), max_new_tokens=8, logprobs=True)
        for order in itertools.permutations(DOCUMENTS)
    ]
    assert all((each.token_ids, each.logprobs) == (found[0].token_ids, found[0].logprobs) for each in found)


@pytest.mark.parametrize("family", FAMILIES)
def test_order_and_equal_experts_do_not_matter_on_any_family(byte_tokenizer, family):
    lm = DebiasedLM(random_model(family), byte_tokenizer, method="pced")
    alone, together = (
        lm.generate(Prompt(PREFIX, DOCUMENTS[:1] * count, SUFFIX), max_new_tokens=5).token_ids for count in (1, 3)
    )
    assert alone == together
    first, second = (
        lm.generate(Prompt(PREFIX, order, SUFFIX), max_new_tokens=5, logprobs=True)
        for order in (DOCUMENTS, DOCUMENTS[::-1])
    )
    assert (first.token_ids, first.logprobs) == (second.token_ids, second.logprobs)


@pytest.mark.parametrize("method", ["pced", "mixture"])
def test_documents_that_do_not_fit_together_run_one_by_one(byte_tokenizer, method):
    lm = DebiasedLM(random_model("llama", max_position_embeddings=64), byte_tokenizer, method=method)
    assert lm.generate(PROMPT, max_new_tokens=3).report.method_ran == method
    assert len(lm.score(PROMPT, "owl").logprobs) == 3
    with pytest.raises(PromptTooLongError, match="44 tokens, too many for an answer of 30 in the model's window of 64"):
        lm.score(PROMPT, "o" * 30)
    with pytest.raises(PromptTooLongError, match="the prompt has 71 tokens, .* window of 64"):
        lm.generate(PROMPT, method="none", max_new_tokens=3)
    with pytest.raises(PromptTooLongError, match="the prompt has 86 tokens, .* window of 64"):
        lm.generate(Prompt(PREFIX, [DOCUMENTS[0], 70 * "z"], SUFFIX), max_new_tokens=3)


def test_sampling_goes_on_with_one_token_for_all_prompts(lm):
    settings = dict(max_new_tokens=8, temperature=1.5)
    seeded = [lm.generate(PROMPT, seed=4, **settings).token_ids for _ in range(2)]
    assert seeded[0] == seeded[1]
    unseeded = lm.generate(PROMPT, logprobs=True, **settings)
    assert len(unseeded.logprobs) == len(unseeded.token_ids)


def test_it_streams_and_runs_beside_other_requests(lm):
    alone = lm.generate(PROMPT, max_new_tokens=6)
    stream = lm.stream(PROMPT, max_new_tokens=6)
    assert "".join(stream) == alone.text
    plain, pced = lm.prepare(PROMPT, method="none"), lm.prepare(PROMPT)
    answers = lm.batch([plain, pced, plain], max_new_tokens=6, batch_size=1)
    assert [each.report.method_ran for each in answers] == ["none", "pced", "none"]
    assert answers[1].token_ids == alone.token_ids
    assert alone.usage.completion_tokens <= 6
    assert alone.usage.prompt_tokens == sum(len(each.tokens.ids) for each in pced.candidates())


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: ParallelExperts(contrast=-1), "contrast=-1; expected a number from 0 to 100"),
        (lambda: ParallelExperts(gamma="1"), "gamma='1'"),
        (lambda: ParallelExperts(variant="draft"), "expected one of 'paper', 'released'"),
        (lambda: ParallelExperts(prior=[1.0, 0.0]), "prior of document 1=0.0"),
        (lambda: ParallelExperts(prior=0.5), "prior=0.5; expected a list"),
    ],
)
def test_parameters_out_of_range_are_refused(make, reason):
    with pytest.raises(MethodError, match=reason):
        make()


def test_a_prior_for_other_documents_is_refused(lm):
    with pytest.raises(MethodError, match="2 numbers for 3 documents"):
        lm.generate(PROMPT, method=ParallelExperts(prior=[1.0, 2.0]), max_new_tokens=2)


@pytest.mark.parametrize("variant", ["paper", "released"])
def test_a_forbidden_token_is_never_chosen(lm, variant):
    settings = {"method": f"pced(variant={variant})", "max_new_tokens": 4, "stop_token_ids": [], "logprobs": True}
    free = lm.generate(PROMPT, **settings).token_ids
    found = lm.generate(PROMPT, suppress_tokens=[free[0]], **settings)
    assert free[0] not in found.token_ids and all(logprob <= 0 for logprob in found.logprobs)
    assert set(lm.generate(PROMPT, prefix_allowed_tokens_fn=lambda *_: [50, 51], **settings).token_ids) <= {50, 51}
    assert len(lm.generate(PROMPT, **settings | {"stop_token_ids": free[:1]}, min_new_tokens=3).token_ids) >= 3
