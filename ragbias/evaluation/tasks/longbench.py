"""The task ``longbench``: multi-document question answering of LongBench; and the base class of such tasks.

Source: Bai et al., LongBench: A Bilingual, Multitask Benchmark for Long Context Understanding, arXiv 2308.14508, prompt
and measure of the released code.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import ClassVar, Literal, NamedTuple

from pydantic import StrictBool
from pydantic.dataclasses import dataclass

from ragbias.evaluation.data.jsonl import Answers, Line, Row, numbered_lines
from ragbias.evaluation.measures.metrics import qa_f1
from ragbias.evaluation.tasks.orders import orders_of
from ragbias.evaluation.tasks.task import Case, FileTask, Words, shortened

INSTRUCTION = (
    "Answer the question based on the given passages. Only give me the answer and do not output any other words.\n\n"
)
TEMPLATE = (
    INSTRUCTION + "The following are given passages.\n{passages}\n\n" + INSTRUCTION + "Question: {question}\nAnswer:"
)
HEADER = re.compile(r"^Passage (\d+):\n", re.MULTILINE)


class Asked(NamedTuple):
    """One question of a file, with its passages in the file's order."""

    question: str
    answers: tuple[str, ...]
    passages: list[str]
    group: str = ""


@dataclass(frozen=True)
class PassagesTask(FileTask):
    """Questions over passages of which none is marked as gold; a subclass reads the files and has the prompt.

    Args:
        data, orders, limit, seed, chat: see ``FileTask``.
        shorten: words that each passage is cut to, around the first occurrence of an answer in it, else its beginning.
            None: passages are whole.
    """

    shorten: Words | None = None

    max_new_tokens = 32
    template: ClassVar[str]
    row: ClassVar[type[Row]]

    def read(self, line: Line[Row]) -> Asked:
        """The question of a line."""
        raise NotImplementedError

    def document(self, passage: str, number: int) -> str:
        """A passage in the prompt; ``number`` counts from 1."""
        return passage

    def cases(self) -> Iterator[Case]:
        for question, line in numbered_lines(self.data, self.limit, self.row):
            asked = self.read(line)
            for order, passages in enumerate(orders_of(asked.passages, self.orders, f"{self.seed} {question}")):
                documents = tuple(self.document(passage, number) for number, passage in enumerate(passages, start=1))
                yield Case(
                    id=f"{question}/{len(documents)}/-/{order}" + (f"/{self.seed}" if order else ""),
                    question=question,
                    text=self.template.format(passages="\n\n".join(documents), question=asked.question),
                    documents=documents,
                    answers=asked.answers,
                    gold_position=None,
                    order=order,
                    group=asked.group,
                    contents=tuple(passages),
                    shorten=self.shorten,
                )


class _Row(Row):
    dataset: Literal["hotpotqa", "2wikimqa", "musique", "hotpotqa_e", "2wikimqa_e", "musique_e"]
    input: str
    answers: Answers
    context: str


@dataclass(frozen=True)
class LongBench(PassagesTask):
    r"""Questions over passages from the files of ``hotpotqa``, ``2wikimqa``, ``musique``; of LongBench-E as well.

    A context is split at its lines ``Passage 1:``, ``Passage 2:`` and so on. Passages are joined by a blank line as
    they are in the files; other white space around a passage would reveal its position, and is dropped.

    Args:
        data, orders, limit, seed, shorten, chat: see ``PassagesTask``.
        indices: number the passages in their order, as the benchmark does. The numbers reveal the order, so no method
            can be invariant; False writes ``Passage:``.
    """

    indices: StrictBool = True

    name = "longbench"
    template = TEMPLATE
    row = _Row

    def read(self, line: Line[_Row]) -> Asked:  # type: ignore[override]
        row = line.row
        passages = [shortened(passage, row.answers, self.shorten) for passage in _passages(line)]
        return Asked(row.input, row.answers, passages, row.dataset)

    def document(self, passage: str, number: int) -> str:
        return f"Passage {number}:\n{passage}" if self.indices else f"Passage:\n{passage}"

    def score(self, case: Case, prediction: str) -> float:
        return qa_f1(prediction, case.answers)


def _passages(line: Line[_Row]) -> list[str]:
    """The passages of a context, without their headers; a line like a header, but of another number, splits nothing."""
    context = line.row.context
    headers: list[re.Match[str]] = []
    for match in HEADER.finditer(context):
        if int(match[1]) == len(headers) + 1:
            headers.append(match)
    if not headers or context[: headers[0].start()].strip():
        raise line.error("'context' does not begin with a line 'Passage 1:'; expected numbered passages")
    ends = [*(header.start() for header in headers[1:]), len(context)]
    passages = [context[header.end() : end].strip() for header, end in zip(headers, ends, strict=True)]
    if "" in passages:
        raise line.error(f"passage {passages.index('') + 1} of 'context' is empty; leave it out")
    return passages
