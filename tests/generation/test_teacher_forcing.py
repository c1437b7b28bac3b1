"""Several continuations of one prompt score as they do alone, or by the method's formula."""

import copy

import pytest
import torch
from tokenizers import pre_tokenizers

from ragbias import DebiasedLM, Prompt
from ragbias.errors import ArgumentError
from ragbias.generation.scoring import continuation_ids, logprobs_of, score_continuations
from ragbias.methods import NoMethod, ParallelExperts
from support.random_models import random_model

PROMPT = Prompt("Read:\n", ["A tin owl sits.\n", "Two brass whales, far away.\n", "Old boats.\n"], "Who sits?")
CONTINUATIONS = ["owl", "x", "none", "owl"]
METHODS = [
    "none", "segmented", "pine", "rotor", "rotor(selective=True)", "pcw", "ape", "nia", "structured-prompting", "siw",
    "channel-scaling(channel=1,factor=0,layers=(0,2))", "ms-poe", "self-extend(window=8,group=2)", "attention-sorting",
    "position-interpolation", "long-context-reorder", "canonical-order", "icr", "siw+self-extend(window=8,group=2)",
]  # fmt: skip


@pytest.fixture(scope="module", params=["llama", "gemma3_text"])
def model(request, byte_tokenizer):
    return DebiasedLM(random_model(request.param), byte_tokenizer)


def targets_of(lm, continuations=CONTINUATIONS):
    return [continuation_ids(lm.tokenizer, PROMPT.suffix, each) for each in continuations]


@pytest.mark.parametrize("method", METHODS)
def test_continuations_after_one_pass_are_as_probable_as_alone(model, method):
    request = model.prepare(PROMPT, method=method)
    found = score_continuations(model.loaded, request, targets_of(model))
    alone = [model.score(PROMPT, each, method=method).total for each in CONTINUATIONS]
    assert found.logprobs == pytest.approx(alone, abs=2e-3) and found.logprobs[0] == found.logprobs[3]
    assert found.next_token.exp().sum().item() == pytest.approx(1, abs=1e-5)
    (single,) = targets_of(model, ["x"])
    assert found.next_token[single[0]].item() == pytest.approx(alone[1], abs=2e-3)


def test_a_vote_has_the_mean_of_its_orders_probabilities(model):
    request = model.prepare(PROMPT, method="permutation-vote(samples=3)")
    targets = targets_of(model)
    found = score_continuations(model.loaded, request, targets)
    for target, logprob in zip(targets, found.logprobs, strict=True):
        each = [sum(logprobs_of(model.loaded, candidate, target)) for candidate in request.candidates()]
        assert logprob == pytest.approx(torch.tensor(each).double().exp().mean().log().item(), abs=2e-3)


@pytest.mark.parametrize("method", [ParallelExperts(), ParallelExperts(contrast=0.5)], ids=["divergence", "contrast"])
def test_parallel_experts_take_the_softmax_of_fused_scores(model, method):
    """Compare with scores computed token by token, with a full pass of each prompt."""
    request = model.prepare(PROMPT, method=method)
    targets = targets_of(model, ["owl", "no"])
    found = score_continuations(model.loaded, request, targets)
    prompts = [each.tokens.ids for each in request.candidates()]
    for target, logprob in zip(targets, found.logprobs, strict=True):
        total, memory = 0.0, {}
        for step, token in enumerate(target):
            with torch.no_grad():
                ids = [torch.tensor([prompt + target[:step]]) for prompt in prompts]
                logits = torch.stack([model.model(each).logits[0, -1].float() for each in ids])
            total += (
                method.combine_logits(logits, memory, target[step - 1] if step else None).log_softmax(-1)[token].item()
            )
        assert logprob == pytest.approx(total, abs=2e-3)


def test_a_plain_run_leaves_methods_out(model):
    request = model.prepare(PROMPT, method="none")
    assert isinstance(request.method, NoMethod)
    ids = torch.tensor([request.tokens.ids])
    with torch.no_grad():
        expected = model.model(ids).logits[0, -1].float().log_softmax(-1)
    torch.testing.assert_close(score_continuations(model.loaded, request, targets_of(model)).next_token, expected)


def test_a_continuation_is_tokenised_as_it_follows_the_prompt(byte_tokenizer):
    expected = byte_tokenizer("owl", add_special_tokens=False)["input_ids"]
    spaced, merged = copy.deepcopy(byte_tokenizer), copy.deepcopy(byte_tokenizer)
    spaced.backend_tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    merged.add_tokens(["?o"])  # crosses the border
    assert continuation_ids(spaced, "Who?", "owl") == continuation_ids(merged, "Who?", "owl") == expected
    with pytest.raises(ArgumentError, match="no tokens to score"):
        continuation_ids(byte_tokenizer, "Who?", "")
