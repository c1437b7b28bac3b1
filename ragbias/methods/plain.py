"""The plain model, on the user's prompt or on the tokens of a method with documents, and inside other methods."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ragbias.methods.base import AttentionMethod, Method
from ragbias.methods.call import AttentionCall

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class NoMethod(Method):
    """No method: plain generation, with the prompt tokenised in one piece as without this library; the baseline."""

    name = "none"
    acts_on = "nothing"
    same_prefill_cost = True
    cost = "none"
    source = ""


@dataclass(frozen=True)
class Segmented(Method):
    """Plain generation with each document tokenised separately: the effect of segmentation alone.

    Methods that need documents tokenise them separately, so that a document has the same tokens at every position. The
    difference between such a method and this one is the method's own effect.
    """

    name = "segmented"
    acts_on = "nothing"
    needs_documents = True
    same_prefill_cost = True
    cost = "none"
    source = "no method, as a baseline"


@dataclass(frozen=True)
class PlainAttention(AttentionMethod):
    """The model's own attention, as the base of interventions; it acts in no layer."""

    name = "none"
    positions = "model"
    cost = "none"
    source = ""

    def layer_indices(self, n_layers: int) -> Sequence[int]:
        return ()

    def attention(self, call: AttentionCall) -> Tensor:
        return call.plain(call.query, call.key)
