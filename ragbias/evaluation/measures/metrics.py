"""The score of an answer, 0 to 1, as the benchmarks count it; and the document that it comes from."""

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
    words = squad_normalised(prediction.split("\n")[0])
    return float(any(squad_normalised(answer) in words for answer in answers))


def qa_f1(prediction: str, answers: Sequence[str]) -> float:
    """The best F1 of normalised words over the answers: LongBench's measure of question answering."""
    words = Counter(squad_normalised(prediction).split())
    return max(_f1(words, Counter(squad_normalised(answer).split())) for answer in answers)


def _f1(words: Counter[str], wanted: Counter[str]) -> float:
    shared = (words & wanted).total()
    return 2 * shared / (words.total() + wanted.total()) if shared else 0.0


def value_in_answer(prediction: str, value: str) -> float:
    """Whether the value is part of the prediction, regardless of case: lost-in-the-middle's key-value measure."""
    return float(value.lower() in prediction.lower())


def exact(prediction: str, answers: Sequence[str]) -> float:
    """Whether the prediction is one of the answers, regardless of case, white space and a final full stop."""
    return float(normalised(prediction) in {normalised(answer) for answer in answers})


def source(answer: str, documents: Sequence[str], question: str) -> int | None:
    """Index of the document that an answer comes from, judged by its words; None if none or several may be it.

    It is the only one with the normalised answer as whole words. If there is none, it is the only one with most of the
    answer's words, those of the question aside, if that is at least half of them.
    """
    words = " ".join(_words(answer))
    if not words:
        return None
    texts = [f" {' '.join(_words(document))} " for document in documents]
    holders = [index for index, text in enumerate(texts) if f" {words} " in text]
    if not holders:
        own = set(_words(answer)) - set(_words(question))
        counts = [sum(f" {word} " in text for word in own) for text in texts]
        most = max(counts)
        holders = [index for index, count in enumerate(counts) if count == most > 0 and 2 * most >= len(own)]
    return holders[0] if len(holders) == 1 else None


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", normalised(text))
