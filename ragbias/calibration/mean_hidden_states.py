"""Mean hidden states by position, over strings of random tokens: content averages out, position stays."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ragbias.calibration.calibration_settings import CalibrationPlan
from ragbias.calibration.partial_results import PartialResults
from ragbias.evaluation.prompts.random_strings import random_strings
from ragbias.lm import DebiasedLM


@torch.no_grad()
def summed_states(lm: DebiasedLM, ids: Tensor) -> NDArray[np.float64]:
    """Hidden states ``[n_hs, T, D]`` summed over the strings; the embeddings first, the last after the final norm."""
    output = lm.model.get_decoder()(ids, output_hidden_states=True, use_cache=False)
    return np.stack([state.float().cpu().numpy().sum(0, dtype=np.float64) for state in output.hidden_states])


def states_by_batch(
    lm: DebiasedLM, plan: CalibrationPlan, begin: int, end: int
) -> Iterator[tuple[NDArray[np.float64], int]]:
    """Summed hidden states of the plan's random strings ``begin`` to ``end - 1``, and the number of strings in them."""
    for first in range(begin, end, plan.batch_size):
        ids = random_strings(lm, first, min(first + plan.batch_size, end), plan.length, plan.seed)
        yield summed_states(lm, ids), len(ids)


def mean_states(
    lm: DebiasedLM, plan: CalibrationPlan, partial: PartialResults, progress: Callable[[int], None]
) -> NDArray[np.float64]:
    """Mean hidden states ``[n_hs, T, D]`` over the plan's random strings, resumed from ``partial``."""
    total, done = partial.sums()
    progress(done)
    try:
        for states, count in states_by_batch(lm, plan, done, plan.strings):
            if total.shape not in ((), states.shape):
                raise partial.refuse_sums(states.shape, total.shape)
            total, done = total + states, done + count
            partial.put_sums(total, done, now=done == plan.strings)
            progress(count)
    except KeyboardInterrupt:
        if done:
            partial.put_sums(total, done, now=True)
        raise
    return total / plan.strings
