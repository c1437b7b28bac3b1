"""Votes over document orders, and the choice between two methods by confidence."""

import itertools
from collections import Counter

import pytest
import torch

from ragbias import Prompt, debias
from ragbias.errors import MethodError
from ragbias.generation import Generation, Report, Usage
from ragbias.generation.answering import elect
from ragbias.methods import NoMethod, PermutationVote, RoToR
from ragbias.prompt import tokenise
from support.prompts import ANIMALS, PROMPT


def name(method):
    return method if isinstance(method, str) else method.name


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


@pytest.mark.parametrize(
    ("documents", "samples", "sampled"),
    [(2, 1, [1]), (2, 2, [1, 1]), (2, 5, [2, 2]), (3, 5, [1] * 5), (3, 6, [1] * 6), (3, 20, [3] * 6), (9, 7, [1] * 7)],
)
def test_no_order_is_sampled_more_often_than_another(documents, samples, sampled):
    tokens = [[token] for token in range(documents)]
    orders = PermutationVote(samples, seed=1).candidate_orders(tokens)
    assert sorted(itertools.chain(*orders)) == sorted([*range(documents)] * len(orders))
    assert list(Counter(map(tuple, orders)).values()) == sampled
    moved = PermutationVote(samples, seed=1).candidate_orders(tokens[::-1])
    assert [[documents - 1 - index for index in order] for order in moved] == orders


def test_a_vote_is_the_vote_of_its_shuffles(lm):
    method = PermutationVote(samples=4, seed=3)
    tokens = [lm.tokenizer(text, add_special_tokens=False).input_ids for text in ANIMALS]
    orders = method.candidate_orders(tokens)
    assert all(sorted(order) == [0, 1, 2, 3] for order in orders) and len(set(map(tuple, orders))) > 1
    shuffled = [PROMPT.reordered(order) for order in orders]
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
        prompt = PROMPT.reordered(order)
        texts.add(lm.generate(prompt, method=PermutationVote(samples=3), max_new_tokens=4).text)
    assert len(texts) == 1
    with pytest.raises(MethodError, match="no score"):
        lm.score(PROMPT, "x", method="permutation-vote")


def test_selective_rotor_takes_the_more_confident_of_the_two(lm):
    ran = set()
    for count in (2, 3, 4):
        for last in ("Answer:", "Reply:", "It is"):
            prompt = Prompt("Context:\n", ANIMALS[:count], f"Question: who?\n{last}")
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


def test_selective_rotor_is_not_invariant_but_the_chosen_method_is(lm):
    method = RoToR(selective=True)
    ran = lm.prepare(Prompt("Say.\n", ["Owls hoot.\n", "Cats purr.\n"], "Who?"), method=method).method
    assert not method.invariant
    assert ran in (RoToR(), NoMethod())


def test_selective_rotor_is_refused_around_a_bare_model(llama):
    with pytest.raises(MethodError, match="DebiasedLM"), debias(llama, RoToR(selective=True), [(3, 5), (5, 9)]):
        pass
    with pytest.raises(MethodError, match="DebiasedLM"), debias(llama, "permutation-vote", [(3, 5), (5, 9)]):
        pass
