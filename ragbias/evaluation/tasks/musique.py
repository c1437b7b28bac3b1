"""The task ``musique``: questions whose answer takes several passages together.

Source: Trivedi et al., MuSiQue: Multihop Questions via Single-hop Question Composition, arXiv 2108.00573; format,
prompt and measure of CacheBlend (Yao et al., arXiv 2405.16444), whose input file has 10 passages for each question.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ragbias.display import shown
from ragbias.errors import RunError
from ragbias.evaluation.data.jsonl import Line, numbered_lines
from ragbias.evaluation.measures.metrics import best_subspan_em, qa_f1
from ragbias.evaluation.tasks.orders import orders_of
from ragbias.evaluation.tasks.shortening import shortened
from ragbias.evaluation.tasks.task import Case, Task

TEMPLATE = (
    "You will be asked a question after reading several passages. Please directly answer the question based on the "
    "given passages. Do NOT repeat the question. The answer should be within 5 words.\nPassages:\n\n{passages}\n\n"
    "Answer the question directly based on the given passages. Do NOT repeat the question. The answer should be within "
    "5 words.\nQuestion: {question}\nAnswer:"
)
METRICS = {"f1": qa_f1, "subspan-em": best_subspan_em}


@dataclass(frozen=True)
class MuSiQue(Task):
    """Multi-hop questions over passages, none of them marked as gold and none numbered.

    Args:
        data: files with ``question``, ``answers`` and ``ctxs`` (``title``, ``text``): one list, or an object per line.
        orders: number of orders of the passages, the first as in the file.
        limit: number of questions of each file, the first ones; default: all.
        seed: for the other orders.
        shorten: words that each passage is cut to, around the first occurrence of an answer in it, else its beginning.
            The passages that lead to the answer do not hold it, so this makes questions harder, or keeps what is
            needed out. None: passages are whole.
        metric: ``"f1"`` of the words, as the source has it, or ``"subspan-em"``: whether the answer is in the first
            line.
        chat: give the prompt as the user's message to models that have a chat template; False: the bare text.
    """

    data: tuple[Path, ...]
    orders: int = 1
    limit: int | None = None
    seed: int = 0
    shorten: int | None = None
    metric: str = "f1"
    chat: bool = True

    name = "musique"
    max_new_tokens = 32

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.metric not in METRICS:
            raise RunError(f"musique: metric={shown(self.metric)}; expected {' or '.join(map(repr, METRICS))}")

    def cases(self) -> Iterator[Case]:
        for question, line in numbered_lines(self.data, self.limit):
            yield from self._cases_of(line, question)

    def score(self, case: Case, prediction: str) -> float:
        return METRICS[self.metric](prediction, case.answers)

    def _cases_of(self, line: Line, question: str) -> Iterator[Case]:
        asked, answers = line.text("question"), line.answers()
        passages = [self._passage(context, answers) for context in line.objects("ctxs")]
        for order, arranged in enumerate(orders_of(passages, self.orders, f"{self.seed} {question}")):
            yield Case(
                id=f"{question}/{len(arranged)}/-/{order}" + (f"/{self.seed}" if order else ""),
                question=question,
                text=TEMPLATE.format(passages="\n\n".join(arranged), question=asked),
                documents=tuple(arranged),
                answers=answers,
                gold_position=None,
                order=order,
                shorten=self.shorten,
            )

    def _passage(self, context: Line, answers: tuple[str, ...]) -> str:
        title, text = context.text("title").strip(), context.text("text").strip()
        if not text:
            raise context.error("'text' is empty; leave the passage out")
        text = shortened(text, answers, self.shorten)
        return f"{title}\n\n{text}" if title else text
