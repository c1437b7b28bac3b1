"""Settings of ``ragbias adapt``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from ragbias import limits
from ragbias.checks import Bounds, check_choice, check_whole_between
from ragbias.display import shown
from ragbias.errors import ArgumentError
from ragbias.methods import get

Objective = Literal["auto", "distil", "labels", "both"]
BOUNDS = {
    "steps": Bounds(1, 100_000),
    "batch": limits.BATCH,
    "rank": Bounds(1, 256),
    "documents": limits.DRAWN_DOCUMENTS,
    "orders": limits.ORDERS,
    "examples": Bounds(8, 1_000_000),
    "seed": limits.SEED,
}


@dataclass(frozen=True)
class AdaptSettings:
    """Settings for the training of a reader adapter.

    Attributes:
        method: the reader's method, with its parameters.
        objective: ``"distil"`` matches the plain model's distributions. ``"labels"`` maximises the probability of known
            answers. ``"both"`` adds the two losses. ``"auto"`` is ``"both"`` if all training questions have answers,
            otherwise ``"distil"``.
        steps: number of optimiser steps.
        batch: number of examples per step.
        rank: rank of the LoRA, which changes all linear layers of the decoder.
        learning_rate: maximum learning rate. The rate increases during the first steps, then decreases linearly to 2%
            of the maximum.
        documents: maximum number of documents in an example.
        orders: number of random document orders, for questions without ``gold``. The plain model reads all documents
            in each order, and its distributions are averaged. Use this if answers need several documents. By default,
            the plain model reads only the document that is most similar to the question.
        examples: number of examples. Default: one per question, but at least 300 and at most 800.
        prompt: the prompt of your pipeline, with ``{documents}`` and ``{question}``. By default, several question
            templates are used, so that the reader generalises.
        seed: seed of the examples and of the initial weights.
    """

    method: str = "pcw"
    objective: Objective = "auto"
    steps: int = 150
    batch: int = 4
    rank: int = 8
    learning_rate: float = 1e-3
    documents: int = 10
    orders: int | None = None
    examples: int | None = None
    prompt: str | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        for name, bounds in BOUNDS.items():
            if (value := getattr(self, name)) is not None:
                check_whole_between(name, value, bounds)
        if not 0 < self.learning_rate < 1:
            raise ArgumentError(f"learning_rate={self.learning_rate!r}; expected a number between 0 and 1")
        check_choice("objective", self.objective, get_args(Objective), error=ArgumentError)
        parts = ("{documents}", "{question}")
        if self.prompt is not None and any(self.prompt.count(part) != 1 for part in parts):
            raise ArgumentError(f"prompt={shown(self.prompt)}; expected a text with {' and '.join(parts)}, once each")
        method = get(self.method)
        if not method.takes_reader:
            raise ArgumentError(f"method={self.method!r} takes no reader; expected e.g. pcw, ape or pine")
        if method.reader:
            raise ArgumentError(f"method={self.method!r} has a reader already; name the method without it")
