"""How well a model answers with a channel scaled: the teacher-forced loss of the right answer.

Nothing before a prompt's last token depends on the channel, its factor or its layers. So the prompt enters once, for
all settings together; each of them has keys of its own for it, and runs the last token and the answer.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import DynamicCache, PreTrainedModel

from ragbias.binding.binding import Binding, attach
from ragbias.evaluation.prompts.samples import Sample
from ragbias.generation.scoring import prefilled
from ragbias.methods import ChannelScaling, NoMethod
from ragbias.methods.base import AttentionMethod
from ragbias.methods.call import AttentionCall, SequenceLayout


class _Noting(AttentionMethod):
    """The plain model, which notes each layer's call."""

    name = "noting"
    positions = "model"

    def __init__(self) -> None:
        self.calls: list[AttentionCall] = []

    def attention(self, call: AttentionCall) -> Tensor:
        self.calls.append(call)
        return call.plain(call.query, call.key)


@torch.no_grad()
def losses(model: PreTrainedModel, sample: Sample, methods: Sequence[ChannelScaling | NoMethod]) -> list[float]:
    """Mean negative log-likelihood per answer token, with each method (``eval_on_valid_set`` of the authors)."""
    *before, last = sample.prompt.ids
    ids = torch.tensor([[last, *sample.answer[:-1]]], device=model.device)
    answer = torch.tensor(sample.answer, device=model.device)
    noting = _Noting()
    with attach(model, noting, [], private=True):
        prefilled(model, before)
        return [float(cross_entropy(_continued(model, noting.calls, ids, method), answer)) for method in methods]


def _continued(
    model: PreTrainedModel, calls: Sequence[AttentionCall], ids: Tensor, method: ChannelScaling | NoMethod
) -> Tensor:
    """Logits float32 ``[T, V]`` after each of the tokens ``ids`` ``[1, T]`` that follow what the calls are of."""
    cache = DynamicCache()
    for call in calls:
        keys = call.key
        if isinstance(method, ChannelScaling) and call.layer in method.layer_indices(call.n_layers):
            keys = call.rotate(call.project("key", method.key_input(call.hidden, call.layer)))
        cache.update(keys, call.value, call.layer)
    if isinstance(method, NoMethod):
        attached = attach(model, method, [], private=True)
    else:
        binding = Binding(model, method, [], private=True)
        binding.resume(cache, [SequenceLayout(0, int(cache.get_seq_length()), (), ())])
        attached = binding.attached()
    with attached:
        logits: Tensor = model(ids, past_key_values=cache, use_cache=True).logits[0]
    return logits.float()
