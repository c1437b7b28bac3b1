"""Mean hidden states by position, over strings of random tokens: content averages out, position stays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ragbias.calibration.partial import Partial
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


@torch.no_grad()
def summed_states(lm: DebiasedLM, ids: Tensor, **inputs: Any) -> NDArray[np.float64]:
    """Hidden states ``[n_hs, T, D]`` summed over the strings; the embeddings first, the last after the final norm."""
    output = lm.model.get_decoder()(ids, output_hidden_states=True, use_cache=False, **inputs)
    return np.stack([state.float().cpu().numpy().sum(0, dtype=np.float64) for state in output.hidden_states])


def mean_states(
    lm: DebiasedLM,
    strings: int,
    length: int,
    seed: int,
    batch_size: int,
    partial: Partial,
    progress: Callable[[int], None] = lambda done: None,
) -> NDArray[np.float64]:
    """Mean hidden states ``[n_hs, T, D]`` over random strings, resumed from ``partial``."""
    saved = partial.sums()
    total, done = saved if saved is not None else (np.zeros(()), 0)
    progress(done)
    try:
        while done < strings:
            end = min(done + batch_size, strings)
            total = total + summed_states(lm, random_strings(lm, done, end, length, seed))
            progress(end - done)
            done = end
            partial.put_sums(total, done, now=done == strings)
    except KeyboardInterrupt:
        partial.put_sums(total, done, now=True)
        raise
    return total / strings
