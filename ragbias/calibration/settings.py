"""Settings and questions of a calibration. Each question runs with its gold document at several positions."""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ragbias.calibration.samples import Sample, data_text, kv_question, kv_text, samples_of, tiny_question, tiny_text
from ragbias.data.questions import Question, read_questions
from ragbias.errors import ArgumentError, DataError
from ragbias.lm import DebiasedLM

QUESTIONS = {"kv": 100, "data": 100, "tiny": 40}  # 100 as in the paper; 40 take only minutes on one CPU core
MAX_PAIRS = 75  # as in the smallest set of Liu et al., Lost in the Middle, arXiv 2307.03172
RESERVED = 200  # number of tokens for instruction, question and answer
TEXTS = {"kv": kv_text, "tiny": tiny_text, "data": data_text}


@dataclass(frozen=True)
class CalibrationSettings:
    """Settings of a calibration. See ``ragbias calibrate --help`` for their meaning."""

    model: str
    task: str | None = None
    data: Path | None = None
    strings: int = 500
    length: int | None = None
    questions: int | None = None
    documents: int | None = None
    depths: int = 5
    seed: int = 0
    batch_size: int = 8
    variant: str = "released"
    dtype: str = "auto"

    def __post_init__(self) -> None:
        if self.task == "data" and self.data is None:
            raise ArgumentError("calibrate: task='data' needs a file; pass its path as data (--data FILE)")
        if self.data is not None and self.task not in (None, "data"):
            raise ArgumentError(
                f"calibrate: task={self.task!r} draws its own questions; leave out data={str(self.data)!r}"
            )
        if self.data is not None and not self.data.is_file():
            raise ArgumentError(
                f"calibrate: data={str(self.data)!r} is not a file; expected JSON lines with one question a line"
            )

    def plan(self, window: int) -> CalibrationPlan:
        """Set the defaults that depend on the model and its window."""
        if self.length is not None and self.length > window:
            raise ArgumentError(f"calibrate: length={self.length}, but the model's window is {window} tokens")
        task = self.task or ("data" if self.data else "tiny" if self.model == "tiny" else "kv")
        length, questions = self.length or min(1000, window), self.questions or QUESTIONS[task]
        return CalibrationPlan(**{**vars(self), "task": task, "length": length, "questions": questions})


@dataclass(frozen=True, kw_only=True)
class CalibrationPlan(CalibrationSettings):
    """Settings for one model. Equal plans give equal results up to rounding."""

    task: str
    length: int
    questions: int

    def as_dict(self) -> dict[str, Any]:
        """Return all settings that affect the results, as plain data. A data file becomes a name and a SHA-256."""
        plain = {**vars(self)}
        del plain["batch_size"]
        if self.data is not None:
            plain["data"] = {"file": self.data.name, "sha256": hashlib.sha256(self.data.read_bytes()).hexdigest()}
        return plain


def calibration_set(lm: DebiasedLM, plan: CalibrationPlan) -> tuple[list[Sample], list[Sample]]:
    """Draw or read a calibration set and tokenise it.

    Return the samples that select channel, factor and layers, and those that check the selection with other questions.
    A drawn set has two questions to check per question to select. In a file, every third question checks.
    """
    first, second = _read(plan) if plan.data is not None else _drawn(lm, plan)
    text = TEXTS[plan.task]
    return samples_of(lm, first, text, plan.depths), samples_of(lm, second, text, plan.depths)


def _read(plan: CalibrationPlan) -> tuple[list[Question], list[Question]]:
    assert plan.data is not None
    questions = read_questions(plan.data, labelled=True)
    if len(questions) < 3:
        raise DataError(f"{plan.data} contains {len(questions)} questions; expected at least 3, better 100")
    return [question for index, question in enumerate(questions) if index % 3 != 2], questions[2::3]


def _drawn(lm: DebiasedLM, plan: CalibrationPlan) -> tuple[list[Question], list[Question]]:
    rng = random.Random(f"calibration {plan.task} {plan.seed}")
    draw, default = (tiny_question, 20) if plan.task == "tiny" else (kv_question, kv_pairs(lm))
    questions = [draw(rng, plan.documents or default) for _ in range(3 * plan.questions)]
    return questions[: plan.questions], questions[plan.questions :]


def kv_pairs(lm: DebiasedLM) -> int:
    """Return the number of pairs in a prompt: 75 as in the benchmark, or fewer for a small window."""
    (pair,) = kv_question(random.Random(0), 1).documents
    tokens = len(lm.tokenizer(pair + ",\n", add_special_tokens=False)["input_ids"])
    return max(2, min(MAX_PAIRS, (lm.window - RESERVED) // tokens))
