"""Questions with their retrieved documents, from a file of JSON lines, and the score of their answers."""

from __future__ import annotations

import re
import string
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ragbias.data.jsonl import Line, NonBlank, Row, read_lines

ARTICLES = re.compile(r"\b(?:a|an|the)\b")
PUNCTUATION = str.maketrans("", "", string.punctuation)


@dataclass(frozen=True)
class Question:
    """A question, with retrieved documents and accepted answers if they are known."""

    question: str
    documents: tuple[str, ...] = ()  # best first; empty if a pipeline retrieves them
    answers: tuple[str, ...] = ()
    gold: int | None = None  # index of the document with the answer, counted from 0


class _QuestionRow(Row):
    question: NonBlank
    answer: NonBlank | None = None
    answers: tuple[NonBlank, ...] = ()


class _DocumentsRow(_QuestionRow):
    documents: tuple[NonBlank, ...]
    gold: int | None = None


def read_questions(path: Path, documents: bool = True, labelled: bool = False) -> list[Question]:
    """Read questions from JSON lines with ``question``, ``documents``, ``gold``, and ``answer`` or ``answers``.

    ``labelled=True`` requires an answer and ``gold``; otherwise they are optional. By default, each line needs at
    least two documents. With ``documents=False``, the fields ``documents`` and ``gold`` are ignored.
    """
    if not documents:
        return [Question(line.row.question, (), _answers(line.row)) for line in read_lines(path, _QuestionRow)]
    return [_question(line, labelled) for line in read_lines(path, _DocumentsRow)]


def _question(line: Line[_DocumentsRow], labelled: bool) -> Question:
    row = line.row
    if len(row.documents) < 2:
        raise line.error(f"{len(row.documents)} document; give two or more, so that their order can change")
    if row.gold is not None and not 0 <= row.gold < len(row.documents):
        raise line.error(f"'gold' is {row.gold} with {len(row.documents)} documents; expected an index, counted from 0")
    answers = _answers(row)
    if labelled and (not answers or row.gold is None):
        missing = "gold" if answers else "answer"
        raise line.error(
            f"no {missing!r}; each line needs question (text), documents (list of texts), answer (text), gold (index "
            "of the document that contains the answer)"
        )
    return Question(row.question, row.documents, answers, row.gold)


def _answers(row: _QuestionRow) -> tuple[str, ...]:
    return row.answers if row.answer is None else (row.answer,)


def normalise_squad(text: str) -> str:
    """Normalise as in SQuAD's evaluation: lower case, single spaces, no ASCII punctuation and no articles."""
    return " ".join(ARTICLES.sub(" ", text.lower().translate(PUNCTUATION)).split())


def best_subspan_em(prediction: str, answers: Sequence[str]) -> float:
    """Return 1 if the prediction's first line contains an answer, both normalised, else 0. From Lost in the Middle."""
    words = normalise_squad(prediction.split("\n")[0])
    return float(any(normalise_squad(answer) in words for answer in answers))
