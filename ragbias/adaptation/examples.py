"""Training examples: prompts with documents and a question, from several question templates."""

from __future__ import annotations

import math
import random
import re
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ragbias.adaptation.settings import AdaptSettings
from ragbias.data.questions import Question
from ragbias.data.retrieval import chat_or_flat
from ragbias.lm import DebiasedLM
from ragbias.prompt import Prompt

DOCUMENTS, QUESTION = "{documents}", "{question}"
PREFIX = "Answer the question using the documents below.\n\n"  # equal in all prompts, to reuse documents
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
    """A prompt with documents, for training or for the receipt.

    Attributes:
        gold: index of the document that contains the answer; None if unknown.
        answers: accepted answers; empty if unknown.
        similar: index of the document that is most similar to the question; None if unknown.
    """

    prompt: Prompt
    gold: int | None
    answers: tuple[str, ...]
    similar: int | None = None

    @property
    def continuation(self) -> str:
        """The text to predict: the first answer, with a space before it if the prompt ends with a colon."""
        return f" {self.answers[0]}" if self.prompt.suffix.endswith(":") else self.answers[0]

    def teacher_prompts(self, orders: int | None, rng: random.Random) -> list[Prompt]:
        """Return the prompts for the teacher, which is the plain model.

        - If the gold document is known: one prompt with only this document.
        - Otherwise, if ``orders`` is given: ``orders`` prompts with all documents in random order.
        - Otherwise, if the document most similar to the question is known: one prompt with only this document.
        - Otherwise: one prompt with all documents in random order.
        """
        prompt, indices = self.prompt, range(len(self.prompt.documents))
        only = self.similar if self.gold is None and orders is None else self.gold
        if only is not None:
            return [Prompt(prompt.prefix, [prompt.documents[only]], prompt.suffix)]
        return [prompt.reordered(rng.sample(indices, len(indices))) for _ in range(orders or 1)]


def draw_examples(lm: DebiasedLM, questions: Sequence[Question], settings: AdaptSettings) -> list[Example]:
    """Draw ``settings.examples`` examples, or one per question if it is None.

    All questions are used about equally often.
    """
    count = settings.examples or len(questions)
    rng = random.Random(settings.seed)
    rarity = rarity_of([text for question in questions for text in question.documents])
    drawn: list[Example] = []
    while len(drawn) < count:
        chosen = rng.sample(questions, min(len(questions), count - len(drawn)))
        drawn += [_draw(lm, question, settings, rarity, rng) for question in chosen]
    return drawn


def rarity_of(documents: Sequence[str]) -> dict[str, float]:
    """Return each word's inverse document frequency: ``log(n / m)`` if ``m`` of the ``n`` documents contain it."""
    distinct = set(documents)
    counts = Counter(word for text in distinct for word in _words(text))
    return {word: math.log(len(distinct) / count) for word, count in counts.items()}


def most_similar(question: str, documents: Sequence[str], rarity: Mapping[str, float]) -> int | None:
    """Return the index of the document that shares the most words with the question, weighted by ``rarity``.

    Return None if no document shares a word with the question, which is common in languages without spaces.
    """
    words = _words(question)
    scores = [sum(rarity.get(word, 0.0) for word in sorted(words & _words(text))) for text in documents]
    return scores.index(max(scores)) if any(scores) else None


def _words(text: str) -> set[str]:
    return set(re.findall(r"\w+", text.casefold()))


def _draw(
    lm: DebiasedLM, question: Question, settings: AdaptSettings, rarity: Mapping[str, float], rng: random.Random
) -> Example:
    most = min(settings.documents, len(question.documents))
    count = rng.randint(max(2, most // 4), most)
    others = [index for index in range(len(question.documents)) if index != question.gold]
    golds = [] if question.gold is None else [question.gold]
    chosen = [*rng.sample(others, count - len(golds)), *golds]
    rng.shuffle(chosen)
    ending = random.Random(f"{settings.seed} {question.question}")  # always the same, so that the lesson can be reused
    documents = [question.documents[index] for index in chosen]
    prompt = prompt_of(lm, documents, question.question, settings.prompt, ending)
    gold = chosen.index(*golds) if golds else None
    return Example(prompt, gold, tuple(question.answers), most_similar(question.question, documents, rarity))


def prompt_of(
    lm: DebiasedLM, documents: Sequence[str], question: str, text: str | None = None, rng: random.Random | None = None
) -> Prompt:
    """Return the prompt of one question, with the model's chat template, if there is one.

    Args:
        text: prompt with ``{documents}`` and ``{question}``. The default consists of ``PREFIX``, the documents, and
            one of ``ENDINGS``, which contains the question.
        rng: chooses the ending. By default, the first ending is used.
    """
    if text is None:
        text = PREFIX + DOCUMENTS + (rng.choice(ENDINGS) if rng else ENDINGS[0])
    mark = uuid.uuid4().hex  # a question may contain any text
    flat = text.replace(DOCUMENTS, mark, 1).replace(QUESTION, question, 1)
    prefix, suffix = str(chat_or_flat(lm, flat)).split(mark)
    return Prompt(prefix, [document.strip() + "\n" for document in documents], suffix)
