"""Two baselines: the plain model with the prompt tokenised in one piece, or with each document tokenised separately."""

from __future__ import annotations

from dataclasses import dataclass

from ragbias.methods.base import Method


@dataclass(frozen=True)
class NoMethod(Method):
    """The plain model. The prompt is tokenised in one piece, as without this library."""

    name = "none"
    acts_on = "nothing"
    cost = "none"
    source = ""


@dataclass(frozen=True)
class Segmented(Method):
    """The plain model on separately tokenised documents.

    Methods that need documents tokenise each document separately, so that its tokens do not depend on its position.
    Comparing such a method with this baseline isolates the effect of the method from the effect of tokenisation.
    """

    name = "segmented"
    acts_on = "nothing"
    needs_documents = True
    cost = "none"
    source = "no method, as a baseline"
