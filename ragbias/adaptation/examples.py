"""Training examples: prompts with a question, documents, and one of several endings."""

from __future__ import annotations

import random
import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from ragbias.adaptation.settings import AdaptSettings
from ragbias.data.questions import Question
from ragbias.lm import DebiasedLM
from ragbias.prompt import Prompt

DOCUMENTS, QUESTION = "{documents}", "{question}"
PREFIX = "Answer the question using the documents below.\n\n"  # the same for all prompts, so that documents are reused
ENDINGS = (
    "\nQuestion: {question}\nAnswer:",
    "\nQuestion: {question}\nAnswer in a few words.",
    "\nUse the passages above to answer this question in a few words: {question}",
    "\n{question}",
    "---------------------\nGiven the context information and not prior knowledge, answer the query.\n"
    "Query: {question}\nAnswer: ",
    "\nAnswer the question from the documents only, as briefly as you can.\nQuestion: {question}",
)


@dataclass(frozen=True)
class Example:
    """A prompt with documents, and the gold document and answers, if known.

    Attributes:
        gold: index of the document with the answer; None if unknown.
        answers: accepted answers; empty if unknown.
    """

    prompt: Prompt
    gold: int | None
    answers: tuple[str, ...]

    @property
    def continuation(self) -> str:
        """The first answer, after a space if the prompt ends with a colon, as in ``Answer:``."""
        return f" {self.answers[0]}" if self.prompt.suffix.endswith(":") else self.answers[0]

    def teacher_prompts(self, orders: int, rng: random.Random) -> list[Prompt]:
        """Return the prompts of the teacher: the gold document alone, or all documents in ``orders`` random orders."""
        prompt, indices = self.prompt, range(len(self.prompt.documents))
        if self.gold is not None:
            return [Prompt(prompt.prefix, [prompt.documents[self.gold]], prompt.suffix)]
        return [prompt.reordered(rng.sample(indices, len(indices))) for _ in range(orders)]


def draw_examples(lm: DebiasedLM, questions: Sequence[Question], settings: AdaptSettings) -> list[Example]:
    """Draw ``settings.examples`` examples, or one per question. Use all questions equally often, up to one."""
    count = settings.examples or len(questions)
    rng = random.Random(settings.seed)
    drawn: list[Example] = []
    while len(drawn) < count:
        chosen = rng.sample(questions, min(len(questions), count - len(drawn)))
        drawn += [_draw(lm, question, settings, rng) for question in chosen]
    return drawn


def _draw(lm: DebiasedLM, question: Question, settings: AdaptSettings, rng: random.Random) -> Example:
    most = min(settings.documents, len(question.documents))
    count = rng.randint(max(2, most // 4), most)
    others = [index for index in range(len(question.documents)) if index != question.gold]
    chosen = rng.sample(others, count if question.gold is None else count - 1)
    if question.gold is not None:
        chosen.append(question.gold)
    rng.shuffle(chosen)
    ending = random.Random(f"{settings.seed} {question.question}")  # one ending per question: its lesson is reused
    prompt = prompt_of(lm, [question.documents[index] for index in chosen], question.question, settings.prompt, ending)
    gold = None if question.gold is None else chosen.index(question.gold)
    return Example(prompt, gold, tuple(question.answers))


def prompt_of(
    lm: DebiasedLM, documents: Sequence[str], question: str, text: str | None = None, rng: random.Random | None = None
) -> Prompt:
    """Return the prompt of one question, in the chat template if the model has one.

    Args:
        text: the user's prompt, with ``{documents}`` and ``{question}``; None: the default prompt.
        rng: random choice of an ending; None: the first ending.
    """
    if text is None:
        text = PREFIX + DOCUMENTS + (rng.choice(ENDINGS) if rng else ENDINGS[0])
    mark = uuid.uuid4().hex  # a question may contain any text
    flat = text.replace(DOCUMENTS, mark, 1).replace(QUESTION, question, 1)
    if lm.chat_template:
        flat = str(lm.chat_text([{"role": "user", "content": flat}]))
    prefix, suffix = flat.split(mark)
    return Prompt(prefix, [document.strip() + "\n" for document in documents], suffix)
