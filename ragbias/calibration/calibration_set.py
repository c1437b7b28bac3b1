"""The calibration set: questions with a gold document at several positions."""

from __future__ import annotations

import random
from dataclasses import dataclass

from ragbias.calibration.calibration_settings import CalibrationPlan
from ragbias.errors import MethodError
from ragbias.evaluation.data.questions import Question, read_questions
from ragbias.evaluation.prompts import (
    Sample,
    data_text,
    kv_question,
    kv_text,
    samples_of,
    tiny_question,
    tiny_text,
)
from ragbias.lm import DebiasedLM

MAX_PAIRS = 75  # as in the smallest set of Liu et al., Lost in the Middle, arXiv 2307.03172
RESERVED = 200  # tokens for instruction, question and answer
TEXTS = {"kv": kv_text, "tiny": tiny_text, "data": data_text}


@dataclass(frozen=True)
class CalibrationSet:
    """Samples to choose by, and samples of other questions to check the choice."""

    choose: list[Sample]
    check: list[Sample]


def calibration_set(lm: DebiasedLM, plan: CalibrationPlan) -> CalibrationSet:
    """Draw or read a calibration set and tokenise it for a model.

    Generated sets hold ``plan.questions`` to choose by and twice as many to check. Every third question of a file
    is for the check.

    Raises:
        MethodError: a file has too few questions, or a prompt is longer than the model's window.
        DataError: a line of a file is invalid; names file, line and field.
    """
    parts = _read(plan) if plan.data is not None else _drawn(lm, plan)
    return CalibrationSet(*(samples_of(lm, questions, TEXTS[plan.task], plan.depths) for questions in parts))


def _read(plan: CalibrationPlan) -> tuple[list[Question], list[Question]]:
    assert plan.data is not None
    questions = read_questions(plan.data, labelled=True)
    if len(questions) < 3:
        raise MethodError(f"{plan.data} holds {len(questions)} questions; a calibration set needs 3, better 100")
    return [question for index, question in enumerate(questions) if index % 3 != 2], questions[2::3]


def _drawn(lm: DebiasedLM, plan: CalibrationPlan) -> tuple[list[Question], list[Question]]:
    rng = random.Random(f"calibration {plan.task} {plan.seed}")
    draw, default = (tiny_question, 20) if plan.task == "tiny" else (kv_question, kv_pairs(lm))
    questions = [draw(rng, plan.documents or default) for _ in range(3 * plan.questions)]
    return questions[: plan.questions], questions[plan.questions :]


def kv_pairs(lm: DebiasedLM) -> int:
    """The 75 pairs of the benchmark, or as many as fit the window."""
    (pair,) = kv_question(random.Random(0), 1).documents
    tokens = len(lm.tokenizer(pair + ",\n", add_special_tokens=False)["input_ids"])
    return max(2, min(MAX_PAIRS, (lm.window - RESERVED) // tokens))
