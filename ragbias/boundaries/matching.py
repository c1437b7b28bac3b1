"""Find the occurrences of document texts in a prompt: verbatim, escaped or reformatted."""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise

from ragbias.boundaries.text import (
    ESCAPED_SPACE,
    LABEL_END,
    LABEL_OR_TAG,
    NUMBER,
    OPENING,
    CharSpan,
    Margins,
    add_margins,
    common_prefix,
    gaps_between,
    is_separator,
)

MIN_CHARACTERS = 8  # shorter texts occur in too many prompts by chance
MAX_OCCURRENCES = 512  # maximum number of occurrences of one form of a text
MIN_PRESENT = 40  # minimum number of characters that remain of a truncated text
MAX_MARK = 8  # number of characters compared after a cut
MAX_ROLE = 16  # maximum length of a text that may be the name of a role
BLOCK_END = re.compile(r"[ \t]*(?:[\r\n]|\Z)|[\"'<\[]")

Rewrite = Callable[[str], str]


ESCAPES: tuple[Rewrite, ...] = (  # how Python and JSON print texts
    lambda text: repr(text)[1:-1],
    lambda text: json.dumps(text)[1:-1],
    lambda text: json.dumps(text, ensure_ascii=False)[1:-1],
)
READINGS: tuple[Rewrite, ...] = (  # functions that convert a document to a form that prompts may contain
    str,
    *ESCAPES,
    str.strip,
    *(lambda text, escape=escape: escape(text.strip()) for escape in ESCAPES),
)


@dataclass(frozen=True, order=True)
class Occurrence:
    """A document at ``text[begin:end]`` of a prompt, in characters.

    Attributes:
        readings: indices of the functions that produce this form of the document. The functions are ``READINGS``,
            followed by the rewrites of formatters.
        margins: whether the documents differ in leading or trailing white space.
    """

    begin: int
    end: int
    document: str
    readings: tuple[int, ...] = field(default=(), compare=False)
    margins: Margins = field(default=Margins(), compare=False)

    @property
    def span(self) -> CharSpan:
        """The span ``(begin, end)``, which also stores the margins."""
        return add_margins((self.begin, self.end), self.margins)

    def is_in(self, spans: Sequence[CharSpan]) -> bool:
        """Whether the occurrence overlaps one of the spans, which are ascending and disjoint."""
        last = bisect_left(spans, self.end, key=lambda span: span[0]) - 1
        return last >= 0 and spans[last][1] > self.begin


def occurrences_by_document(text: str, documents: Iterable[str], strict: bool = False) -> dict[str, list[Occurrence]]:
    """Return the occurrences of each document that occurs in the prompt, the longest document first.

    ``strict`` excludes texts that a formatter changed, and occurrences that begin or end inside a word.
    """
    longest_first = sorted(set(documents), key=lambda document: (-len(document), document))

    def search(changes: Sequence[Rewrite]) -> dict[str, list[Occurrence]]:
        every = {document: occurrences_of(text, document, changes) for document in longest_first}
        if strict:
            every = {d: [o for o in some if is_bounded(text, *o.span)] for d, some in every.items()}
        return {document: occurrences for document, occurrences in every.items() if occurrences}

    whole = search(())
    changes = [] if strict else _rewrites(text, longest_first, whole)
    return search(changes) if changes else whole


def occurrences_of(text: str, document: str, changes: Sequence[Rewrite] = ()) -> list[Occurrence]:
    """Return all occurrences of a document in ascending order, in any printed form.

    ``changes`` are functions that a formatter may have applied to the document. A document such as ``user`` is not
    found in a message header, which names the role.
    """
    readings: dict[str, tuple[int, ...]] = {}  # by printed form
    for index, write in enumerate((*READINGS, *changes)):
        readings[write(document)] = (*readings.get(write(document), ()), index)
    found = sorted(
        Occurrence(begin, begin + len(form), document, indices)
        for form, indices in readings.items()
        if form.strip()
        for begin in _find_all(text, form)
    )
    headers = [match.span() for match in OPENING.finditer(text)] if found and len(document) <= MAX_ROLE else ()
    return [o for o in found if not any(begin <= o.begin and o.end <= end for begin, end in headers)]


