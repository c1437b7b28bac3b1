"""Which document an answer was taken from, judged by its words alone."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ragbias.evaluation.measures.metrics import normalised


def source(answer: str, documents: Sequence[str], question: str) -> int | None:
    """The one document that an answer was taken from; None where none or several may be.

    It is the only one that holds the normalised answer as whole words. If none does, it is the only one that holds the
    most of the answer's words, those of the question aside, if that is at least half of them.
    """
    said = " ".join(_words(answer))
    if not said:
        return None
    texts = [f" {' '.join(_words(document))} " for document in documents]
    holders = [index for index, text in enumerate(texts) if f" {said} " in text]
    if not holders:
        own = set(_words(answer)) - set(_words(question))
        counts = [sum(f" {word} " in text for word in own) for text in texts]
        most = max(counts)
        holders = [index for index, count in enumerate(counts) if count == most > 0 and 2 * most >= len(own)]
    return holders[0] if len(holders) == 1 else None


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", normalised(text))
