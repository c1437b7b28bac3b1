"""Strings of random tokens: over many of them content averages out, and the position stays."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ragbias.lm import DebiasedLM


def random_strings(lm: DebiasedLM, begin: int, end: int, length: int, seed: int) -> Tensor:
    """Strings ``begin`` to ``end - 1`` of a set that depends on ``seed`` only, ``[strings, length]``.

    Tokens are drawn evenly from the vocabulary without its special tokens; each string starts with the BOS token if
    there is one.
    """
    tokenizer = lm.tokenizer
    usable = sorted(set(range(len(tokenizer))) - set(tokenizer.all_special_ids))
    strings = np.stack([np.random.default_rng((seed, index)).choice(usable, length) for index in range(begin, end)])
    if tokenizer.bos_token_id is not None:
        strings[:, 0] = tokenizer.bos_token_id
    return torch.tensor(strings, device=lm.model.device)
