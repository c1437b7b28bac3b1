"""How formatters rewrite all documents of a prompt alike: lines joined or wrapped, texts cut to one length.

Each way is a function of a document alone, so what it gives does not depend on the documents' order.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Collection, Sequence
from functools import partial

from ragbias.boundaries.patterns import common_prefix

MIN_CUT = 40  # characters that are left of a text that was cut
WIDTHS = (70, 72, 79, 80, 88, 100, 120)  # of lines
INDENTS = ("  ", "    ", "\t", "> ")
BEGINNING = 4  # words

Rewrite = Callable[[str], str]


def rewrites(text: str, documents: Sequence[str], whole: Collection[str]) -> list[Rewrite]:
    """The ways in which the documents that are not in the prompt as they are may have been rewritten.

    Args:
        text: the prompt.
        documents: all that were named.
        whole: those of them that occur as they are.
    """
    missing = [each for each in documents if each not in whole and _begins_in(text, each)]
    if not missing:
        return []
    ways: list[Rewrite] = []
    if any(len(each.split("\n")) > 1 or "  " in each for each in missing):
        ways += [
            _in_one_line,
            _in_one_line_stripped,
            _collapsed,
            _dedented,
            *(partial(_indented, prefix=prefix) for prefix in INDENTS),
        ]
    ways += [partial(_wrapped, width=width) for width in WIDTHS if any(len(each) > width for each in missing)]
    cut = _cut_length(text, missing, whole)
    return [*ways, partial(_cut, length=cut)] if cut else ways


def _begins_in(text: str, document: str) -> bool:
    """Whether the first words are in the prompt, whatever white space is between them."""
    return re.search(r"\s+".join(map(re.escape, document.split()[:BEGINNING])), text) is not None


def _cut_length(text: str, missing: Sequence[str], whole: Collection[str]) -> int:
    """The length to which all longer texts were cut; 0 if two of them at least were not.

    Where a text goes on as the prompt does after the cut, the others tell.
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


def _cut(document: str, length: int) -> str:
    return document[:length]


def _in_one_line(document: str) -> str:
    return document.replace("\n", " ")


def _in_one_line_stripped(document: str) -> str:
    return _in_one_line(document).strip()


def _collapsed(document: str) -> str:
    return " ".join(document.split())


def _dedented(document: str) -> str:
    return textwrap.dedent(document).strip()


def _indented(document: str, prefix: str) -> str:
    return textwrap.indent(document, prefix).strip().removeprefix(prefix.strip()).lstrip()


def _wrapped(document: str, width: int) -> str:
    return textwrap.fill(document, width).strip()
