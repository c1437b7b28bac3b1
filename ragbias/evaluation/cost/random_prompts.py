"""Prompts of random tokens, in one padded batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ragbias.generation.request import padded
from ragbias.prompt import Span, TokenisedPrompt

PREFIX, SUFFIX = 20, 30  # tokens before and after the documents
FIRST = 3  # of the drawn tokens; those below are often special
SEED = 0


@dataclass(frozen=True)
class PromptBatch:
    """Prompts that enter a model together.

    Attributes:
        ids: ``[batch, T]``; ``mask`` likewise, zeros for padding on the left.
        spans: of each sequence's documents, padding counted.
    """

    prompts: Sequence[TokenisedPrompt]
    ids: Tensor
    mask: Tensor
    spans: list[list[Span]]

    @cached_property
    def has_padding(self) -> bool:
        return len({len(prompt.ids) for prompt in self.prompts}) > 1

    def inputs(self, step: int) -> dict[str, Any]:
        """Arguments of a forward pass beside the tokens: of the prompt at step 0, then of each next token."""
        if not self.has_padding:
            return {}
        mask = torch.cat((self.mask, self.mask.new_ones(len(self.mask), step)), dim=1)
        positions = (mask.cumsum(-1) - 1).clamp_min(0)
        return {"attention_mask": mask, "position_ids": positions[:, -1:] if step else positions}


def document_lengths(documents: int, tokens: int | None, total: int | None) -> list[int]:
    """Length of each document: ``tokens``, or an equal share of ``total``, whose remainder goes to the first ones."""
    if total is None:
        assert tokens is not None
        return [tokens] * documents
    return [total // documents + (index < total % documents) for index in range(documents)]


def draw(
    lengths: Sequence[int],
    count: int,
    vocabulary: int,
    device: torch.device,
    ragged: bool = False,
    prefix: int = PREFIX,
) -> PromptBatch:
    """Random prompts, the same in each call with these arguments.

    Args:
        lengths: tokens of the documents.
        count: of prompts; each has its own documents.
        ragged: draw each document's length between half and one and a half times its entry in ``lengths``.
        prefix: tokens before the documents.
    """
    generator = torch.Generator().manual_seed(SEED)

    def tokens(length: int) -> list[int]:
        drawn: list[int] = torch.randint(FIRST, vocabulary, (length,), generator=generator).tolist()
        return drawn

    def drawn(length: int) -> int:
        return int(torch.randint(-(-length // 2), 3 * length // 2 + 1, (), generator=generator))

    prompts = []
    for _ in range(count):
        own = [drawn(length) for length in lengths] if ragged else lengths
        prompts.append(TokenisedPrompt(tokens(prefix), [tokens(length) for length in own], tokens(SUFFIX)))
    return PromptBatch(prompts, *padded(prompts, 0, device))
