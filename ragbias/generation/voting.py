"""The answer that most of several generations give."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

from transformers import PreTrainedModel

from ragbias.generation.report import Generation, Usage
from ragbias.generation.request import Request
from ragbias.generation.scoring import logprobs_of


def elected(
    model: PreTrainedModel, candidates: Sequence[Request], answers: Sequence[Generation], backend: str
) -> Generation:
    """The answer to a request, of those to its candidates."""
    if len(answers) == 1:
        return answers[0]

    def mean_logprob(index: int) -> float:
        ids = answers[index].token_ids
        return sum(logprobs_of(model, candidates[index], ids, backend)) / len(ids) if ids else -math.inf

    return elect(answers, mean_logprob)


def elect(generations: Sequence[Generation], mean_logprob: Callable[[int], float]) -> Generation:
    """The generation whose text, blanks around it aside, is the most frequent; its usage is the sum of all.

    Args:
        mean_logprob: mean log-probability per token of a generation, by index; asked where texts have equally many
            votes, and the highest wins.
    """
    texts = [generation.text.strip() for generation in generations]
    votes = Counter(texts)
    most = max(votes.values())
    firsts = [texts.index(text) for text in dict.fromkeys(texts) if votes[text] == most]
    winner = generations[firsts[0] if len(firsts) == 1 else max(firsts, key=mean_logprob)]
    return replace(winner, usage=sum((generation.usage for generation in generations), Usage(0, 0)))
