"""Accuracy by the place of the gold document, and what changes when only the order of the documents does."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ragbias.boundaries import locate
from ragbias.evaluation.metrics import normalised
from ragbias.lm import DebiasedLM
from ragbias.methods import Method
from ragbias.prompt import Prompt

MakeText = Callable[[Sequence[str], str], str]


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
        accuracy_by_position: share of right answers for the gold document at each position, counted from 1.
        flip_rate: share of questions whose answer is not the same for all positions of the gold document; the set of
            documents is the same for all of them, so only their order differs.
        answers: the answers, by question and position.
    """

    accuracy_by_position: dict[int, float]
    flip_rate: float
    answers: list[list[str]]

    @property
    def mean(self) -> float:
        values = self.accuracy_by_position.values()
        return sum(values) / len(values)

    @property
    def worst(self) -> float:
        return min(self.accuracy_by_position.values())

    @property
    def gap(self) -> float:
        return max(self.accuracy_by_position.values()) - self.worst

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
    """A flat prompt, split at its documents as the integrations do it."""
    return Prompt.from_text(text, locate(text, documents=documents).spans)


def measure(
    lm: DebiasedLM,
    method: Method,
    examples: Sequence[Example],
    positions: Sequence[int],
    make_text: MakeText,
    progress: Callable[[int], None] = lambda answered: None,
    batch_size: int = 10,
    max_new_tokens: int = 8,
) -> Curve:
    """Ask every example with its gold document at every position (counted from 0), greedily.

    An answer is right if it equals the expected one, regardless of case, white space and a final full stop.
    """
    answers: list[list[str]] = [[] for _ in examples]
    for position in positions:
        for begin in range(0, len(examples), batch_size):
            part = examples[begin : begin + batch_size]
            documents = [example.arranged(position) for example in part]
            prompts = [
                split(make_text(texts, example.question), texts) for example, texts in zip(part, documents, strict=True)
            ]
            outputs = lm.batch(prompts, method=method, max_new_tokens=max_new_tokens, batch_size=batch_size)
            for index, output in enumerate(outputs, start=begin):
                answers[index].append(normalised(output.text))
            progress(len(part))
    expected = [normalised(example.answer) for example in examples]
    right: Mapping[int, float] = {
        position + 1: sum(given[place] == want for given, want in zip(answers, expected, strict=True)) / len(examples)
        for place, position in enumerate(positions)
    }
    flips = sum(len(set(given)) > 1 for given in answers) / len(examples)
    return Curve(dict(right), flips, answers)
