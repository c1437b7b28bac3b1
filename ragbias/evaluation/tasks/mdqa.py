"""The task ``mdqa``: multi-document question answering of lost-in-the-middle.

Source: Liu et al., Lost in the Middle: How Language Models Use Long Contexts, arXiv 2307.03172, prompt and measure of
the released code.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from ragbias.errors import RunError
from ragbias.evaluation.data.jsonl import Line, read_lines, sources
from ragbias.evaluation.measures.metrics import best_subspan_em, squad_normalised
from ragbias.evaluation.tasks.orders import arranged, evenly_spread
from ragbias.evaluation.tasks.shortening import shortened
from ragbias.evaluation.tasks.task import Case, Task

TEMPLATE = (
    "Write a high-quality answer for the given question using only the provided search results (some of which might be "
    "irrelevant).\n\n{search_results}\n\nQuestion: {question}\nAnswer:"
)
DRAWN_DOCUMENTS = (10, 20)
DRAWN_POSITIONS = 5


class _Passage(NamedTuple):
    title: str
    text: str


@dataclass(frozen=True)
class _Example:
    source: str
    line: Line
    question: str
    answers: tuple[str, ...]
    passages: list[_Passage]
    gold: int

    @property
    def others(self) -> list[_Passage]:
        return self.passages[: self.gold] + self.passages[self.gold + 1 :]

    @property
    def id(self) -> str:
        """The same for files that differ in nothing but the order of the passages."""
        content = "\0".join((self.question, *(part for passage in sorted(self.passages) for part in passage)))
        return hashlib.sha256(content.encode()).hexdigest()[:12]


@dataclass(frozen=True)
class MultiDocumentQA(Task):
    """Questions with one gold document among distractors, from the official files.

    - ``nq-open-{10,20,30}_total_documents_gold_at_{i}.jsonl.gz``: documents as in the file. Files that differ in
      nothing but the gold document's position hold the same questions, and give each arrangement once.
    - ``nq-open-oracle.jsonl.gz``, where each line has its gold document alone: distractors are gold documents of other
      questions, drawn with the seed. None has the title of the question's own, or holds one of its answers as whole
      words (normalised as by the measure), so no distractor is right. They are easier to tell apart than the official
      ones, which were retrieved for the question. The first distractors of 20 documents are those of 10.

    Args:
        data: files of one of the two kinds.
        documents: numbers of documents; default: as in the file, or 10 and 20 for the oracle file.
        positions: of the gold document, counted from 0; default: as in the file, or five, evenly spread, for the
            oracle file.
        orders: number of orders of the distractors, for each position of the gold document.
        limit: number of questions, the first ones; default: all.
        seed: for distractors that are drawn, and for orders other than the first.
        indices: number the documents as the official prompt does. The numbers tell their order, so no method can be
            invariant; False writes ``Document (Title: ...)``.
        shorten: words that each passage is cut to, around the first occurrence of an answer in it, else its beginning;
            titles stay. None: passages are whole.
        chat: give the prompt as the user's message to models that have a chat template; False: the bare text.
    """

    data: tuple[Path, ...]
    documents: tuple[int, ...] | None = None
    positions: tuple[int, ...] | None = None
    orders: int = 1
    limit: int | None = None
    seed: int = 0
    indices: bool = True
    shorten: int | None = None
    chat: bool = True

    name = "mdqa"

    def cases(self) -> Iterator[Case]:
        questions: dict[str, list[_Example]] = {}
        for source, path in sources(self.data).items():
            for line in read_lines(path):
                example = _example(source, line)
                questions.setdefault(example.question, []).append(example)
        pool = _pool([example for examples in questions.values() for example in examples])
        for examples in islice(questions.values(), self.limit):
            given = set()
            for case in (case for example in examples for case in self._cases_of(example, pool)):
                arrangement = case.question, case.documents
                if arrangement not in given:
                    given.add(arrangement)
                    yield case

    def score(self, case: Case, prediction: str) -> float:
        return best_subspan_em(prediction, case.answers)

    def _cases_of(self, example: _Example, pool: dict[_Passage, str]) -> Iterator[Case]:
        for others in self._distractors(example, pool):
            count = len(others) + 1
            default = evenly_spread(count, DRAWN_POSITIONS) if pool else [example.gold]
            positions = default if self.positions is None else self.positions
            gold, key = example.passages[example.gold], f"{self.seed} {example.id}"
            for passages, position, order in arranged(gold, others, positions, self.orders, key):
                cut = [_Passage(title, shortened(text, example.answers, self.shorten)) for title, text in passages]
                documents = [
                    document_text(*passage, number if self.indices else None)
                    for number, passage in enumerate(cut, start=1)
                ]
                yield Case(
                    id=f"{example.source}/{example.line.number}/{count}/{position}/{order}"
                    + (f"/{self.seed}" if pool or order else ""),
                    question=example.id,
                    text=TEMPLATE.format(search_results="\n".join(documents), question=example.question),
                    documents=tuple(documents),
                    answers=example.answers,
                    gold_position=position,
                    order=order,
                    seed=self.seed if pool else 0,
                    contents=tuple(map("\n".join, cut)),
                    shorten=self.shorten,
                )

    def _distractors(self, example: _Example, pool: dict[_Passage, str]) -> Iterator[list[_Passage]]:
        """The other documents, for each number of documents."""
        if pool:
            for count in self.documents or DRAWN_DOCUMENTS:
                yield self._drawn(example, pool, count - 1)
            return
        count = len(example.passages)
        if self.documents is not None and count not in self.documents:
            wanted = ", ".join(map(str, self.documents))
            raise example.line.error(
                f"{count} documents, but documents={wanted} is asked for; official files have a fixed number, "
                "so give those of that number, or the oracle file"
            )
        yield example.others

    def _drawn(self, example: _Example, pool: dict[_Passage, str], count: int) -> list[_Passage]:
        own = example.passages[example.gold]
        answers = [f" {answer} " for answer in map(squad_normalised, example.answers) if answer]
        rng = random.Random(f"distractors {self.seed} {example.id}")
        candidates = (
            passage
            for passage in rng.sample(list(pool), len(pool))
            if passage.title != own.title and not any(answer in pool[passage] for answer in answers)
        )
        found = list(islice(candidates, count))
        if len(found) < count:
            raise RunError(
                f"documents={count + 1}, but {example.line.path} has {len(found)} distractors for line "
                f"{example.line.number}; ask for at most {len(found) + 1} documents"
            )
        return found


def document_text(title: str, text: str, number: int | None = None) -> str:
    """A passage as prompts have it, with its number, counted from 1, or without."""
    index = "" if number is None else f"[{number}]"
    return f"Document {index}(Title: {title}) {text}"


def _example(source: str, line: Line) -> _Example:
    contexts = line.objects("ctxs")
    gold = [index for index, context in enumerate(contexts) if context.flag("isgold")]
    if len(gold) != 1:
        raise line.error(f"{len(gold)} documents in 'ctxs' have \"isgold\": true; expected one")
    passages = [_Passage(context.text("title"), context.text("text")) for context in contexts]
    return _Example(source, line, line.text("question"), line.answers(), passages, gold[0])


def _pool(examples: Sequence[_Example]) -> dict[_Passage, str]:
    """The gold passages with their normalised texts between blanks, if that is all the files hold; else nothing.

    Raises:
        DataError: it is all that some of the lines hold.
    """
    alone = [example for example in examples if len(example.passages) == 1]
    if alone and len(alone) < len(examples):
        raise alone[0].line.error(
            "one document, but other lines have several; give either the oracle file or files with distractors"
        )
    return {passage: f" {squad_normalised(' '.join(passage))} " for example in alone for passage in example.passages}
