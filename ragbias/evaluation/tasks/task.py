"""What a task of the bench is: prompts with their documents in given orders, how they are answered, what is right."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from ragbias.generation.report import Report
from ragbias.lm import DebiasedLM
from ragbias.methods import Method


@dataclass(frozen=True)
class Case:
    """One prompt: a question with its documents in one order.

    Attributes:
        id: the same in every run of the same task and seed, no two alike in one task.
        question: id of the question; its cases with equally many documents and the same ``seed`` differ in nothing but
            the documents' order.
        text: the flat prompt, without a chat template.
        documents: as they stand in ``text``, verbatim and in this order; empty where the task has none.
        answers: any of them is right.
        gold_position: place of the gold document, counted from 0; None: there is none.
        order: 0 for the documents as the data gives them (the gold one moved to its place), k for the k-th shuffle.
        seed: what drew the documents; 0 where the data gives them, also if it shuffled them.
        group: part of the task that it belongs to, e.g. a subset of RewardBench.
        contents: the documents without what changes with their order, where ``documents`` number them; empty: they do
            not.
    """

    id: str
    question: str
    text: str
    documents: tuple[str, ...]
    answers: tuple[str, ...]
    gold_position: int | None
    order: int = 0
    seed: int = 0
    group: str = ""
    contents: tuple[str, ...] = ()


@dataclass(frozen=True)
class Answer:
    """What a model said to a case; ``prediction`` is what ``Task.score`` reads."""

    prediction: str
    prompt_tokens: int
    completion_tokens: int
    report: Report


class Task:
    """A task; a subclass is a frozen dataclass with the data's files and the choice of cases as fields.

    Attributes:
        name: as typed in ``--task``.
        has_documents: whether its prompts have documents; where not, methods that need them are refused.
        max_new_tokens: of an answer.
        chat: whether the text goes through the chat template of models that have one, as the user's message.
    """

    name: ClassVar[str]
    has_documents: ClassVar[bool] = True
    max_new_tokens: ClassVar[int] = 100
    chat: ClassVar[bool] = True

    def cases(self) -> Iterator[Case]:
        """All cases, the cases of one question behind each other, always in the same order.

        Raises:
            DataError: a file is of another format; names file and line.
        """
        raise NotImplementedError

    def score(self, case: Case, prediction: str) -> float:
        """How right a prediction is, 0 to 1."""
        raise NotImplementedError

    def answers(self, lm: DebiasedLM, cases: Sequence[Case], method: Method, batch_size: int) -> list[Answer]:
        """Ask the model, greedily, in padded batches; one answer for each case."""
        outputs = lm.batch(
            [self.prompt(lm, case) for case in cases],
            documents=[case.documents or None for case in cases],
            method=method,
            batch_size=batch_size,
            max_new_tokens=self.max_new_tokens,
        )
        return [
            Answer(output.text, output.usage.prompt_tokens, output.usage.completion_tokens, output.report)
            for output in outputs
        ]

    def prompt(self, lm: DebiasedLM, case: Case) -> str:
        """The flat prompt as the model reads it."""
        if not self.chat or lm.tokenizer.chat_template is None:
            return case.text
        return lm.chat_text([{"role": "user", "content": case.text}])
