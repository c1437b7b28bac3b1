"""Passages cut to a number of words around the answer, for models with small windows."""

from __future__ import annotations

import re
from collections.abc import Sequence


def shortened(text: str, answers: Sequence[str], words: int | None) -> str:
    """At most ``words`` words of a passage, in one piece, as it is written there.

    The piece has the first occurrence of an answer in its middle, as far as the passage goes on both sides; case does
    not matter, and an occurrence as whole words comes before one inside a word. Without an answer in the passage, it is
    the beginning. So a distractor that holds an answer is cut around it as well.

    Args:
        words: what white space separates; None: the passage stays whole.
    """
    spans = [match.span() for match in re.finditer(r"\S+", text)]
    if words is None or len(spans) <= words:
        return text
    begin, end = _answer(text, answers)
    inside = [index for index, (first, last) in enumerate(spans) if last > begin and first < end]
    first = 0
    if inside:
        before = max(0, words - len(inside)) // 2
        first = max(0, min(inside[0] - before, len(spans) - words))
    return text[spans[first][0] : spans[first + words - 1][1]]


def _answer(text: str, answers: Sequence[str]) -> tuple[int, int]:
    """Where the first occurrence of an answer begins and ends; ``(0, 0)`` where there is none."""
    given = [re.escape(answer.strip()) for answer in answers if answer.strip()]
    for form in (r"(?<!\w)(?:{})(?!\w)", "{}"):
        found = [match.span() for each in given if (match := re.search(form.format(each), text, re.IGNORECASE))]
        if found:
            return min(found)
    return 0, 0
