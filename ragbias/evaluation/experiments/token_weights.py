"""The plain model's attention weights of a prompt's last token, for every token."""

from __future__ import annotations

import torch
from torch import Tensor

from ragbias.binding import attach
from ragbias.lm import DebiasedLM
from ragbias.methods.last_token import LastToken
from ragbias.prompt import TokenisedPrompt


@torch.no_grad()
def token_weights(lm: DebiasedLM, tokens: TokenisedPrompt) -> Tensor:
    """The last token's weights, float32 ``[n_layers, H, T]``."""
    reader = LastToken()
    with attach(lm.model, reader, [tokens.spans], private=True, backend=lm.backend):
        lm.model(torch.tensor([tokens.ids], device=lm.model.device), use_cache=False, logits_to_keep=1)
    return reader.found[0]
