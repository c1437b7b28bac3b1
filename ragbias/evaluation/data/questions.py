"""Questions with their retrieved documents, from a file of JSON lines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ragbias.errors import DataError
from ragbias.evaluation.data.jsonl import Line, read_lines


@dataclass(frozen=True)
class Question:
    """A question.

    Attributes:
        documents: as retrieved, the best first; empty where a pipeline retrieves them.
        answers: any of them is right; empty if that is not known.
        gold: index of the document that holds the answer, counted from 0; None: not known.
    """

    question: str
    documents: tuple[str, ...] = ()
    answers: tuple[str, ...] = ()
    gold: int | None = None


def read_questions(path: Path, documents: bool = True) -> list[Question]:
    """The questions of a file: ``question``, ``documents``, and, if known, ``answer`` or ``answers`` and ``gold``.

    Args:
        documents: whether each line has at least two; if not, they are not read.

    Raises:
        DataError: a line is of another format, or the file holds none; names file and line.
    """
    return [question_of(line, documents) for line in read_lines(path)]


def question_of(line: Line, documents: bool = True) -> Question:
    """The question of one line; arguments and errors as for ``read_questions``."""
    texts = line.texts("documents") if documents else ()
    if documents and len(texts) < 2:
        raise line.error(f"{len(texts)} document has no order; give two or more")
    answers = line.texts("answers") if "answers" in line.fields else ()
    answers = (line.text("answer"),) if "answer" in line.fields else answers
    question = line.text("question")
    for name, each in (("question", [question]), ("documents", texts), ("answer", answers)):
        if not all(text.strip() for text in each):
            raise line.error(f"{name!r} holds an empty text; fill it in, or leave the line out")
    gold = line.fields.get("gold")
    if documents and gold is not None and (type(gold) is not int or not 0 <= gold < len(texts)):
        raise line.error(f"'gold' is {gold!r} with {len(texts)} documents; expected an index, counted from 0")
    return Question(question, texts, answers, gold if documents else None)


def check_equally_many(questions: Sequence[Question], told: str = "the questions") -> None:
    """Raise ``DataError`` unless all questions, named as ``told``, have one number of documents."""
    counts = sorted({len(question.documents) for question in questions})
    if len(counts) != 1:
        raise DataError(
            f"{told} have {', '.join(map(str, counts))} documents, and positions among different numbers cannot be "
            "averaged; give questions with equally many"
        )
