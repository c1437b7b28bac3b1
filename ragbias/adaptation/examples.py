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
BARE = 0.2  # share of the examples without the chat template


@dataclass(frozen=True)
class Example:
    """A prompt with documents, and the gold document and answer, if known.

    Attributes:
        gold: index of the document with the answer; None if unknown.
        answer: the answer; empty if unknown.
    """

    prompt: Prompt
    gold: int | None
    answer: str

    @property
    def continuation(self) -> str:
        """The answer, after a space if the prompt ends with a colon, as in ``Answer:``."""
        spaced = self.answer and self.prompt.suffix.endswith(":")
        return f" {self.answer}" if spaced else self.answer

    def plain_orders(self, count: int, rng: random.Random) -> list[list[int]]:
        """Return document orders for the plain model: one with the gold document last, or ``count`` random orders."""
        indices = range(len(self.prompt.documents))
        if self.gold is not None:
            return [[*(index for index in indices if index != self.gold), self.gold]]
        return [rng.sample(indices, len(indices)) for _ in range(count)]


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
    prompt = prompt_of(lm, [question.documents[index] for index in chosen], question.question, settings.prompt, rng)
    gold = None if question.gold is None else chosen.index(question.gold)
    return Example(prompt, gold, question.answers[0] if question.answers else "")


def prompt_of(
    lm: DebiasedLM,
    documents: Sequence[str],
    question: str,
    text: str | None = None,
    rng: random.Random | None = None,
) -> Prompt:
    """Return the prompt of one question, in the chat template if the model has one.

    Args:
        text: the user's prompt, with ``{documents}`` and ``{question}``; None: the default prompt.
        rng: random choice of an ending, sometimes without the chat template; None: the first ending.
    """
    templated = lm.tokenizer.chat_template is not None
    if text is None:
        text = PREFIX + DOCUMENTS + (rng.choice(ENDINGS) if rng else ENDINGS[0])
        templated = templated and not (rng and rng.random() < BARE)
    mark = uuid.uuid4().hex  # a question may contain any text
    flat = text.replace(DOCUMENTS, mark, 1).replace(QUESTION, question, 1)
    if templated:
        flat = str(lm.chat_text([{"role": "user", "content": flat}]))
    prefix, suffix = flat.split(mark)
    return Prompt(prefix, [document.strip() + "\n" for document in documents], suffix)
