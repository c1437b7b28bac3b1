"""Accuracy by the position of the gold document, and answers that change with the order of the documents."""

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
    """Scores and normalised answers of one method, by question and position of the gold document."""

    scores: Scores
    answers: list[list[str]]

    @property
    def accuracy_by_position(self) -> dict[int, float]:
        """Share of right answers for the gold document at each position, counted from 1."""
        return dict(zip((at + 1 for at in self.scores.positions), self._point.by_position[0].tolist(), strict=True))

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
        """Share of questions whose answer differs among positions of the gold document, i.e. among orders."""
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
    """Run a method on all questions of a task, in batches of prompts with the gold document at one position.

    The task has each question once with the gold document at each of the same positions. ``progress`` is called with
    the number of new answers.
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
    """The widest margin of error of an accuracy at a position, by 95% intervals; None: too few questions for them."""
    scores = [each.scores for each in curves]
    if min(len(each.questions) for each in scores) < FEWEST:
        return None
    intervals = [interval for each in scores for interval in curve(each)["by_position"]]
    return max(max(each.estimate - each.low, each.high - each.estimate) for each in intervals)
