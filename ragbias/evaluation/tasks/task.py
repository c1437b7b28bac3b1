"""The base class of the bench's tasks: its cases, how a model answers them, and how an answer is scored."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from ragbias.evaluation.tasks.field_checks import check_fields
from ragbias.generation.report import Generation, Report
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
        documents: verbatim parts of ``text``, in its order.
        answers: any of them is right.
        gold_position: of the gold document, counted from 0; None: there is none.
        order: 0 for the documents as the data gives them (the gold one moved to its position), k for the k-th shuffle.
        seed: what drew the documents; 0 where the data gives them, also if it shuffled them.
        group: part of the task that it belongs to, e.g. a subset of RewardBench.
        contents: the documents without their numbers, which change with the order; empty where they have none.
        shorten: words that a passage was cut to, around the answer; None: passages are whole.
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
    shorten: int | None = None


@dataclass(frozen=True)
class Answer:
    """A model's answer to a case; ``prediction`` is what ``Task.score`` reads."""

    prediction: str
    prompt_tokens: int
    completion_tokens: int
    report: Report

    @classmethod
    def of(cls, prediction: str, output: Generation) -> Answer:
        return cls(prediction, output.usage.prompt_tokens, output.usage.completion_tokens, output.report)


@dataclass(frozen=True)
class Task:
    """A task; a subclass is a frozen dataclass with the data's files and the choice of cases as fields.

    Raises:
        RunError: a field that tasks share is out of range (see ``field_checks``).

    Attributes:
        name: as typed in ``--task``.
        max_new_tokens: of an answer.
        before_answer: what a model writes before its answer, where the prompt does not end with white space.
    """

    name: ClassVar[str]
    max_new_tokens: ClassVar[int] = 100
    before_answer: ClassVar[str] = " "

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def chat(self) -> bool:
        """Whether the text goes through the chat template of models that have one, as the user's message.

        A task that can do without has a field of this name.
        """
        return True

    @property
    def answers_at_once(self) -> bool:
        """Whether a gold answer can follow the prompt at once, as its log-probability takes it."""
        return True

    def cases(self) -> Iterator[Case]:
        """All cases, those of one question next to each other, always in the same order.

        Raises:
            DataError: a file is of another format; names file and line.
        """
        raise NotImplementedError

    def score(self, case: Case, prediction: str) -> float:
        """How right a prediction is, 0 to 1."""
        raise NotImplementedError

    def answers(self, lm: DebiasedLM, cases: Sequence[Case], method: Method, batch_size: int) -> list[Answer]:
        """Ask the model, greedily, in padded batches; one answer for each case."""
        outputs = self.outputs(lm, cases, method, batch_size, max_new_tokens=self.max_new_tokens)
        return [Answer.of(output.text, output) for output in outputs]

    def outputs(
        self, lm: DebiasedLM, cases: Sequence[Case], method: Method, batch_size: int, **decoding: Any
    ) -> list[Generation]:
        """What the model generates for each case; ``decoding`` goes to ``DebiasedLM.batch``."""
        return lm.batch(
            [self.prompt(lm, case) for case in cases],
            documents=[case.documents for case in cases],
            method=method,
            batch_size=batch_size,
            **decoding,
        )

    def continuations(self, prompt: str, case: Case) -> list[str]:
        """The gold answers as they follow the prompt, for their log-probability."""
        return [self.continuation(prompt, answer) for answer in case.answers]

    def continuation(self, prompt: str, text: str) -> str:
        """A text as it follows the prompt."""
        return text if prompt[-1:].isspace() else self.before_answer + text

    def prompt(self, lm: DebiasedLM, case: Case) -> str:
        """The flat prompt as the model reads it."""
        if not self.chat or lm.tokenizer.chat_template is None:
            return case.text
        return lm.chat_text([{"role": "user", "content": case.text}])