def escaped_forms(stripped: str) -> list[str]:
    """Return the forms of a stripped text that Python and JSON print with additional backslashes."""
    if stripped.isascii() and stripped.isprintable() and not any(character in stripped for character in "'\"\\"):
        return []
    forms = {escape(stripped) for escape in ESCAPES}
    return [form for form in forms if "\\" in form and form != stripped]


def _find_all(text: str, form: str) -> list[int]:
    found: list[int] = []
    begin = text.find(form)
    while begin >= 0 and len(found) < MAX_OCCURRENCES:
        found.append(begin)
        begin = text.find(form, begin + 1)
    return found


def is_quoted(text: str, begin: int, end: int) -> bool:
    """Whether the same quotation mark precedes and follows ``text[begin:end]``."""
    return text[begin - 1 : begin] in ("'", '"') and text[begin - 1 : begin] == text[end : end + 1]


def fills_lines(text: str, begin: int, end: int) -> bool:
    """Whether the lines of ``text[begin:end]`` contain no other text."""
    ends_line = end == len(text) or text[end] in "\r\n" or text[end - 1] == "\n"
    return ends_line and (begin == 0 or text[begin - 1] == "\n")


def is_bounded(text: str, begin: int, end: int) -> bool:
    """Whether ``text[begin:end]`` begins and ends at the borders of words and numbers."""
    cuts_left = begin > 0 and text[begin - 1].isalnum() and text[begin].isalnum()
    cuts_left = cuts_left and not ESCAPED_SPACE.fullmatch(text, max(0, begin - 2), begin)
    return not cuts_left and not (end < len(text) and text[end].isalnum() and text[end - 1].isalnum())


def is_uniform(text: str, occurrences: Sequence[Occurrence]) -> bool:
    """Whether the same separator is between all occurrences."""
    gaps = {text[left.end : right.begin] for left, right in pairwise(occurrences)}
    return len(gaps) == 1 and all(map(is_separator, gaps))


def is_number(text: str, begin: int, end: int) -> bool:
    """Whether the number ``text[begin:end]`` is complete: no digit is adjacent to it."""
    return not text[max(0, begin - 1) : begin].isdigit() and not text[end : end + 1].isdigit()


def is_cut(text: str, begin: int, end: int) -> bool:
    """Whether ``text[begin:end]`` seems cut off: next to it is a letter, a digit, or a copy of its edge character."""
    beside = ((text[begin - 1 : begin] if begin else "", text[begin]), (text[end : end + 1], text[end - 1]))
    return any(not inner.isspace() and (outer.isalnum() or outer == inner) for outer, inner in beside)


def ends_block(text: str, occurrence: Occurrence) -> bool:
    """Whether a line break, a quotation mark, a tag, or the end of the prompt follows the occurrence."""
    return text[occurrence.end - 1] == "\n" or BLOCK_END.match(text, occurrence.end) is not None


def have_same_ends(text: str, occurrences: Sequence[Occurrence]) -> bool:
    """Whether the same text, such as ``(score: 0.9)``, follows all occurrences in their lines. Numbers may differ."""
    return len({NUMBER.sub("0", text[occurrence.end :].partition("\n")[0]) for occurrence in occurrences}) == 1


def is_block(text: str, occurrence: Occurrence) -> bool:
    """Whether the occurrence fills lines or quotation marks. A label, tag, bullet or number may precede it."""
    line = text[text.rfind("\n", 0, occurrence.begin) + 1 : occurrence.begin]
    is_begin = is_separator(line) or line[-1] in "\"'" or LABEL_OR_TAG.search(line) is not None
    return is_begin and ends_block(text, occurrence)


