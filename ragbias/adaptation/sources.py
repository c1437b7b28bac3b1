"""Read training questions from files, and make questions from plain documents."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

from ragbias.data.questions import Question as Question
from ragbias.data.questions import read_questions as read_questions
from ragbias.data.texts import read_chunks
from ragbias.errors import DataError

QUOTED_WORDS, ANSWER_WORDS = 12, 16
MIN_WORDS = QUOTED_WORDS + ANSWER_WORDS  # in a passage
MAX_OTHER_PASSAGES = 9  # in a question
MAX_QUESTIONS = 400  # from one file or folder


def read_sources(files: Sequence[Path], documents: Sequence[Path], seed: int) -> list[Question]:
    """Return the questions in all files, and questions about the texts in ``documents``."""
    if not files and not documents:
        raise DataError("no data: give --questions FILE (JSON lines of question and documents), --documents, or both")
    questions = [question for file in files for question in read_questions(file)]
    rng = random.Random(seed)
    for path in documents:
        questions += _continuations(list(read_chunks(path)), rng)
    return questions


def _continuations(passages: Sequence[str], rng: random.Random) -> list[Question]:
    """Make questions that quote part of a passage. The answer is the words after the quotation."""
    long = [passage for passage in passages if len(passage.split()) >= MIN_WORDS]
    if not long or len(passages) < 2:
        raise DataError(f"--documents needs two or more passages, one of them with {MIN_WORDS} words; add longer texts")
    questions = []
    for passage in rng.sample(long, min(MAX_QUESTIONS, len(long))):
        words = passage.split()
        begin = rng.randrange(len(words) - MIN_WORDS + 1)
        quoted = " ".join(words[begin : begin + QUOTED_WORDS])
        answer = " ".join(words[begin + QUOTED_WORDS : begin + QUOTED_WORDS + ANSWER_WORDS])
        others = [other for other in passages if other != passage]
        texts = (passage, *rng.sample(others, min(MAX_OTHER_PASSAGES, len(passages) - 1)))
        questions.append(Question(f'Which words follow "{quoted}" in the text?', texts, (answer,), gold=0))
    return questions
