"""The questions of an experiment, each asked with its gold document at every position."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ragbias.checks import DEPTHS, check_choice
from ragbias.errors import MethodError, RunError
from ragbias.evaluation.data.questions import check_equally_many
from ragbias.evaluation.prompts.samples import (
    Sample,
    as_user_message,
    data_text,
    kv_question,
    kv_text,
    labelled_questions,
    sample_of,
    samples_of,
    tiny_question,
    tiny_text,
)
from ragbias.evaluation.tasks.mdqa import MultiDocumentQA
from ragbias.evaluation.tasks.orders import evenly_spread
from ragbias.lm import DebiasedLM
from ragbias.methods import Method, NoMethod

DRAWN = {"kv": (kv_question, kv_text), "tiny": (tiny_question, tiny_text)}
TASKS = (*DRAWN, "mdqa", "data")
Track = Callable[[Sequence[Any]], Iterable[Any]]  # gives what it is given, and shows how far it is


@dataclass(frozen=True)
class Questions:
    """What is asked.

    Attributes:
        task: ``"kv"`` or ``"tiny"``, drawn; ``"mdqa"``, a file of lost-in-the-middle; ``"data"``, JSON lines of
            question, documents, answer and gold. None: by file and model.
        file: of the last two.
        limit: number of questions.
        documents: of each question; of a file of ``"data"`` as they are.
        depths: positions of the gold document, evenly spread; None: every one.
        seed: draws questions.

    Raises:
        RunError, MethodError: task and file do not go together, or there is no such task.
    """

    task: str | None = None
    file: Path | None = None
    limit: int = 20
    documents: int = 10
    depths: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.task is None:
            return
        check_choice("experiment: task", self.task, TASKS)
        if self.task in DRAWN and self.file is not None:
            raise RunError(f"the task {self.task} draws its own questions; leave out {self.file}, or the task")
        if self.task not in DRAWN and self.file is None:
            raise RunError(f"the task {self.task} reads its questions; name the file with --questions")

    def samples(self, lm: DebiasedLM) -> list[Sample]:
        """The prompts, those of one question next to each other.

        Raises:
            DataError: a line of the file is of another format, or the numbers of documents differ.
            MethodError: a prompt is longer than the model's window.
        """
        task = self.task or ("data" if self.file else "tiny" if lm.name == "tiny" else "kv")
        depths = self.depths or int(DEPTHS.most)
        if task in DRAWN:
            question, text = DRAWN[task]
            rng = random.Random(f"experiment {task} {self.seed}")
            return samples_of(lm, [question(rng, self.documents) for _ in range(self.limit)], text, depths)
        assert self.file is not None  # checked above
        if task == "mdqa":
            return self._official(lm, self.file, depths)
        questions = labelled_questions(self.file)[: self.limit]
        check_equally_many(questions, f"{self.file}: the questions")
        return samples_of(lm, questions, data_text, depths)

    def _official(self, lm: DebiasedLM, file: Path, depths: int) -> list[Sample]:
        positions = tuple(evenly_spread(self.documents, depths))
        task = MultiDocumentQA((file,), (self.documents,), positions, limit=self.limit, seed=self.seed)
        numbers: dict[str, int] = {}
        samples = []
        for case in task.cases():
            assert case.gold_position is not None
            text, answer = as_user_message(lm, case.text, case.answers[0])
            number = numbers.setdefault(case.question, len(numbers))
            samples.append(sample_of(lm, text, answer, case.documents, case.gold_position, number))
        return samples

    def as_dict(self) -> dict[str, Any]:
        """As plain data, fit for JSON; of the file its name."""
        return {**vars(self), "file": self.file and self.file.name}


def by_position(samples: Sequence[Sample], measured: Sequence[Tensor]) -> tuple[list[int], Tensor]:
    """The gold document's positions, and for each the mean over its samples of what was measured, ``[P, ...]``."""
    positions = sorted({sample.gold for sample in samples})
    means = [
        torch.stack([each for sample, each in zip(samples, measured, strict=True) if sample.gold == position]).mean(0)
        for position in positions
    ]
    return positions, torch.stack(means)


def check_acts_on_attention(method: Method) -> None:
    """Raise ``MethodError`` for a method that would not be seen in the model's attention."""
    if method.acts_on != "attention" and method != NoMethod():
        raise MethodError(f"{method.name} leaves attention alone; an experiment shows none or a method that acts on it")