def precedes_other_blocks(text: str, spans: Sequence[CharSpan]) -> bool:
    """Whether the label, tag, bullet or number before each document also precedes other text in the prompt."""
    end = len(text[: spans[0][0]].rstrip())
    begin = text.rfind("\n", 0, end) + 1
    if label := LABEL_OR_TAG.search(text, begin, end):
        mark = (
            rf"^(?:[^\w\n]|\d)*{label['label']}{LABEL_END}" if label["label"] else rf"(?:^|>)[^\w\n<>]*{label['tag']}\b"
        )
    elif begin == end or "\n" in text[end : spans[0][0]]:
        return False
    else:
        bullet = NUMBER.sub(r"\\d+", re.escape(text[begin:end].strip()))
        mark = rf"^[ \t]*{bullet}[ \t]"
    marks = re.compile(mark, re.MULTILINE | re.IGNORECASE)
    outside = (text[: label.start() if label else begin], text[spans[-1][1] :])
    in_gaps = [len(marks.findall(gap)) for gap in gaps_between(text, spans)]
    n_others = sum(len(marks.findall(part)) for part in outside) + sum(in_gaps) - len(in_gaps)
    return n_others > 0 and all(in_gaps)


def _rewrites(text: str, documents: Sequence[str], whole: Collection[str]) -> list[Rewrite]:
    """Return functions that a formatter may have applied to all documents. Documents in ``whole`` occur verbatim."""
    missing = [document for document in documents if document not in whole]
    if not missing:
        return []
    rewrites: list[Rewrite] = [lambda text: text.replace("\n", " ").strip(), lambda text: " ".join(text.split())]
    if cut := _cut_length(text, missing, whole):
        rewrites.append(lambda text: text[:cut])
    return rewrites


def _cut_length(text: str, missing: Sequence[str], whole: Collection[str]) -> int:
    """Return the number of characters to which a formatter cut the documents, or 0 if this is uncertain.

    The number is uncertain if fewer than two documents are cut, or if different texts follow the cuts. The texts
    differ, for example, if the formatter cuts only between words.
    """
    cuts: list[
        tuple[str, int, int]
    ] = []  # document, position of its beginning in the prompt, length of the common text
    for document in missing:
        begin = text.find(document[:MIN_PRESENT]) if len(document) > MIN_PRESENT else -1
        while begin >= 0:
            length = len(common_prefix(document, text[begin : begin + len(document)]))
            cuts.append((document, begin, length))
            begin = text.find(document[:MIN_PRESENT], begin + length)
    least = min((length for _, _, length in cuts), default=0)
    if len({document for document, _, _ in cuts}) < 2 or any(len(document) > least for document in whole):
        return 0
    marks: dict[str, set[str]] = {}  # the repeated characters after each cut, such as ``...``, by document
    shortest = set()
    for document, begin, length in cuts:
        after = text[begin + least : begin + least + MAX_MARK]
        mark = after[: len(after) - len(after.lstrip(after[:1]))].strip()
        marks.setdefault(document, set()).add(mark)
        if length == least:
            shortest.add(mark)
    return least if all(shortest & found for found in marks.values()) else 0


def count_absent(text: str, documents: Collection[str], occurrences: Sequence[Occurrence]) -> int:
    """Count the documents that are missing from the prompt. Text in ``occurrences`` does not count.

    A document is missing if the prompt contains neither all of it nor ``MIN_PRESENT`` characters in a row.
    """
    if not documents:
        return 0
    edges = [0, *chain.from_iterable(occurrence.span for occurrence in occurrences), len(text)]
    outside = "\0".join(text[begin:end] for begin, end in zip(edges[::2], edges[1::2], strict=True))
    # a formatter may have changed white space and case
    prompt, *searched = (" ".join(part.split()).casefold() for part in (outside, *documents))
    pieces = {prompt[begin : begin + MIN_PRESENT] for begin in range(len(prompt) - MIN_PRESENT + 1)}
    return sum(
        document not in prompt
        and not any(document[begin : begin + MIN_PRESENT] in pieces for begin in range(len(document) - MIN_PRESENT + 1))
        for document in searched
    )
