"""Settings and questions of a calibration."""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ragbias.data.questions import read_questions
from ragbias.errors import ArgumentError, DataError
from ragbias.lm import DebiasedLM
from ragbias_eval.calibration.samples import RENDERERS, Sample, draw_kv_question, draw_tiny_question, make_samples

DEFAULT_QUESTIONS = {"kv": 100, "data": 100, "tiny": 40}  # 100 as in the paper; 40 take only minutes on one CPU core
MAX_PAIRS = 75  # as in the smallest set of Liu et al., Lost in the Middle, arXiv 2307.03172
RESERVED_TOKENS = 200  # for instruction, question and answer


@dataclass(frozen=True)
class CalibrationSettings:
    """Settings of a calibration; see ``ragbias calibrate --help``. An empty value or 0 selects the default."""

    model: str
    task: str = ""
    data: Path | None = None
    strings: int = 500
    length: int = 0
    questions: int = 0
    documents: int | None = None
    depths: int = 5
    seed: int = 0
    batch_size: int = 8
    variant: str = "released"
    dtype: str = "auto"

    def __post_init__(self) -> None:
        if self.data is not None and self.task not in ("", "data"):  # "data" is set by ``plan``
            raise ArgumentError(f"task={self.task!r} draws its own questions; leave out task, or data={self.data}")

    def plan(self, window: int) -> CalibrationSettings:
        """Fill in the defaults that depend on the model and its window. Equal plans give equal results."""
        if self.length > window:
            raise ArgumentError(f"length={self.length}, but the model's window is {window} tokens")
        task = self.task or ("data" if self.data else "tiny" if self.model == "tiny" else "kv")
        length, questions = self.length or min(1000, window), self.questions or DEFAULT_QUESTIONS[task]
        return replace(self, task=task, length=length, questions=questions)

    def as_dict(self) -> dict[str, Any]:
        """Return, as JSON data, the settings that affect the results. A data file is given by name and SHA-256."""
        plain = {name: value for name, value in vars(self).items() if name != "batch_size"}
        if self.data is not None:
            plain["data"] = {"file": self.data.name, "sha256": hashlib.sha256(self.data.read_bytes()).hexdigest()}
        return plain


def make_calibration_set(lm: DebiasedLM, plan: CalibrationSettings) -> tuple[list[Sample], list[Sample]]:
    """Draw or read the questions of a calibration. Return two lists of samples, about different questions.

    The first list selects channel, factor and layers. The second list checks the selection. It has
    two thirds of the questions if they are drawn, or one third if they come from a file.
    """
    if plan.data is None:
        rng = random.Random(f"calibration {plan.task} {plan.seed}")
        draw, default = (draw_tiny_question, 20) if plan.task == "tiny" else (draw_kv_question, count_kv_pairs(lm))
        questions = [draw(rng, plan.documents or default) for _ in range(3 * plan.questions)]
        first, second = questions[: plan.questions], questions[plan.questions :]
    else:
        questions = read_questions(plan.data, labelled=True)
        if len(questions) < 3:
            raise DataError(f"{plan.data} contains {len(questions)} questions; expected at least 3, preferably 100")
        first, second = [question for index, question in enumerate(questions) if index % 3 != 2], questions[2::3]
    text = RENDERERS[plan.task]
    return make_samples(lm, first, text, plan.depths), make_samples(lm, second, text, plan.depths)


def count_kv_pairs(lm: DebiasedLM) -> int:
    """Return the number of pairs in a prompt: 75 as in the benchmark, or fewer if the window is small."""
    (pair,) = draw_kv_question(random.Random(0), 1).documents
    tokens = len(lm.tokenizer(pair + ",\n", add_special_tokens=False)["input_ids"])
    return max(2, min(MAX_PAIRS, (lm.window - RESERVED_TOKENS) // tokens))
