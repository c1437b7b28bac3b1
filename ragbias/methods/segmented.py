"""The model as it is, on the tokens that methods with documents run on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ragbias.methods.base import Method

if TYPE_CHECKING:
    from ragbias.methods.arithmetic import ModelShape, PromptLengths


@dataclass(frozen=True)
class Segmented(Method):
    """Plain generation with each document tokenised on its own: what segmentation alone changes.

    Methods that need to know the documents tokenise them one by one, so that a document has the same tokens at every
    position. What such a method itself does is its difference to this one.
    """

    name = "segmented"
    acts_on = "nothing"
    needs_documents = True
    cost = "none"
    source = "no method, as a baseline"

    def added_multiply_adds(self, shape: ModelShape, lengths: PromptLengths) -> int:
        return 0
