"""Training examples: a question with some of its documents, in one of several common prompts."""

from __future__ import annotations

import random
import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from ragbias.adaptation.settings import AdaptSettings
from ragbias.errors import ChatTemplateError
from ragbias.evaluation.data.questions import Question
from ragbias.lm import DebiasedLM
from ragbias.prompt import Prompt

DOCUMENTS, QUESTION = "{documents}", "{question}"
PROMPTS = (
    "Answer the question using the documents below.\n\n{documents}Question: {question}\nAnswer:",
    "{documents}Use the passages above to answer this question in a few words: {question}",
    "Context information is below.\n---------------------\n{documents}---------------------\nGiven the context "
    "information and not prior knowledge, answer the query.\nQuery: {question}\nAnswer: ",
    "Write an answer for the given question using only the provided search results (some of which might be "
    "irrelevant).\n\n{documents}Question: {question}\nAnswer:",
)
SYSTEM = "You answer questions from the given context. Keep the answer concise.\n\nContext:\n\n{documents}"
ROLES = ("user", "user", "user", "system", "none")  # the message that holds the documents; none: no chat template


@dataclass(frozen=True)
class Example:
    """A prompt with its documents, and what is known about the answer.

    Attributes:
        gold: index of the document that holds the answer; None: unknown.
        answer: the known answer; empty: unknown.
    """

    prompt: Prompt
    gold: int | None
    answer: str

    @property
    def continuation(self) -> str:
        """The answer as the model would write it: after a space where the prompt ends in a word, as in "Answer:"."""
        spaced = self.answer and self.prompt.suffix.endswith(":")
        return f" {self.answer}" if spaced else self.answer

    def plain_orders(self, count: int, rng: random.Random) -> list[list[int]]:
        """Orders for the plain model: the gold document last, or ``count`` random ones if it is unknown."""
        indices = range(len(self.prompt.documents))
        if self.gold is not None:
            return [[*(index for index in indices if index != self.gold), self.gold]]
        return [rng.sample(indices, len(indices)) for _ in range(count)]


def draw_examples(lm: DebiasedLM, questions: Sequence[Question], settings: AdaptSettings) -> list[Example]:
    """Draw ``settings.examples`` examples; every question is used equally often."""
    count = settings.examples or len(questions)
    rng = random.Random(settings.seed)
    drawn: list[Example] = []
    while len(drawn) < count:
        chosen = rng.sample(questions, min(len(questions), count - len(drawn)))
        drawn += [_draw(lm, question, settings, rng) for question in chosen]
    return drawn


def _draw(lm: DebiasedLM, question: Question, settings: AdaptSettings, rng: random.Random) -> Example:
    most = min(settings.documents, len(question.documents))
    count = rng.randint(max(2, most // 2), most)
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
    """The prompt of one question: ``text`` or a drawn common one, in the chat template; without ``rng`` the first."""
    role = "user" if rng is None or text is not None else rng.choice(ROLES)
    text = text or (PROMPTS[0] if rng is None else rng.choice(PROMPTS))
    separator = "\n\n" if rng is None else rng.choice(("\n\n", "\n\n", "\n"))
    mark = uuid.uuid4().hex  # a question may contain any text
    whole = text.replace(DOCUMENTS, mark, 1).replace(QUESTION, question, 1)
    messages = [{"role": "user", "content": whole}]
    if role == "system":
        content = SYSTEM.replace(DOCUMENTS, mark)
        messages = [{"role": "system", "content": content}, {"role": "user", "content": question}]
    if role == "none" or lm.tokenizer.chat_template is None:
        flat = whole
    else:
        try:
            flat = str(lm.chat_text(messages))
        except ChatTemplateError:  # many templates have no system message
            flat = str(lm.chat_text([{"role": "user", "content": whole}]))
    prefix, suffix = flat.split(mark)
    return Prompt(prefix, [document.strip() + separator for document in documents], suffix)
