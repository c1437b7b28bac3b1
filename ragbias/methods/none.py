"""The model as it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ragbias.methods.base import Method

if TYPE_CHECKING:
    from ragbias.methods.arithmetic import ModelShape, PromptLengths


@dataclass(frozen=True)
class NoMethod(Method):
    """No method: plain generation, the prompt tokenised in one piece as without this library; the baseline."""

    name = "none"
    acts_on = "nothing"
    cost = "none"
    source = ""

    def added_multiply_adds(self, shape: ModelShape, lengths: PromptLengths) -> int:
        return 0
