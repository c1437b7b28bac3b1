"""Score answers from 0 to 1 as in the benchmarks, and find the document that an answer comes from."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from ragbias.data.questions import ARTICLES, normalise_squad


def normalise(answer: str) -> str:
    """Convert to lower case with single spaces and without a final full stop."""
    return " ".join(answer.split()).rstrip(".").lower()


def same_answer(first: str, second: str) -> bool:
    """Whether two answers are assumed to mean the same: one contains the other as whole words.

    Case, punctuation, white space and articles are ignored.
    """
    one, other = (f" {' '.join(_split_words(ARTICLES.sub(' ', text.lower())))} " for text in (first, second))
    return one == other or bool(one.strip() and other.strip() and (one in other or other in one))


def qa_f1(prediction: str, answers: Sequence[str]) -> float:
    """Return the highest F1 over the answers, on normalised words. From LongBench."""
    words = Counter(normalise_squad(prediction).split())
    scores = []
    for answer in answers:
        expected = Counter(normalise_squad(answer).split())
        size = max(1, words.total() + expected.total())  # 1: both are empty
        scores.append(2 * (words & expected).total() / size)
    return max(scores)


def exact_match(prediction: str, answers: Sequence[str]) -> float:
    """Return 1 if the prediction equals an answer, else 0. Case, white space and a final full stop are ignored."""
    return float(normalise(prediction) in {normalise(answer) for answer in answers})


def find_source(answer: str, documents: Sequence[str], question: str) -> int | None:
    """Return the index of the document that an answer comes from, or None if this is ambiguous.

    If exactly one document contains the normalised answer as whole words, it is the source. If no document contains the
    answer, the source is the document with the most words of the answer. It must have at least half of them. Words of
    the question do not count.
    """
    words = " ".join(_split_words(answer))
    if not words:
        return None
    texts = [f" {' '.join(_split_words(document))} " for document in documents]
    holders = [index for index, text in enumerate(texts) if f" {words} " in text]
    if not holders:
        new_words = set(_split_words(answer)) - set(_split_words(question))
        counts = [sum(f" {word} " in text for word in new_words) for text in texts]
        most = max(counts)
        holders = [index for index, count in enumerate(counts) if count == most > 0 and 2 * most >= len(new_words)]
    return holders[0] if len(holders) == 1 else None


def _split_words(text: str) -> list[str]:
    return re.findall(r"\w+", normalise(text))
