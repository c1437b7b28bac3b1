"""The task ``mdqa``: the multi-document question answering of Lost in the Middle.

Source: Liu et al., Lost in the Middle: How Language Models Use Long Contexts, arXiv 2307.03172. Prompt and
measure are from the released code.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import islice
from typing import Annotated

from pydantic import Field, StrictBool
from pydantic.dataclasses import dataclass

from ragbias.data.jsonl import Answers, Line, Row, numbered_lines
from ragbias.data.questions import best_subspan_em, normalise_squad
from ragbias.errors import RunError
from ragbias_eval.tasks.task import (
    Case,
    Documents,
    FileTask,
    Positions,
    Words,
    cut_around_answer,
    place_gold,
    spread_positions,
)

TEMPLATE = (
    "Write a high-quality answer for the given question using only the provided search results (some of which might be "
    "irrelevant).\n\n{search_results}\n\nQuestion: {question}\nAnswer:"
)
DRAWN_DOCUMENTS = (10, 20)
DRAWN_POSITIONS = 5


class Passage(Row):
    title: str
    text: str
    isgold: bool

    def shortened(self, answers: Sequence[str], words: int | None) -> Passage:
        """Return the passage with at most ``words`` words, see ``task.cut_around_answer``."""
        return self.model_copy(update={"text": cut_around_answer(self.text, answers, words)})

    def document(self, number: int | None = None) -> str:
        """Format the passage for a prompt. ``number`` is counted from 1; None omits it."""
        index = "" if number is None else f"[{number}]"
        return f"Document {index}(Title: {self.title}) {self.text}"


class MdqaRow(Row):
    question: str
    answers: Answers
    ctxs: Annotated[tuple[Passage, ...], Field(min_length=1)]

    @property
    def gold(self) -> int:
        return [context.isgold for context in self.ctxs].index(True)

    @cached_property
    def id(self) -> str:
        """Id of the question, independent of the order of the passages."""
        passages = sorted((passage.title, passage.text) for passage in self.ctxs)
        content = "\0".join((self.question, *(part for passage in passages for part in passage)))
        return hashlib.sha256(content.encode()).hexdigest()[:12]


_Question = tuple[str, Line[MdqaRow]]  # file name and number of the line, and the line


@dataclass(frozen=True)
class MultiDocumentQA(FileTask):
    """Questions with one gold document among distractors, from the official files.

    - ``nq-open-{10,20,30}_total_documents_gold_at_{i}.jsonl.gz``: the file lists the distractors. Files that differ
      only in ``i`` have the same questions. Cases with the same documents in the same order run once.
    - ``nq-open-oracle.jsonl.gz``: each line has only a gold document. The distractors are gold documents of other
      questions, drawn with the seed. Their titles differ from the gold document's, and they contain no answer as whole
      words (normalised as in the measure). They are easier to rule out than the official distractors, which were
      retrieved for the question. Prompts with 20 documents include the distractors of prompts with 10.

    Args:
        data: files of one of the two kinds.
        limit: maximum number of questions in all files together.
        documents: numbers of documents. Default: as in the file, or 10 and 20 for the oracle file.
        positions: positions of the gold document, counted from 0. Default: as in the file, or five evenly spread
            positions for the oracle file.
        indices: number the documents, as in the official prompt. The numbers reveal the order, so no method is
            order-invariant. False: write ``Document (Title: ...)``.
        shorten: maximum number of words of a passage, see ``task.cut_around_answer``.
    """

    documents: Documents | None = None
    positions: Positions | None = None
    indices: StrictBool = True
    shorten: Words | None = None

    name = "mdqa"

    def cases(self) -> Iterator[Case]:
        questions: dict[str, list[_Question]] = {}
        for name, line in numbered_lines(self.data, None, MdqaRow):
            gold = sum(context.isgold for context in line.row.ctxs)
            if gold != 1:
                raise line.error(f"{gold} documents in 'ctxs' have \"isgold\": true; expected one")
            questions.setdefault(line.row.question, []).append((name, line))
        pool = _distractor_pool([line for same in questions.values() for _, line in same])
        for same in islice(questions.values(), self.limit):
            seen = set()
            for question in same:
                for case in self._cases_of(question, pool):
                    arrangement = (case.question, case.documents)
                    if arrangement not in seen:
                        seen.add(arrangement)
                        yield case

    def score(self, case: Case, prediction: str) -> float:
        return best_subspan_em(prediction, case.answers)

    def _cases_of(self, question: _Question, pool: dict[Passage, str]) -> Iterator[Case]:
        name, line = question
        row = line.row
        for others in self._distractors(line, pool):
            count = len(others) + 1
            positions = self.positions or (spread_positions(count, DRAWN_POSITIONS) if pool else [row.gold])
            gold = row.ctxs[row.gold]
            for passages, position, order in place_gold(gold, others, positions, self.orders, f"{self.seed} {row.id}"):
                cut = [passage.shortened(row.answers, self.shorten) for passage in passages]
                documents = [part.document(number if self.indices else None) for number, part in enumerate(cut, 1)]
                suffix = f"/{self.seed}" if pool or order else ""
                yield Case(
                    id=f"{name}/{count}/{position}/{order}{suffix}",
                    question=row.id,
                    text=TEMPLATE.format(search_results="\n".join(documents), question=row.question),
                    documents=tuple(documents),
                    answers=row.answers,
                    gold_position=position,
                    order=order,
                    seed=self.seed if pool else 0,
                    contents=tuple(f"{part.title}\n{part.text}" for part in cut),
                    shorten=self.shorten,
                )

    def _distractors(self, line: Line[MdqaRow], pool: dict[Passage, str]) -> Iterator[list[Passage]]:
        if pool:
            for count in self.documents or DRAWN_DOCUMENTS:
                yield self._draw_distractors(line, pool, count - 1)
            return
        count = len(line.row.ctxs)
        if self.documents is not None and count not in self.documents:
            raise line.error(
                f"{count} documents, but documents={', '.join(map(str, self.documents))}; an official file has a "
                "fixed number of documents: give a file with one of these numbers, or the oracle file"
            )
        yield [passage for passage in line.row.ctxs if not passage.isgold]

    def _draw_distractors(self, line: Line[MdqaRow], pool: dict[Passage, str], count: int) -> list[Passage]:
        gold = line.row.ctxs[line.row.gold]
        answers = [f" {answer} " for answer in map(normalise_squad, line.row.answers) if answer]
        rng = random.Random(f"distractors {self.seed} {line.row.id}")
        others = (passage for passage in rng.sample(list(pool), len(pool)) if passage.title != gold.title)
        candidates = (passage for passage in others if not any(answer in pool[passage] for answer in answers))
        distractors = list(islice(candidates, count))
        if len(distractors) < count:
            raise RunError(
                f"documents={count + 1}, but {line.where}, has {len(distractors)} distractors in its file; use at most "
                f"{len(distractors) + 1} documents"
            )
        return distractors


def _distractor_pool(lines: Sequence[Line[MdqaRow]]) -> dict[Passage, str]:
    """Map the passages of an oracle file to their normalised texts. Return an empty dict for other files."""
    single = [line for line in lines if len(line.row.ctxs) == 1]
    if single and len(single) < len(lines):
        raise single[0].error(
            "one document, but other lines have several; give either the oracle file or files with distractors"
        )
    passages = [passage for line in single for passage in line.row.ctxs]
    return {passage: f" {normalise_squad(f'{passage.title} {passage.text}')} " for passage in passages}
