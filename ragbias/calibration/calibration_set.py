"""The calibration set: questions with one gold document among others, to be asked with that at several depths."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ragbias.calibration.calibration_settings import CalibrationPlan
from ragbias.errors import MethodError
from ragbias.evaluation.data.jsonl import Line, read_lines
from ragbias.evaluation.data.questions import Question, question_of
from ragbias.evaluation.tasks.orders import arranged, evenly_spread
from ragbias.generation.request import in_parts
from ragbias.lm import DebiasedLM
from ragbias.models.tiny.cases import FORMAT
from ragbias.models.tiny.world import ask, sample_entries
from ragbias.prompt import TokenisedPrompt, tokenise

MAX_PAIRS = 75  # as in the smallest set of Liu et al., Lost in the Middle, arXiv 2307.03172
ROOM = 200  # tokens kept free for instruction, question and answer
DATA_FIELDS = "question (text), documents (list of texts), answer (text), gold (index of the document that holds it)"


@dataclass(frozen=True)
class Sample:
    """One prompt of the calibration set: its tokens, those of the right answer, and the gold document's position.

    Attributes:
        gold: index into ``prompt.documents``.
        question: index of the question; it is the same for all depths of the gold document.
    """

    prompt: TokenisedPrompt
    answer: list[int]
    gold: int
    question: int


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
        text: of documents in their order and their question: the flat prompt and the answer that follows it.
    """

    questions: Questions
    text: Callable[[DebiasedLM, Sequence[str], Question], tuple[str, str]]


def calibration_set(lm: DebiasedLM, plan: CalibrationPlan) -> CalibrationSet:
    """Draw or read a calibration set and tokenise it for a model.

    Generated sets hold ``plan.questions`` to choose by and twice as many for the check, which is run with two settings
    only; of a file every third is for the check.

    Raises:
        MethodError: too few questions in a file, or a prompt longer than the model's window.
        DataError: a line of a file is of another format.
    """
    made = CalibrationSet(*(_samples(lm, plan, part) for part in SOURCES[plan.task].questions(lm, plan)))
    longest = max(len(sample.prompt.ids) + len(sample.answer) for sample in (*made.choose, *made.check))
    if longest > lm.window:
        raise MethodError(
            f"a prompt of the calibration set has {longest} tokens with its answer, but the model's window is "
            f"{lm.window}; use fewer documents"
        )
    return made


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
    questions = [_labelled(line) for line in read_lines(plan.data)]
    if len(questions) < 3:
        raise MethodError(f"{plan.data} holds {len(questions)} questions; a calibration set needs 3, better 100")
    return [question for index, question in enumerate(questions) if index % 3 != 2], questions[2::3]


def _labelled(line: Line) -> Question:
    question = question_of(line)
    if not question.answers or question.gold is None:
        missing = "answer" if not question.answers else "gold"
        raise line.error(f"no {missing!r}; a calibration set needs {DATA_FIELDS}")
    return question


def _samples(lm: DebiasedLM, plan: CalibrationPlan, questions: Sequence[Question]) -> list[Sample]:
    samples = []
    for index, question in enumerate(questions):
        assert question.gold is not None  # all sources give it
        others = [text for at, text in enumerate(question.documents) if at != question.gold]
        depths = evenly_spread(len(question.documents), plan.depths)
        for documents, position, _ in arranged(question.documents[question.gold], others, depths, 1, ""):
            text, answer = SOURCES[plan.task].text(lm, documents, question)
            prompt, _, reason = in_parts(text, documents, None)
            if reason:
                raise MethodError(f"calibrate: a prompt cannot be split at its documents: {reason}")
            ids = lm.tokenizer(answer, add_special_tokens=False)["input_ids"]
            samples.append(Sample(tokenise(prompt, lm.tokenizer), list(ids), position, index))
    return samples


def kv_pairs(lm: DebiasedLM) -> int:
    """The 75 pairs of the benchmark, or as many as the window holds."""
    (pair,) = _kv_question(random.Random(0), 1).documents
    tokens = len(lm.tokenizer(pair + ",\n", add_special_tokens=False)["input_ids"])
    return max(2, min(MAX_PAIRS, (lm.window - ROOM) // tokens))


def _kv_question(rng: random.Random, pairs: int) -> Question:
    """JSON key-value retrieval of Liu et al.: random identifiers, one of which is asked for."""
    drawn = [[str(uuid.UUID(int=rng.getrandbits(128), version=4)) for _ in range(2)] for _ in range(pairs)]
    (asked, answer), texts = drawn[0], tuple(f'"{key}": "{value}"' for key, value in drawn)
    return Question(asked, texts, (answer,), gold=0)


def _kv_text(lm: DebiasedLM, documents: Sequence[str], question: Question) -> tuple[str, str]:
    text = (
        "Extract the value corresponding to the specified key in the JSON object below.\n\nJSON data:\n{\n"
        + ",\n".join(documents)
        + f'\n}}\n\nKey: "{question.question}"\nCorresponding value:'
    )
    return _asked(lm, text, f'"{question.answers[0]}"')


def _tiny_question(rng: random.Random, documents: int) -> Question:
    """A question as ``tiny`` was trained on: names of the training split, which no evaluation uses."""
    entries = sample_entries(rng, documents, held_out=False)
    asked = ask(rng, rng.choice(entries[0].facts), entries[0].passage)
    texts = tuple(FORMAT.document(0, entry.passage) for entry in entries)
    return Question(asked.question, texts, (asked.answer,), gold=0)


def _tiny_text(lm: DebiasedLM, documents: Sequence[str], question: Question) -> tuple[str, str]:
    text = FORMAT.prefix + FORMAT.separator.join(documents) + FORMAT.suffix.format(q=question.question)
    return text, question.answers[0]


def _data_text(lm: DebiasedLM, documents: Sequence[str], question: Question) -> tuple[str, str]:
    context = "\n\n".join(documents)
    text = f"Answer the question using the documents.\n\n{context}\n\nQuestion: {question.question}\nAnswer:"
    return _asked(lm, text, question.answers[0])


def _asked(lm: DebiasedLM, text: str, answer: str) -> tuple[str, str]:
    """As one user message where the model has a chat template; without one the answer follows after a space."""
    if lm.tokenizer.chat_template is None:
        return text, " " + answer
    return lm.chat_text([{"role": "user", "content": text}]), answer


SOURCES = {
    "kv": QuestionSource(_drawn(_kv_question, kv_pairs), _kv_text),
    "tiny": QuestionSource(_drawn(_tiny_question, lambda lm: 20), _tiny_text),
    "data": QuestionSource(_read, _data_text),
}
