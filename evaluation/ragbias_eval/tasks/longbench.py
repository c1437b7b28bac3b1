"""The tasks ``longbench`` and ``musique``: questions about several passages, without gold labels.

Sources: Bai et al., LongBench: A Bilingual, Multitask Benchmark for Long Context Understanding, arXiv 2308.14508, with
prompt and measure from the released code. Trivedi et al., MuSiQue: Multihop Questions via Single-hop Question
Composition, arXiv 2108.00573, with format, prompt and measure from CacheBlend (Yao et al., arXiv 2405.16444).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from pydantic import Field, StrictBool
from pydantic.dataclasses import dataclass

from ragbias.data.jsonl import Answers, Line, NonBlank, Row, numbered_lines
from ragbias.data.questions import best_subspan_em
from ragbias_eval.metrics import qa_f1
from ragbias_eval.tasks.task import Case, FileTask, Words, cut_around_answer, draw_orders

INSTRUCTION = (
    "Answer the question based on the given passages. Only give me the answer and do not output any other words.\n\n"
)
TEMPLATE = (
    INSTRUCTION + "The following are given passages.\n{passages}\n\n" + INSTRUCTION + "Question: {question}\nAnswer:"
)
MUSIQUE = (
    "You will be asked a question after reading several passages. Please directly answer the question based on the "
    "given passages. Do NOT repeat the question. The answer should be within 5 words.\nPassages:\n\n{passages}\n\n"
    "Answer the question directly based on the given passages. Do NOT repeat the question. The answer should be within "
    "5 words.\nQuestion: {question}\nAnswer:"
)
HEADER = re.compile(r"^Passage (\d+):\n", re.MULTILINE)


class PassagesQuestion(NamedTuple):
    question: str
    answers: tuple[str, ...]
    passages: list[str]
    group: str = ""


@dataclass(frozen=True)
class PassagesTask(FileTask):
    """Base class for questions about passages without gold labels. Subclasses read the files and define the prompt."""

    shorten: Words | None = None  # maximum number of words of a passage, see ``cut_around_answer``

    max_new_tokens = 32
    template: ClassVar[str]
    row: ClassVar[type[Row]]

    def read(self, line: Line[Any]) -> PassagesQuestion:
        raise NotImplementedError

    def document(self, passage: str, number: int) -> str:
        """Format a passage for the prompt. ``number`` is counted from 1."""
        return passage

    def cases(self) -> Iterator[Case]:
        for question, line in numbered_lines(self.data, self.limit, self.row):
            parsed = self.read(line)
            for order, passages in enumerate(draw_orders(parsed.passages, self.orders, f"{self.seed} {question}")):
                documents = tuple(self.document(passage, number) for number, passage in enumerate(passages, start=1))
                suffix = f"/{self.seed}" if order else ""
                yield Case(
                    id=f"{question}/{len(documents)}/-/{order}{suffix}",
                    question=question,
                    text=self.template.format(passages="\n\n".join(documents), question=parsed.question),
                    documents=documents,
                    answers=parsed.answers,
                    gold_position=None,
                    order=order,
                    group=parsed.group,
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
    r"""Questions about passages from LongBench's and LongBench-E's ``hotpotqa``, ``2wikimqa`` and ``musique``.

    A context is split at its lines ``Passage 1:``, ``Passage 2:`` and so on. A blank line separates passages in the
    prompt. Other white space around passages is removed, because it would reveal their positions.

    Args:
        indices: number the passages, as in the benchmark. Numbers reveal the order, so no method is order-invariant.
            False: write ``Passage:`` without a number.
    """

    indices: StrictBool = True

    name = "longbench"
    template = TEMPLATE
    row = _Row

    def read(self, line: Line[Any]) -> PassagesQuestion:
        row = line.row
        passages = [cut_around_answer(passage, row.answers, self.shorten) for passage in _split_passages(line)]
        return PassagesQuestion(row.input, row.answers, passages, row.dataset)

    def document(self, passage: str, number: int) -> str:
        return f"Passage {number}:\n{passage}" if self.indices else f"Passage:\n{passage}"

    def score(self, case: Case, prediction: str) -> float:
        return qa_f1(prediction, case.answers)


def _split_passages(line: Line[_Row]) -> list[str]:
    """Split a context at its headers ``Passage 1:``, ``Passage 2:`` and so on. Ignore headers out of sequence."""
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


class _Passage(Row):
    title: str
    text: NonBlank


class _MusiqueRow(Row):
    question: str
    answers: Answers
    ctxs: Annotated[tuple[_Passage, ...], Field(min_length=1)]


@dataclass(frozen=True)
class MuSiQue(PassagesTask):
    """Multi-hop questions over passages without numbers.

    ``shorten`` keeps the words around the answer. A passage that is needed but does not contain the answer may lose its
    relevant part.

    Args:
        data: files with ``question``, ``answers`` and ``ctxs`` (``title``, ``text``): one list, or an object per line.
        metric: ``"f1"`` of words, as in the source, or ``"subspan-em"``: whether the first line contains the answer.
    """

    metric: Literal["f1", "subspan-em"] = "f1"

    name = "musique"
    template = MUSIQUE
    row = _MusiqueRow

    def read(self, line: Line[Any]) -> PassagesQuestion:
        row = line.row
        passages = []
        for passage in row.ctxs:
            title = passage.title.strip()
            text = cut_around_answer(passage.text.strip(), row.answers, self.shorten)
            passages.append(f"{title}\n\n{text}" if title else text)
        return PassagesQuestion(row.question, row.answers, passages)

    def score(self, case: Case, prediction: str) -> float:
        metric = qa_f1 if self.metric == "f1" else best_subspan_em
        return metric(prediction, case.answers)
