"""The calibration set: questions with one gold document among others, to be asked with that at several depths."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from ragbias.calibration.calibration_settings import CalibrationPlan
from ragbias.errors import MethodError
from ragbias.evaluation.data.questions import Question
from ragbias.evaluation.prompts.samples import (
    Sample,
    Texts,
    data_text,
    kv_question,
    kv_text,
    labelled_questions,
    samples_of,
    tiny_question,
    tiny_text,
)
from ragbias.lm import DebiasedLM

MAX_PAIRS = 75  # as in the smallest set of Liu et al., Lost in the Middle, arXiv 2307.03172
ROOM = 200  # tokens kept free for instruction, question and answer


@dataclass(frozen=True)
class CalibrationSet:
    """The samples to choose by, and others to check the choice on; each holds every question at every depth."""

    choose: list[Sample]
    check: list[Sample]


Questions = Callable[[DebiasedLM, CalibrationPlan], tuple[list[Question], list[Question]]]


@dataclass(frozen=True)
class QuestionSource:
    """Where questions come from, and how they are asked.

    Attributes:
        questions: those to choose by and those for the check.
        text: as of ``samples_of``.
    """

    questions: Questions
    text: Texts


def calibration_set(lm: DebiasedLM, plan: CalibrationPlan) -> CalibrationSet:
    """Draw or read a calibration set and tokenise it for a model.

    Generated sets hold ``plan.questions`` to choose by and twice as many for the check, which is run with two settings
    only; of a file every third is for the check.

    Raises:
        MethodError: too few questions in a file, or a prompt longer than the model's window.
        DataError: a line of a file is of another format.
    """
    source = SOURCES[plan.task]
    return CalibrationSet(*(samples_of(lm, part, source.text, plan.depths) for part in source.questions(lm, plan)))


def _drawn(question: Callable[[random.Random, int], Question], documents: Callable[[DebiasedLM], int]) -> Questions:
    """Questions drawn by the plan's seed, with as many documents as it says, or else as suit the model."""

    def draw(lm: DebiasedLM, plan: CalibrationPlan) -> tuple[list[Question], list[Question]]:
        rng, count = random.Random(f"calibration {plan.task} {plan.seed}"), plan.documents or documents(lm)
        questions = [question(rng, count) for _ in range(3 * plan.questions)]
        return questions[: plan.questions], questions[plan.questions :]

    return draw


def _read(lm: DebiasedLM, plan: CalibrationPlan) -> tuple[list[Question], list[Question]]:
    """Questions from a JSON-lines file; errors name file, line and field."""
    assert plan.data is not None  # the settings were checked
    questions = labelled_questions(plan.data)
    if len(questions) < 3:
        raise MethodError(f"{plan.data} holds {len(questions)} questions; a calibration set needs 3, better 100")
    return [question for index, question in enumerate(questions) if index % 3 != 2], questions[2::3]


def kv_pairs(lm: DebiasedLM) -> int:
    """The 75 pairs of the benchmark, or as many as the window holds."""
    (pair,) = kv_question(random.Random(0), 1).documents
    tokens = len(lm.tokenizer(pair + ",\n", add_special_tokens=False)["input_ids"])
    return max(2, min(MAX_PAIRS, (lm.window - ROOM) // tokens))


SOURCES = {
    "kv": QuestionSource(_drawn(kv_question, kv_pairs), kv_text),
    "tiny": QuestionSource(_drawn(tiny_question, lambda lm: 20), tiny_text),
    "data": QuestionSource(_read, data_text),
}
