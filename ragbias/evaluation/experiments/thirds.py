"""The last token's attention to the beginning and to the end of the documents, by the factor of a scaled channel.

Source: Yu et al., Mitigate Position Bias in Large Language Models via Scaling a Single Dimension, arXiv 2406.02536.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from ragbias.evaluation.experiments.questions import Track
from ragbias.evaluation.inspect.layer_attention import attention_by_head
from ragbias.evaluation.prompts.samples import Sample
from ragbias.lm import DebiasedLM
from ragbias.methods import ChannelScaling
from ragbias.methods.profiles import Profile
from ragbias.prompt import TokenisedPrompt

FACTORS = (2.0, 1.5, 1.0, 0.5, 0.0, -0.5, -1.0)


def attention_by_factor(
    lm: DebiasedLM, profile: Profile, samples: Sequence[Sample], track: Track
) -> dict[float, tuple[float, float]]:
    """The last token's attention to the first and to the last third of the documents' tokens, for each factor.

    Averaged over the profile's layers, heads and samples.
    """
    first, last = profile.layers
    masses: dict[float, list[Tensor]] = {factor: [] for factor in FACTORS}
    for sample in track(samples):
        prompt = thirds(sample.prompt)
        for factor in FACTORS:
            found = attention_by_head(lm, prompt, ChannelScaling(profile.channel, factor, layers=profile.layers))
            masses[factor].append(found[first : last + 1, :, [0, 2]].mean((0, 1)))
    means = {factor: torch.stack(found).mean(0).tolist() for factor, found in masses.items()}
    return {factor: (beginning, end) for factor, (beginning, end) in means.items()}


def thirds(prompt: TokenisedPrompt) -> TokenisedPrompt:
    """The prompt with its documents' tokens cut into three equal parts, the first ones longer by one where need be."""
    parts = torch.tensor([token for document in prompt.documents for token in document]).tensor_split(3)
    return replace(prompt, documents=[part.tolist() for part in parts])
