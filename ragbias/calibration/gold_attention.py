"""Attention of a prompt's last token to its documents, layer by layer, and the layers that look at the gold one."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

import ragbias
from ragbias.evaluation.inspect.layer_attention import retrieving
from ragbias.evaluation.prompts.samples import Sample
from ragbias.generation.request import padded
from ragbias.methods import AttentionMethod
from ragbias.methods.last_token import DocumentAttention
from ragbias.prompt import TokenisedPrompt


@torch.no_grad()
def attention_to(
    model: PreTrainedModel,
    prompts: Sequence[TokenisedPrompt],
    batch_size: int,
    progress: Callable[[int], None] = lambda done: None,
) -> list[Tensor]:
    """Attention of each prompt's last token to its documents, averaged over heads: float32 ``[n_layers, n]`` each."""
    found: list[Tensor] = []
    for begin in range(0, len(prompts), batch_size):
        ids, mask, spans = padded(prompts[begin : begin + batch_size], 0, model.device)
        observer = DocumentAttention()
        with ragbias.debias(model, observer, spans):
            model(ids, attention_mask=mask, use_cache=False, logits_to_keep=1)
        found += observer.found
        progress(len(spans))
    return found


def gold_attention(
    model: PreTrainedModel,
    samples: Sequence[Sample],
    batch_size: int,
    progress: Callable[[int], None] = lambda done: None,
) -> list[tuple[float, float]]:
    """Per layer, the last token's attention to the gold document and to the average other one, over the samples."""
    masses = attention_to(model, [sample.prompt for sample in samples], batch_size, progress)
    gold = torch.stack([mass[:, sample.gold] for mass, sample in zip(masses, samples, strict=True)])
    whole = torch.stack([mass.sum(1) for mass in masses])
    others = torch.tensor([len(sample.prompt.documents) - 1 for sample in samples])
    return list(zip(gold.mean(0).tolist(), ((whole - gold) / others[:, None]).mean(0).tolist(), strict=True))


def layer_ranges(attention: Sequence[Sequence[float]]) -> dict[str, tuple[int, int]]:
    """Ranges of layers to compare, by where they come from.

    ``around the best``: the layer that retrieves best and its unbroken neighbours that retrieve as well; ``all that
    retrieve``: from the first to the last of them.

    Args:
        attention: per layer, what ``gold_attention`` gives.
    """
    excess = [gold - other for gold, other in attention]
    best = max(range(len(excess)), key=excess.__getitem__)
    found = retrieving(attention)
    first = last = best
    while first - 1 in found:
        first -= 1
    while last + 1 in found:
        last += 1
    return {
        "the paper's": papers_layers(len(excess)),
        "around the best": (first, last),
        "all that retrieve": (min(found), max(found)),
    }


def papers_layers(n_layers: int) -> tuple[int, int]:
    """First and last layer that candidates are scaled in: 10 to 25 of 32 in the paper, in proportion elsewhere."""
    return round(10 * n_layers / 32), min(round(25 * n_layers / 32), n_layers - 1)


def ends(method: AttentionMethod, n_layers: int) -> tuple[int, int]:
    """First and last layer that a method acts in."""
    layers = method.layer_indices(n_layers)
    return layers[0], layers[-1]
