"""The query in the text after the documents, and that text without it."""

from __future__ import annotations

import re
from collections.abc import Collection

WITHOUT_QUERY = "N/A"  # in place of the query, as in the paper
_LABELLED = re.compile(r"\b(?:question|query)[ \t]*:[ \t]*(\S[^\n]*)", re.IGNORECASE)


def without_query(suffix: str, special_tokens: Collection[str]) -> str | None:
    """The text after the documents with "N/A" in place of the query; None if there is nothing that could be one.

    The query is what follows the last ``Question:`` or ``Query:`` in its line; without such a label, the longest line.

    Args:
        special_tokens: of the tokenizer, e.g. those of its chat template, which are no part of a query.
    """
    border = "|".join(map(re.escape, sorted(special_tokens, key=len, reverse=True)))
    masked = re.sub(border, lambda match: "\n" * len(match[0]), suffix) if border else suffix
    labelled = list(_LABELLED.finditer(masked))
    if labelled:
        begin, end = labelled[-1].span(1)
    else:
        lines = [match.span() for match in re.finditer(r"[^\s][^\n]*", masked)]
        if not lines:
            return None
        begin, end = max(lines, key=lambda span: span[1] - span[0])
    end -= len(masked[begin:end]) - len(masked[begin:end].rstrip())
    return suffix[:begin] + WITHOUT_QUERY + suffix[end:]
