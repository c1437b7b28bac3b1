"""Accuracy by the position of the gold document, and answers that change with the order of the documents."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np

from ragbias.evaluation.measures.bootstrap import FEWEST, Scores, curve, point
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
        """Accuracy with the gold document at each position, counted from 1."""
        by_position = point(self.scores.values).by_position[0].tolist()
        return dict(zip((position + 1 for position in self.scores.positions), by_position, strict=True))

    @property
    def mean(self) -> float:
        return fmean(self.accuracy_by_position.values())

    @property
    def worst(self) -> float:
        return min(self.accuracy_by_position.values())

    @property
    def gap(self) -> float:
        return max(self.accuracy_by_position.values()) - self.worst

    @property
    def flip_rate(self) -> float:
        """Share of questions whose answer changes with the position of the gold document."""
        return sum(len(set(answers)) > 1 for answers in self.answers) / len(self.answers)

    def as_dict(self) -> dict[str, Any]:
        """Return the figures as plain data, without the answers."""
        figures = {name: getattr(self, name) for name in ("mean", "worst", "gap", "flip_rate")}
        by_position = {str(position): value for position, value in self.accuracy_by_position.items()}
        return {"accuracy_by_position": by_position, **figures}


def measure(
    lm: DebiasedLM, method: Method, task: Task, progress: Callable[[int], None] = lambda answered: None
) -> Curve:
    """Run a method on all cases of a task, in batches with the gold document at the same position.

    The task must have each question once per position of the gold document. ``progress`` receives the number of new
    answers.
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
    """Widest margin of error of any accuracy at a position, from 95% intervals. None with too few questions."""
    all_scores = [one.scores for one in curves]
    if min(len(scores.questions) for scores in all_scores) < FEWEST:
        return None
    intervals = [interval for scores in all_scores for interval in curve(scores)["by_position"]]
    return max(max(interval.estimate - interval.low, interval.high - interval.estimate) for interval in intervals)
