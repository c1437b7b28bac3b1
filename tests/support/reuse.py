"""Random tokenised prompts, and the logits of a fixed answer to them."""

import random

import torch

from ragbias.generation.scoring import continuation_logits
from ragbias.methods import get
from ragbias.prompt import TokenisedPrompt

TARGET = [11, 12, 13]


def tokens(lengths=(7, 3, 12, 5), prefix=6, suffix=4, seed=0):
    draw = random.Random(seed)
    part = lambda size: [draw.randrange(3, 300) for _ in range(size)]  # noqa: E731
    return TokenisedPrompt(part(prefix), [part(size) for size in lengths], part(suffix))


def logits(model, prompt, method, cache=None):
    with torch.no_grad():
        return continuation_logits(model, prompt, get(method, None), TARGET, "torch", cache)
