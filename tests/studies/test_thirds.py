"""Attention to the first and the last third of the documents with the channel scaled."""

import torch

import ragbias
from ragbias.methods import Profile
from ragbias.methods.attention_sorting import DocumentAttention
from ragbias.prompt import TokenisedPrompt
from studies.experiment import Questions
from studies.perturbation import FACTORS, attention_by_factor, split_thirds

PROFILE = Profile("small", 64, 4, 3, 0.0, (1, 2))


def test_attention_to_thirds_uses_scaled_queries_and_keys(plain_lm):
    samples = Questions("kv", limit=1, documents=4, depths=2).samples(plain_lm)
    given = attention_by_factor(plain_lm, PROFILE, samples, lambda each: each)
    masses = []
    for sample in samples:
        prompt, observer = split_thirds(sample.prompt), DocumentAttention()
        with torch.no_grad(), ragbias.debias(plain_lm.model, observer, prompt.spans):
            plain_lm.model(torch.tensor([prompt.ids]))
        masses.append(observer.weights[0][1:3].mean(0))
    assert given.shape == (1, 2, len(FACTORS), 2)
    expected = torch.stack(masses)[:, [0, 2]]
    torch.testing.assert_close(given[0, :, FACTORS.index(1.0)], expected, atol=1e-6, rtol=1e-4)
    assert (given[:, :, 0] - given[:, :, -1]).abs().max() > 1e-6


def test_thirds_cover_the_documents_and_are_equally_long():
    prompt = TokenisedPrompt([0] * 4, [[1, 2, 3, 4, 5], [6, 7, 8]], [9])
    assert split_thirds(prompt) == TokenisedPrompt([0] * 4, [[1, 2, 3], [4, 5, 6], [7, 8]], [9])
    assert split_thirds(prompt).spans == [(4, 7), (7, 10), (10, 12)]
