"""The plain model's attention weights of a prompt's last token, for every token."""

from __future__ import annotations

import torch
from torch import Tensor

from ragbias.attention import segment_scores
from ragbias.binding import attach
from ragbias.lm import DebiasedLM
from ragbias.methods import AttentionMethod
from ragbias.methods.call import AttentionCall
from ragbias.prompt import TokenisedPrompt


class LastToken(AttentionMethod):
    """Runs the model as it is and keeps the weights of the prompt's last token. For one prompt at a time.

    Attributes:
        weights: by layer, float32 ``[H, T]``.
    """

    name = "last-token"
    positions = "model"

    def __init__(self) -> None:
        self.weights: list[Tensor] = []

    def attention(self, call: AttentionCall) -> Tensor:
        (seq,) = call.sequences()
        last = seq.arange(seq.key.shape[1])[-1:]
        scores = segment_scores(seq.query[:, -1:], seq.key, positions=last, scoring=seq.scoring)
        self.weights.append(scores.softmax(-1)[:, 0].cpu())
        return call.plain(call.query, call.key)


@torch.no_grad()
def token_weights(lm: DebiasedLM, tokens: TokenisedPrompt) -> Tensor:
    """The last token's weights, float32 ``[n_layers, H, T]``."""
    reader = LastToken()
    with attach(lm.model, reader, [tokens.spans], private=True, backend=lm.backend):
        lm.model(torch.tensor([tokens.ids], device=lm.model.device), use_cache=False, logits_to_keep=1)
    return torch.stack(reader.weights)
