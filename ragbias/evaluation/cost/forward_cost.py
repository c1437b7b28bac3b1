"""What methods cost in a model's forward passes on one batch: time and memory beside the plain model's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from transformers import PreTrainedModel

from ragbias.binding import debias
from ragbias.evaluation.cost.arithmetic import decode_limit, lengths_of, prefill_limit, shape_of
from ragbias.evaluation.cost.interleaved import Spread, figures, interleaved, now
from ragbias.evaluation.cost.memory import peak_bytes
from ragbias.evaluation.cost.random_prompts import PromptBatch
from ragbias.methods import Method, NoMethod


@dataclass(frozen=True)
class ForwardCost:
    """What one method costs; times and their ratios to plain attention in the same round ``(median, lowest, highest)``.

    Attributes:
        prefill_seconds: of the forward pass over the prompts, up to the logits of the first token.
        first_token_seconds: the same, with attaching the method before it and reading the token after it.
        decode_seconds: for one token after the first, in each sequence.
        peak_bytes: the most memory in use at once during all of this, beside the model; measured once.
        prefill_limit, decode_limit: the ratios that the arithmetic asks for, see ``cost.arithmetic``; None: not known.
    """

    prefill_seconds: Spread
    first_token_seconds: Spread
    decode_seconds: Spread
    prefill_ratio: Spread
    first_token_ratio: Spread
    decode_ratio: Spread
    peak_bytes: float
    peak_ratio: float
    prefill_limit: float | None
    decode_limit: float | None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@torch.no_grad()
def measure(
    model: PreTrainedModel,
    methods: Mapping[str, Method],
    batch: PromptBatch,
    steps: int = 8,
    rounds: int = 5,
    backend: str = "auto",
    progress: Callable[[], None] = lambda: None,
) -> dict[str, ForwardCost]:
    """The cost of the plain model and of each method, by label.

    Args:
        methods: by label; the plain model runs beside them as ``none``.
        steps: decoded tokens after the first one, in each round.
        rounds: counted ones; a round before them warms up, and one after them measures memory.
        backend: what computes the methods' attention, see ``ragbias.debias``.
        progress: called after each run, ``rounds + 2`` times for each method and for ``none``.
    """
    methods = {NoMethod.name: NoMethod(), **methods}

    def times(batch: PromptBatch, method: Method) -> tuple[float, ...]:
        taken = _times(model, method, batch, steps, backend)
        progress()
        return taken

    def peak(batch: PromptBatch, method: Method) -> tuple[float, ...]:
        highest = peak_bytes(model.device, lambda: _times(model, method, batch, steps, backend))
        progress()
        return (highest,)

    timed = interleaved(methods, [batch] * (rounds + 1), times)
    peaks = interleaved(methods, [batch], peak)
    shape, layouts = shape_of(model.config), [lengths_of(prompt) for prompt in batch.prompts]
    found: dict[str, ForwardCost] = {}
    for label, method in methods.items():
        (prefill, prefill_ratio), (first, first_ratio), (decode, decode_ratio) = (
            figures(timed, label, index, 1) for index in range(3)
        )
        (peak_memory, *_), (peak_ratio, *_) = figures(peaks, label, 0, 0)
        found[label] = ForwardCost(
            prefill_seconds=prefill,
            first_token_seconds=first,
            decode_seconds=decode,
            prefill_ratio=prefill_ratio,
            first_token_ratio=first_ratio,
            decode_ratio=decode_ratio,
            peak_bytes=peak_memory,
            peak_ratio=peak_ratio,
            prefill_limit=prefill_limit(shape, layouts, method),
            decode_limit=decode_limit(shape, layouts, method),
        )
    return found


def _times(
    model: PreTrainedModel, method: Method, batch: PromptBatch, steps: int, backend: str
) -> tuple[float, float, float]:
    """Seconds of the prefill, until the first token, and of one decoding step."""
    begin = now(model.device)
    with debias(model, method, batch.spans, backend):
        attached = now(model.device)
        output = model(batch.ids, use_cache=True, logits_to_keep=1, **batch.inputs(0))
        prefilled = now(model.device)
        token = _chosen(output)
        first = now(model.device)
        for step in range(1, steps + 1):
            cache = output.past_key_values
            output = model(token, past_key_values=cache, use_cache=True, **batch.inputs(step))
            token = _chosen(output)
        return prefilled - attached, first - begin, (now(model.device) - first) / steps


def _chosen(output: Any) -> torch.Tensor:
    """The next token of each sequence, ``[batch, 1]``, read back as generation does to see whether it ends there."""
    token: torch.Tensor = output.logits[:, -1:].argmax(-1)
    token.tolist()
    return token
