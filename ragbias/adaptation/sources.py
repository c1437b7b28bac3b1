"""Read training questions from files, and make questions from plain documents."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

from ragbias.data.questions import Question, read_questions
from ragbias.data.texts import read_chunks
from ragbias.errors import DataError

SHOWN, CONTINUED = 12, 16  # number of words in the question, and in the answer
WORDS = SHOWN + CONTINUED  # minimum length of a passage
BESIDE = 9  # maximum number of other passages
MOST = 400  # maximum number of questions from documents


def read_sources(files: Sequence[Path], documents: Sequence[Path], seed: int) -> list[Question]:
    """Read the questions of all files, and make questions from long passages of the documents."""
    if not files and not documents:
        raise DataError("no data: give --questions FILE (JSON lines of question and documents), --documents, or both")
    questions = [question for file in files for question in read_questions(file)]
    rng = random.Random(seed)
    for path in documents:
        questions += _continuations(list(read_chunks(path)), rng)
    return questions


def _continuations(passages: Sequence[str], rng: random.Random) -> list[Question]:
    """Make questions that quote words of a passage. The answer is the words after them."""
    long = [passage for passage in passages if len(passage.split()) >= WORDS]
    if not long or len(passages) < 2:
        raise DataError(f"--documents takes two or more passages, one of {WORDS} words or more; add longer texts")
    questions = []
    for passage in rng.sample(long, min(MOST, len(long))):
        words = passage.split()
        begin = rng.randrange(len(words) - WORDS + 1)
        quoted = " ".join(words[begin : begin + SHOWN])
        answer = " ".join(words[begin + SHOWN : begin + SHOWN + CONTINUED])
        others = rng.sample([other for other in passages if other != passage], min(BESIDE, len(passages) - 1))
        texts = (passage, *others)
        questions.append(Question(f'Which words follow "{quoted}" in the text?', texts, (answer,), gold=0))
    return questions
