"""The task ``longbench``: multi-document question answering of LongBench.

Source: Bai et al., LongBench: A Bilingual, Multitask Benchmark for Long Context Understanding, arXiv 2308.14508, prompt
and measure of the released code.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ragbias.evaluation.data.jsonl import Line, numbered_lines
from ragbias.evaluation.measures.metrics import qa_f1
from ragbias.evaluation.tasks.orders import orders_of
from ragbias.evaluation.tasks.shortening import shortened
from ragbias.evaluation.tasks.task import Case, Task

DATASETS = ("hotpotqa", "2wikimqa", "musique")
INSTRUCTION = (
    "Answer the question based on the given passages. Only give me the answer and do not output any other words.\n\n"
)
TEMPLATE = INSTRUCTION + "The following are given passages.\n{context}\n\n" + INSTRUCTION + "Question: {input}\nAnswer:"
HEADER = re.compile(r"^Passage (\d+):\n", re.MULTILINE)
SEPARATOR = "\n\n"


@dataclass(frozen=True)
class LongBench(Task):
    r"""Questions over passages, none of them marked as gold, from the files of ``hotpotqa``, ``2wikimqa``, ``musique``.

    A context is split at its lines ``Passage 1:``, ``Passage 2:`` and so on. Passages are joined by a blank line as
    they are in the files; other white space around a passage would tell its position, and is dropped.

    Args:
        data: ``.jsonl`` files of the benchmark; the ones of ``LongBench-E`` have another name (``hotpotqa_e``) and the
            same format.
        orders: number of orders of the passages, the first as in the file.
        limit: number of questions of each file, the first ones; default: all.
        seed: for the other orders.
        indices: number the passages in their order, as the benchmark does. The numbers tell the
            order, so no method can be invariant; False writes ``Passage:``.
        shorten: words that each passage is cut to, around the first occurrence of an answer in it, else its beginning.
            None: passages are whole.
        chat: give the prompt as the user's message to models that have a chat template; False: the bare text.
    """

    data: tuple[Path, ...]
    orders: int = 1
    limit: int | None = None
    seed: int = 0
    indices: bool = True
    shorten: int | None = None
    chat: bool = True

    name = "longbench"
    max_new_tokens = 32

    def cases(self) -> Iterator[Case]:
        for question, line in numbered_lines(self.data, self.limit):
            yield from self._cases_of(line, question)

    def score(self, case: Case, prediction: str) -> float:
        return qa_f1(prediction, case.answers)

    def _cases_of(self, line: Line, question: str) -> Iterator[Case]:
        dataset, asked, answers = _dataset(line), line.text("input"), line.answers()
        passages = [shortened(passage, answers, self.shorten) for passage in _passages(line)]
        for order, arranged in enumerate(orders_of(passages, self.orders, f"{self.seed} {question}")):
            documents = [
                f"Passage {number}:\n{passage}" if self.indices else f"Passage:\n{passage}"
                for number, passage in enumerate(arranged, start=1)
            ]
            yield Case(
                id=f"{question}/{len(documents)}/-/{order}" + (f"/{self.seed}" if order else ""),
                question=question,
                text=TEMPLATE.format(context=SEPARATOR.join(documents), input=asked),
                documents=tuple(documents),
                answers=answers,
                gold_position=None,
                order=order,
                group=dataset,
                contents=tuple(arranged),
                shorten=self.shorten,
            )


def _dataset(line: Line) -> str:
    dataset = line.text("dataset")
    if dataset.removesuffix("_e") not in DATASETS:
        raise line.error(f"dataset {dataset!r} is not supported; supported are {', '.join(DATASETS)}")
    return dataset


def _passages(line: Line) -> list[str]:
    """The passages of a context, without their headers; a line like a header, but of another number, splits nothing."""
    context = line.text("context")
    headers: list[re.Match[str]] = []
    for match in HEADER.finditer(context):
        if int(match[1]) == len(headers) + 1:
            headers.append(match)
    if not headers or context[: headers[0].start()].strip():
        raise line.error("'context' does not begin with a line 'Passage 1:'; expected numbered passages")
    ends = [*(header.start() for header in headers[1:]), len(context)]
    passages = [context[header.end() : end].strip() for header, end in zip(headers, ends, strict=True)]
    for number, passage in enumerate(passages, start=1):
        if not passage:
            raise line.error(f"passage {number} of 'context' is empty; leave it out")
    return passages
