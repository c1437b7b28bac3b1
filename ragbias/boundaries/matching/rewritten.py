"""Formatters that rewrite all documents of a prompt alike: white space joined to blanks, or texts cut to one length.

Each rewrite is a function of a document alone, so its result does not depend on the documents' order.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from ragbias.boundaries.patterns import common_prefix

MIN_CUT = 40  # characters that are left of a text that was cut

Rewrite = Callable[[str], str]


def rewrites(text: str, documents: Sequence[str], whole: Collection[str]) -> list[Rewrite]:
    """The rewrites that documents may have undergone, if not all are in the prompt as they are (``whole``)."""
    missing = [each for each in documents if each not in whole]
    if not missing:
        return []
    cut = _cut_length(text, missing, whole)
    return [_in_one_line, _collapsed, *([lambda document: document[:cut]] if cut else [])]


def _cut_length(text: str, missing: Sequence[str], whole: Collection[str]) -> int:
    """The length to which all longer texts were cut; 0 if two of them at least were not.

    Where a text goes on as the prompt does after the cut, the others decide.
    """
    lengths = []
    for document in missing:
        begin = text.find(document[:MIN_CUT])
        while begin >= 0 and len(document) > MIN_CUT:
            lengths.append((len(common_prefix(document, text[begin : begin + len(document)])), document))
            begin = text.find(document[:MIN_CUT], begin + 1)
    least = min(lengths, default=(0, ""))[0]
    if len({document for _, document in lengths}) < 2 or any(len(document) > least for document in whole):
        return 0
    return least


def _in_one_line(document: str) -> str:
    return document.replace("\n", " ").strip()


def _collapsed(document: str) -> str:
    return " ".join(document.split())
