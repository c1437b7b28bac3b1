"""Random bench records with known accuracies, and runs of the bench without a progress bar."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.progress import Progress

from ragbias_eval.bench import run
from ragbias_eval.bench_settings import BenchSettings
from ragbias_eval.runs import Record, read_records


def record(**changes: Any) -> Record:
    """Make the record of a right answer to a question with two documents. ``changes`` replace fields."""
    fields: dict[str, Any] = dict(
        id="q0-0", task="made-up", model="tiny", method="none", question="q0", group="", documents=2, gold_position=0,
        order=0, seed=0, prediction="owl", score=1.0, prompt_tokens=100, completion_tokens=3, seconds=0.5,
        method_ran="none",
    )  # fmt: skip
    return Record(**{**fields, "method_ran": changes.get("method", "none").partition("(")[0], **changes})


def records_with(
    accuracies: Mapping[str, Mapping[int, float]],
    questions: int,
    documents: int = 10,
    seed: int = 0,
    groups: Sequence[str] = ("",),
    **fields: Any,
) -> list[Record]:
    """Make a record for each method, question and position (from 0).

    A question is equally hard for all methods and positions, so answers are correlated. A method with the same accuracy
    at all positions gives the same answer at all positions.
    """
    rng = random.Random(seed)
    made = []
    hardness = [rng.random() for _ in range(questions)]
    for label, by_position in accuracies.items():
        for question, hard in enumerate(hardness):
            for position, accuracy in by_position.items():
                right = hard < accuracy
                made.append(
                    record(
                        id=f"{documents}-q{question}-{position}",
                        question=f"q{question}",
                        method=label,
                        method_ran=label.partition("(")[0],
                        group=groups[question % len(groups)],
                        documents=documents,
                        gold_position=position,
                        prediction=f"answer {question}" if right else "another answer",
                        score=float(right),
                        **fields,
                    )
                )
    return made


def u_shape(positions: Sequence[int], ends: float, middle: float) -> dict[int, float]:
    """Return accuracies on a parabola, highest at both ends and lowest in the middle."""
    half = (positions[0] + positions[-1]) / 2
    return {each: middle + (ends - middle) * ((each - half) / (half - positions[0])) ** 2 for each in positions}


def logprobs_with(
    shifts: Mapping[str, Mapping[int | None, float]], questions: int, noise: float = 0.1, **fields: Any
) -> list[Record]:
    """Make a record with only log-probabilities for each method, question and position.

    The value is the sum of a level per question, from -20 to 0, the method's shift at the position, and noise.
    """
    rng = random.Random(0)
    made = []
    for question in range(questions):
        level = rng.uniform(-20, 0)
        for label, by_position in shifts.items():
            for position, shift in by_position.items():
                made.append(
                    record(
                        id=f"q{question}-{position}",
                        question=f"q{question}",
                        method=label,
                        method_ran=label.partition("(")[0],
                        documents=10,
                        gold_position=position,
                        prediction="",
                        score=None,
                        logprob=level + shift + (rng.gauss(0, noise) if noise else 0.0),
                        answer_tokens=3,
                        kl=0.0 if label == "none" else 0.5,
                        agrees=label == "none" or question % 2 == 0,
                        **fields,
                    )
                )
    return made


def silently(chosen: BenchSettings) -> dict[str, Any]:
    """Run a bench without output and return its summary."""
    return run(chosen, Progress(disable=True))


def untimed(path: Path) -> list[Record]:
    """Read the records of a file without times, which differ between runs."""
    return [replace(record, seconds=0) for record in read_records(path)]
