"""The task ``musique``: questions whose answer takes several passages together.

Source: Trivedi et al., MuSiQue: Multihop Questions via Single-hop Question Composition, arXiv 2108.00573; format,
prompt and measure of CacheBlend (Yao et al., arXiv 2405.16444), whose input file has 10 passages for each question.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from ragbias.evaluation.data.jsonl import Answers, Filled, Line, Row
from ragbias.evaluation.measures.metrics import best_subspan_em, qa_f1
from ragbias.evaluation.tasks.longbench import Asked, PassagesTask
from ragbias.evaluation.tasks.task import Case, shortened

TEMPLATE = (
    "You will be asked a question after reading several passages. Please directly answer the question based on the "
    "given passages. Do NOT repeat the question. The answer should be within 5 words.\nPassages:\n\n{passages}\n\n"
    "Answer the question directly based on the given passages. Do NOT repeat the question. The answer should be within "
    "5 words.\nQuestion: {question}\nAnswer:"
)


class _Passage(Row):
    title: str
    text: Filled


class _Row(Row):
    question: str
    answers: Answers
    ctxs: Annotated[tuple[_Passage, ...], Field(min_length=1)]


@dataclass(frozen=True)
class MuSiQue(PassagesTask):
    """Multi-hop questions over passages without numbers.

    With ``shorten``, the passages that lead to the answer do not hold it, so they may lose the needed part.

    Args:
        data: files with ``question``, ``answers`` and ``ctxs`` (``title``, ``text``): one list, or an object per line.
        orders, limit, seed, shorten, chat: see ``PassagesTask``.
        metric: ``"f1"`` of the words, as in the source, or ``"subspan-em"``: whether the answer is in the first line.
    """

    metric: Literal["f1", "subspan-em"] = "f1"

    name = "musique"
    template = TEMPLATE
    row = _Row

    def read(self, line: Line[_Row]) -> Asked:  # type: ignore[override]
        row, passages = line.row, []
        for each in row.ctxs:
            title, text = each.title.strip(), shortened(each.text.strip(), row.answers, self.shorten)
            passages.append(f"{title}\n\n{text}" if title else text)
        return Asked(row.question, row.answers, passages)

    def score(self, case: Case, prediction: str) -> float:
        return (qa_f1 if self.metric == "f1" else best_subspan_em)(prediction, case.answers)
