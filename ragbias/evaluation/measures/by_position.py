"""Accuracy by the place of the gold document, and what changes when only the order of the documents does."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ragbias.boundaries import locate
from ragbias.errors import RunError
from ragbias.evaluation.measures.bootstrap import FEWEST, Scores, Summaries, curve, point
from ragbias.evaluation.measures.metrics import normalised
from ragbias.lm import DebiasedLM
from ragbias.methods import Method
from ragbias.prompt import Prompt

MakeText = Callable[[Sequence[str], str], str]
BATCH_SIZE = 10


@dataclass(frozen=True)
class Example:
    """A question with one gold document among distractors, the best-ranked first."""

    question: str
    answer: str
    gold: str
    distractors: tuple[str, ...]

    def arranged(self, position: int) -> list[str]:
        """The documents with the gold one at ``position``, counted from 0."""
        return [*self.distractors[:position], self.gold, *self.distractors[position:]]


@dataclass(frozen=True)
class Curve:
    """How one method does on a set of examples.

    Attributes:
        scores: 1 for a right answer and 0 for a wrong one, by example and position of the gold document.
        answers: the answers, by example and position.
    """

    scores: Scores
    answers: list[list[str]]

    @property
    def accuracy_by_position(self) -> dict[int, float]:
        """Share of right answers for the gold document at each position, counted from 1."""
        places = (position + 1 for position in self.scores.positions)
        return dict(zip(places, self._point.by_position[0].tolist(), strict=True))

    @property
    def mean(self) -> float:
        return float(self._point.mean[0])

    @property
    def worst(self) -> float:
        return float(self._point.worst[0])

    @property
    def gap(self) -> float:
        return float(self._point.gap[0])

    @property
    def flip_rate(self) -> float:
        """Share of questions whose answer is not the same for all positions of the gold document; the set of documents
        is the same for all of them, so only their order differs."""
        return sum(len(set(given)) > 1 for given in self.answers) / len(self.answers)

    @property
    def _point(self) -> Summaries:
        return point(self.scores.values)

    def as_dict(self) -> dict[str, Any]:
        """The figures, without the answers."""
        return {
            "accuracy_by_position": {str(position): value for position, value in self.accuracy_by_position.items()},
            "mean": self.mean,
            "worst": self.worst,
            "gap": self.gap,
            "flip_rate": self.flip_rate,
        }


def split(text: str, documents: Sequence[str]) -> Prompt:
    """A flat prompt, split at its documents.

    Raises:
        RunError: not all of them stand in it.
    """
    found = locate(text, documents=documents)
    if found.source != "documents" or found.n_found < len(documents):
        raise RunError(
            f"{found.reason}; the prompt must hold every document, verbatim and told from the text around it"
        )
    return Prompt.from_text(text, found.spans)


def measure(
    lm: DebiasedLM,
    method: Method,
    examples: Sequence[Example],
    positions: Sequence[int],
    make_text: MakeText,
    progress: Callable[[int], None] = lambda answered: None,
    max_new_tokens: int = 8,
) -> Curve:
    """Ask every example with its gold document at every position (counted from 0), greedily.

    An answer is right if it equals the expected one, regardless of case, white space and a final full stop.

    Raises:
        RunError: a text lacks one of its documents.
    """
    answers: list[list[str]] = [[] for _ in examples]
    for position in positions:
        for begin in range(0, len(examples), BATCH_SIZE):
            part = examples[begin : begin + BATCH_SIZE]
            documents = [example.arranged(position) for example in part]
            prompts = [
                split(make_text(texts, example.question), texts) for example, texts in zip(part, documents, strict=True)
            ]
            outputs = lm.batch(prompts, method=method, max_new_tokens=max_new_tokens, batch_size=BATCH_SIZE)
            for index, output in enumerate(outputs, start=begin):
                answers[index].append(normalised(output.text))
            progress(len(part))
    expected = [normalised(example.answer) for example in examples]
    values = np.array([[text == want for text in given] for given, want in zip(answers, expected, strict=True)])
    names = tuple(f"{index:06}" for index in range(len(examples)))
    return Curve(Scores(names, tuple(positions), values.astype(float)), answers)


def widest_margin(curves: Iterable[Curve]) -> float | None:
    """The widest margin of error of an accuracy at a position: how far its 95% interval lies from it at most.

    None: too few examples for intervals.
    """
    given = list(curves)
    if min(len(each.scores.questions) for each in given) < FEWEST:
        return None
    intervals = [interval for each in given for interval in curve(each.scores)["by_position"]]
    return max(max(each.estimate - each.low, each.high - each.estimate) for each in intervals)
