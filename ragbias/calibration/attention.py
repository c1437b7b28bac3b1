"""Where the last token of a prompt looks, layer by layer, and which layers look at the gold document."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import PreTrainedModel

import ragbias
from ragbias.binding.architectures import architecture_of, attention_sites, decoder_of
from ragbias.calibration.loss import padded
from ragbias.calibration.samples import Sample
from ragbias.errors import UnsupportedModelError
from ragbias.methods import ChannelScaling


@torch.no_grad()
def last_token_attention(
    model: PreTrainedModel, prompts: Sequence[Sequence[int]], scaling: ChannelScaling | None = None
) -> list[Tensor]:
    """Attention of each prompt's last token to all its tokens, averaged over heads.

    All but the last token run first; then it runs by itself on their cache, with the implementation that gives out
    weights. So the weights of one row are held and not of all. With ``scaling`` the whole prompt runs, since its
    last row must be the one that the method replaces, and that token is taken back. The cache then holds the scaled
    keys already, and the one token's query and key are scaled here, as the method does it.

    Returns:
        per prompt ``[n_layers, T]`` in float32; zero where a sliding layer does not see.

    Raises:
        UnsupportedModelError: with ``scaling``, a family with a fused projection.
    """
    ids, mask = padded(prompts, model.device)
    if scaling is None:
        cache = model(ids[:, :-1], attention_mask=mask[:, :-1], use_cache=True, logits_to_keep=1).past_key_values
    else:
        with ragbias.debias(model, scaling):
            cache = model(ids, attention_mask=mask, use_cache=True, logits_to_keep=1).past_key_values
        cache.crop(-1)
    with _giving_weights(model), _scaled_projections(model, scaling):
        output = model(
            ids[:, -1:],
            attention_mask=mask,
            past_key_values=cache,
            use_cache=True,
            output_attentions=True,
        )
    rows = [layer[:, :, 0].float().mean(1) for layer in output.attentions]
    weights = torch.stack([pad(row, (ids.shape[1] - row.shape[1], 0)) for row in rows])
    return [weights[:, row, -len(prompt) :] for row, prompt in enumerate(prompts)]


def gold_attention(
    model: PreTrainedModel,
    samples: Sequence[Sample],
    batch_size: int,
    progress: Callable[[int], None] = lambda done: None,
) -> list[tuple[float, float]]:
    """Per layer, the last token's attention to the gold document and to the average other one, over the samples."""
    total = torch.zeros(2, model.config.get_text_config().num_hidden_layers)
    for begin in range(0, len(samples), batch_size):
        part = samples[begin : begin + batch_size]
        weights = last_token_attention(model, [sample.prompt.ids for sample in part])
        for sample, layers in zip(part, weights, strict=True):
            each = torch.stack([layers[:, first:end].sum(1) for first, end in sample.prompt.spans])
            gold = each[sample.gold]
            total += torch.stack([gold, (each.sum(0) - gold) / (len(each) - 1)]).cpu()
        progress(len(part))
    return [(float(gold), float(other)) for gold, other in (total / len(samples)).T]


def middle_half(n_layers: int) -> tuple[int, int]:
    """The paper's guess of where to act: a quarter of the layers is left alone at either end."""
    return n_layers // 4, n_layers - 1 - n_layers // 4


def layer_ranges(attention: Sequence[tuple[float, float]]) -> dict[str, tuple[int, int]]:
    """Ranges of layers to compare, by where they come from.

    A layer retrieves if its attention to the gold document exceeds that to another one by at least half as much as in
    the layer where it exceeds it most. ``around the best``: the unbroken run of such layers that holds the best one;
    ``all that retrieve``: from the first to the last of them.

    Args:
        attention: per layer, what ``gold_attention`` gives.
    """
    excess = [gold - other for gold, other in attention]
    best = max(range(len(excess)), key=excess.__getitem__)
    found = {layer for layer, value in enumerate(excess) if value >= excess[best] / 2} | {best}
    first = last = best
    while first - 1 in found:
        first -= 1
    while last + 1 in found:
        last += 1
    return {
        "middle half": middle_half(len(excess)),
        "around the best": (first, last),
        "all that retrieve": (min(found), max(found)),
    }


@contextmanager
def _giving_weights(model: PreTrainedModel) -> Iterator[None]:
    """Run with eager attention, the only implementation that returns its weights."""
    before = model.config._attn_implementation
    model.set_attn_implementation("eager")
    try:
        yield
    finally:
        model.set_attn_implementation(before)


@contextmanager
def _scaled_projections(model: PreTrainedModel, scaling: ChannelScaling | None) -> Iterator[None]:
    """What the query and key projections of the method's layers read, with the channel scaled; values read the rest."""
    with ExitStack() as stack:
        if scaling is not None:
            architecture = architecture_of(model)
            if architecture.fused is not None:
                raise UnsupportedModelError(
                    f"{type(model).__name__} projects queries, keys and values at once; attention with a channel "
                    "scaled is measured on models with separate projections only"
                )

            def scaled(module: torch.nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
                hidden = args[0].clone()
                hidden[..., scaling.channel] *= scaling.factor
                return (hidden, *args[1:])

            modules = attention_sites(decoder_of(model, architecture), architecture)
            for index in scaling.layer_indices(len(modules)):
                for name in ("q_proj", "k_proj"):
                    stack.callback(modules[index].get_submodule(name).register_forward_pre_hook(scaled).remove)
        yield
