"""Accuracy by the position of the gold document, and what changes when only the order of the documents does."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ragbias.evaluation.measures.bootstrap import FEWEST, Scores, Summaries, curve, point
from ragbias.evaluation.measures.metrics import normalised
from ragbias.evaluation.tasks.task import Case, Task
from ragbias.lm import DebiasedLM
from ragbias.methods import Method

BATCH_SIZE = 10


@dataclass(frozen=True)
class Curve:
    """How one method does on a set of questions.

    Attributes:
        scores: by question and position of the gold document.
        answers: the normalised answers, by question and position.
    """

    scores: Scores
    answers: list[list[str]]

    @property
    def accuracy_by_position(self) -> dict[int, float]:
        """Share of right answers for the gold document at each position, counted from 1."""
        positions = (position + 1 for position in self.scores.positions)
        return dict(zip(positions, self._point.by_position[0].tolist(), strict=True))

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


def measure(
    lm: DebiasedLM, method: Method, task: Task, progress: Callable[[int], None] = lambda answered: None
) -> Curve:
    """Ask all questions of a task with a method, in batches of prompts that have the gold document at one position.

    Args:
        task: asks each question once with the gold document at each of the same positions.
        progress: called with the number of answers just given.

    Raises:
        DocumentNotFoundError: a prompt does not hold its documents verbatim.
    """
    by_position: dict[int, list[Case]] = defaultdict(list)
    for case in task.cases():
        assert case.gold_position is not None
        by_position[case.gold_position].append(case)
    scores: dict[str, list[float]] = defaultdict(list)
    answers: dict[str, list[str]] = defaultdict(list)
    for position in sorted(by_position):
        cases = by_position[position]
        for begin in range(0, len(cases), BATCH_SIZE):
            part = cases[begin : begin + BATCH_SIZE]
            for case, answer in zip(part, task.answers(lm, part, method, BATCH_SIZE), strict=True):
                scores[case.question].append(task.score(case, answer.prediction))
                answers[case.question].append(normalised(answer.prediction))
            progress(len(part))
    questions = sorted(scores)
    values = np.array([scores[question] for question in questions])
    return Curve(
        Scores(tuple(questions), tuple(sorted(by_position)), values), [answers[question] for question in questions]
    )


def widest_margin(curves: Iterable[Curve]) -> float | None:
    """The widest margin of error of an accuracy at a position: how far its 95% interval lies from it at most.

    None: too few questions for intervals.
    """
    given = list(curves)
    if min(len(each.scores.questions) for each in given) < FEWEST:
        return None
    intervals = [interval for each in given for interval in curve(each.scores)["by_position"]]
    return max(max(each.estimate - each.low, each.high - each.estimate) for each in intervals)
