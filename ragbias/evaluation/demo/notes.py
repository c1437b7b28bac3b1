"""Thirty short notes, and questions about them as a task.

The notes (``notes.jsonl``, CC0) are made up, so that a model must read them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import resources

from ragbias.evaluation.measures.metrics import best_subspan_em
from ragbias.evaluation.prompts.stock_prompt import stock_prompt
from ragbias.evaluation.tasks.orders import arranged
from ragbias.evaluation.tasks.task import Case, Task
from ragbias.lm import DebiasedLM


@dataclass(frozen=True)
class Note:
    """A text, a question that it answers, how the answer begins, and the words that it goes on with."""

    title: str
    text: str
    question: str
    begin: str
    answer: str

    @property
    def document(self) -> str:
        return f"{self.title}\n{self.text}"


def notes() -> list[Note]:
    """All notes."""
    lines = (resources.files(__package__) / "notes.jsonl").read_text(encoding="utf-8").splitlines()
    return [Note(**json.loads(line)) for line in lines]


@dataclass(frozen=True)
class NotesQA(Task):
    """Questions about notes in the stock prompt, the gold note at each position among the nearest others.

    The answer is begun already: a model that likes whole sentences gives a bare word no probability.
    """

    lm: DebiasedLM
    asked: Sequence[Note]
    others: Sequence[Sequence[str]]
    positions: Sequence[int]

    name = "notes"
    max_new_tokens = 8
    chat = False  # the stock prompt is in the chat template already

    def cases(self) -> Iterator[Case]:
        for index, (note, others) in enumerate(zip(self.asked, self.others, strict=True)):
            question = f"{index:06}"
            for documents, position, _ in arranged(note.document, others, self.positions, 1, question):
                prompt = stock_prompt(self.lm, documents, note.question)
                yield Case(
                    id=f"{question}/{position}",
                    question=question,
                    text=prompt + self.continuation(prompt, note.begin),
                    documents=tuple(documents),
                    answers=(note.answer,),
                    gold_position=position,
                )

    def score(self, case: Case, prediction: str) -> float:
        return best_subspan_em(prediction, case.answers)
