"""The two baselines: the plain model on the prompt in one piece, and on separately tokenised documents."""

from __future__ import annotations

from dataclasses import dataclass

from ragbias.methods.base import Method


@dataclass(frozen=True)
class NoMethod(Method):
    """The plain model, as without this library: the prompt is tokenised in one piece. It is the baseline."""

    name = "none"
    acts_on = "nothing"
    cost = "none"
    source = ""


@dataclass(frozen=True)
class Segmented(Method):
    """The plain model with each document tokenised separately, to measure the effect of segmentation alone.

    Methods that need documents tokenise them separately, so that a document has the same tokens at every position. The
    difference between such a method and this one is the method's own effect.
    """

    name = "segmented"
    acts_on = "nothing"
    needs_documents = True
    cost = "none"
    source = "no method, as a baseline"
