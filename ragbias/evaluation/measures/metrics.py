"""How right an answer is, 0 to 1, as the benchmarks count it."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence

ARTICLES = re.compile(r"\b(?:a|an|the)\b")
PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalised(answer: str) -> str:
    """Lower case, single spaces, no full stop at the end."""
    return " ".join(answer.split()).rstrip(".").lower()


def squad_normalised(text: str) -> str:
    """Lower case without ASCII punctuation and articles, single spaces: the normalisation of SQuAD's evaluation."""
    return " ".join(ARTICLES.sub(" ", text.lower().translate(PUNCTUATION)).split())


def best_subspan_em(prediction: str, answers: Sequence[str]) -> float:
    """Whether any answer is part of the prediction's first line, both normalised: lost-in-the-middle's measure."""
    said = squad_normalised(prediction.split("\n")[0])
    return float(any(squad_normalised(answer) in said for answer in answers))


def qa_f1(prediction: str, answers: Sequence[str]) -> float:
    """The best F1 of normalised words over the answers: LongBench's measure of question answering."""
    said = Counter(squad_normalised(prediction).split())
    return max(_f1(said, Counter(squad_normalised(answer).split())) for answer in answers)


def _f1(said: Counter[str], wanted: Counter[str]) -> float:
    shared = (said & wanted).total()
    return 2 * shared / (said.total() + wanted.total()) if shared else 0.0


def value_in_answer(prediction: str, value: str) -> float:
    """Whether the value is part of the prediction, regardless of case: lost-in-the-middle's key-value measure."""
    return float(value.lower() in prediction.lower())


def exact(prediction: str, answers: Sequence[str]) -> float:
    """Whether the prediction is one of the answers, regardless of case, white space and a final full stop."""
    return float(normalised(prediction) in {normalised(answer) for answer in answers})
