"""How well a model answers with a channel scaled: the teacher-forced loss of the right answers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import torch
from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel

import ragbias
from ragbias.evaluation.prompts.samples import Sample
from ragbias.generation.request import padded
from ragbias.methods import ChannelScaling, NoMethod


@torch.no_grad()
def losses(
    model: PreTrainedModel,
    samples: Sequence[Sample],
    method: ChannelScaling | NoMethod,
    batch_size: int,
    progress: Callable[[int], None] = lambda done: None,
) -> list[float]:
    """Mean negative log-likelihood per answer token, for each sample.

    The answer follows the prompt in one pass, and the ``len(answer) + 1`` query positions from the prompt's last token
    on are scaled, as generation would scale them one by one (``eval_on_valid_set`` of the authors).
    """
    result = [0.0] * len(samples)
    for together in _batches(samples, batch_size):
        part = [samples[index] for index in together]
        answers = torch.tensor([sample.answer for sample in part], device=model.device)
        scaled = answers.shape[1] + 1
        answered = [replace(each.prompt, suffix=each.prompt.suffix + each.answer) for each in part]
        ids, mask, _ = padded(answered, 0, model.device)
        with ragbias.debias(model, method.for_last_tokens(scaled)):
            logits = model(ids, attention_mask=mask, use_cache=False, logits_to_keep=scaled).logits
        found = cross_entropy(logits[:, :-1].float().transpose(1, 2), answers, reduction="none").mean(1)
        for index, value in zip(together, found.tolist(), strict=True):
            result[index] = value
        progress(len(together))
    return result


def _batches(samples: Sequence[Sample], size: int) -> Iterator[list[int]]:
    """Indices of samples, batch by batch; their answers are equally long, as a batch scales one number of positions."""
    groups: dict[int, list[int]] = defaultdict(list)
    for index in sorted(range(len(samples)), key=lambda index: len(samples[index].prompt.ids)):
        groups[len(samples[index].answer)].append(index)
    for group in groups.values():
        for begin in range(0, len(group), size):
            yield group[begin : begin + size]
