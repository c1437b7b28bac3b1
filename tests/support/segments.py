"""Random prompts of token ids with known document spans, and the logits of a fixed answer to them."""

import random
from collections.abc import Sequence

import torch
from torch import Tensor

from ragbias.generation.attaching import LoadedModel
from ragbias.generation.scoring import continuation_logits
from ragbias.methods import get
from ragbias.prompt import TokenisedPrompt

Span = tuple[int, int]
TARGET = [11, 12, 13]


class Segments:
    """A prompt of random token ids: ``prefix``, ``documents``, ``suffix``."""

    def __init__(self, lengths: Sequence[int], prefix: int = 7, suffix: int = 9, seed: int = 0, vocabulary: int = 300):
        rng = random.Random(seed)

        def draw(count: int) -> list[int]:
            return [rng.randrange(3, vocabulary) for _ in range(count)]

        self.prefix, self.documents, self.suffix = draw(prefix), [draw(length) for length in lengths], draw(suffix)

    def arranged(self, order: Sequence[int]) -> tuple[Tensor, list[Span]]:
        """Return token ids ``[1, T]`` and spans with the documents in the given order."""
        ids, spans = list(self.prefix), []
        for index in order:
            spans.append((len(ids), len(ids) + len(self.documents[index])))
            ids += self.documents[index]
        return torch.tensor([ids + self.suffix]), spans

    @property
    def plain(self) -> tuple[Tensor, list[Span]]:
        return self.arranged(range(len(self.documents)))


def padded(prompts: Sequence[tuple[Tensor, list[Span]]], pad: int = 0) -> tuple[Tensor, Tensor, list[list[Span]]]:
    """Make a left-padded batch: ids, mask, and the spans of each sequence."""
    width = max(ids.shape[1] for ids, _ in prompts)
    ids = torch.full((len(prompts), width), pad)
    mask = torch.zeros(len(prompts), width, dtype=torch.long)
    spans = []
    for index, (sequence, own) in enumerate(prompts):
        shift = width - sequence.shape[1]
        ids[index, shift:], mask[index, shift:] = sequence[0], 1
        spans.append([(begin + shift, end + shift) for begin, end in own])
    return ids, mask, spans


def tokens(lengths=(7, 3, 12, 5), prefix=6, suffix=4, seed=0):
    draw = random.Random(seed)
    part = lambda size: [draw.randrange(3, 300) for _ in range(size)]  # noqa: E731
    return TokenisedPrompt(part(prefix), [part(size) for size in lengths], part(suffix))


def logits(model, prompt, method, cache=None):
    with torch.no_grad():
        return continuation_logits(LoadedModel(model, None, "torch", cache), prompt, get(method, None), TARGET)
