"""Measure mean hidden states, attention to the gold document, and the cross-entropy of right answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import DynamicCache, PreTrainedModel

import ragbias
from ragbias.binding.architectures import KV_CACHE
from ragbias.binding.binding import Binding
from ragbias.binding.hooks import attached, create_binding
from ragbias.generation.decoding import padded
from ragbias.generation.scoring import prefill
from ragbias.lm import DebiasedLM
from ragbias.methods import AttentionCall, AttentionMethod, ChannelScaling, NoMethod, SequenceLayout
from ragbias.methods.attention_sorting import DocumentAttention
from ragbias.prompt import TokenisedPrompt
from ragbias_eval.calibration.samples import CalibrationSettings, Sample, draw_strings

Advance = Callable[[int], None]  # argument: number of steps just done


@torch.no_grad()
def sum_states(lm: DebiasedLM, ids: Tensor) -> NDArray[np.float64]:
    """Run the strings ``ids`` ``[strings, T]``, and return the sum of their hidden states: ``[n_states, T, D]``.

    The first state is the embeddings, and the last is the normalised output.
    """
    output = lm.model.get_decoder()(ids, output_hidden_states=True, use_cache=False)
    return np.stack([state.float().cpu().numpy().sum(0, dtype=np.float64) for state in output.hidden_states])


def mean_states(lm: DebiasedLM, plan: CalibrationSettings, advance: Advance) -> NDArray[np.float64]:
    """Average hidden states ``[n_states, T, D]`` over the plan's random strings.

    The effect of random tokens averages out; the effect of position remains.
    """
    total = np.zeros(())
    for first in range(0, plan.strings, plan.batch_size):
        ids = draw_strings(lm, first, min(first + plan.batch_size, plan.strings), plan.length, plan.seed)
        total = total + sum_states(lm, ids)
        advance(len(ids))
    return total / plan.strings


@torch.no_grad()
def measure_document_attention(
    model: PreTrainedModel, prompts: Sequence[TokenisedPrompt], batch_size: int, advance: Advance = lambda done: None
) -> list[Tensor]:
    """Return the last token's attention to each document, averaged over heads.

    The result has a float32 tensor ``[n_layers, n_documents]`` for each prompt.
    """
    attention: list[Tensor] = []
    for begin in range(0, len(prompts), batch_size):
        ids, mask, spans = padded(prompts[begin : begin + batch_size], 0, model.device)
        observer = DocumentAttention()
        with ragbias.debias(model, observer, spans):
            model(ids, attention_mask=mask, use_cache=False, logits_to_keep=1)
        attention += observer.weights
        advance(len(spans))
    return attention


def gold_attention(
    model: PreTrainedModel, samples: Sequence[Sample], batch_size: int, advance: Advance = lambda done: None
) -> list[tuple[float, float]]:
    """Return, for each layer, the last token's mean attention to a gold document and to another document.

    The first number is averaged over samples. The second is averaged over samples and their other documents.
    """
    masses = measure_document_attention(model, [sample.prompt for sample in samples], batch_size, advance)
    gold = torch.stack([mass[:, sample.gold] for mass, sample in zip(masses, samples, strict=True)])
    whole = torch.stack([mass.sum(1) for mass in masses])
    others = torch.tensor([len(sample.prompt.documents) - 1 for sample in samples])
    other = (whole - gold) / others[:, None]
    return list(zip(gold.mean(0).tolist(), other.mean(0).tolist(), strict=True))


def retrieving_layers(attention: Sequence[Sequence[float]]) -> set[int]:
    """Return the layers whose preference for the gold document is at least half of the highest preference.

    A layer's preference is the difference of its two numbers in ``attention``, the result of ``gold_attention``.
    """
    excess = [gold - other for gold, other in attention]
    best = max(range(len(excess)), key=excess.__getitem__)
    return {layer for layer, value in enumerate(excess) if value >= excess[best] / 2} | {best}


def layer_ranges(attention: Sequence[Sequence[float]]) -> dict[str, tuple[int, int]]:
    """Return named layer ranges to compare, each as first and last layer."""
    retrieving = retrieving_layers(attention)
    first = last = max(range(len(attention)), key=lambda layer: attention[layer][0] - attention[layer][1])
    while first - 1 in retrieving:
        first -= 1
    while last + 1 in retrieving:
        last += 1
    return {
        "the paper's": paper_layers(len(attention)),
        "around the best": (first, last),
        "all that retrieve": (min(retrieving), max(retrieving)),
    }


def paper_layers(n_layers: int) -> tuple[int, int]:
    """Return the first and last layer to scale, in proportion to the paper's layers 10 to 25 of 32."""
    return round(10 * n_layers / 32), min(round(25 * n_layers / 32), n_layers - 1)


class _RecordedCalls(AttentionMethod):
    """Run the plain model, and record the attention call of each layer."""

    name = "recorded-calls"
    positions = "model"

    def __init__(self) -> None:
        self.calls: list[AttentionCall] = []

    def attention(self, call: AttentionCall) -> Tensor:
        self.calls.append(call)
        return call.plain(call.query, call.key)


@torch.no_grad()
def measure_losses(model: PreTrainedModel, sample: Sample, methods: Sequence[ChannelScaling | NoMethod]) -> list[float]:
    """Return each method's mean negative log-likelihood per answer token, as in the authors' ``eval_on_valid_set``.

    A method only changes the attention of the prompt's last token and of the answer. Therefore earlier tokens run once
    for all methods. Then each method recomputes the keys that it scales, and runs the last token and the answer.
    """
    *before, last = sample.prompt.ids
    ids = torch.tensor([[last, *sample.answer[:-1]]], device=model.device)
    answer = torch.tensor(sample.answer, device=model.device)
    recorded = _RecordedCalls()
    with attached(Binding(model, recorded, [], private=True)):
        prefill(model, before)
        return [float(cross_entropy(_compute_logits(model, recorded.calls, ids, method), answer)) for method in methods]


def _compute_logits(
    model: PreTrainedModel, calls: Sequence[AttentionCall], ids: Tensor, method: ChannelScaling | NoMethod
) -> Tensor:
    """Run tokens ``ids`` ``[1, T]`` after the recorded tokens. Return float32 logits ``[T, V]``."""
    cache = DynamicCache()
    for call in calls:
        keys = call.key
        if isinstance(method, ChannelScaling) and call.layer in method.layer_indices(call.n_layers):
            keys = call.rotate(call.project("key", method.key_input(call.hidden, call.layer)))
        cache.update(keys, call.value, call.layer)
    binding = create_binding(model, method, [], private=True)
    if isinstance(binding, Binding):
        binding.resume(cache, [SequenceLayout(0, int(cache.get_seq_length()), (), ())])
    with attached(binding):
        logits: Tensor = model(ids, use_cache=True, **{KV_CACHE: cache}).logits[0]
    return logits.float()
