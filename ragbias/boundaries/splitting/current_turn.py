"""This turn's documents in a prompt: those of the last message that holds any. Earlier messages stay plain."""

from __future__ import annotations

import re
from bisect import bisect
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise

from ragbias.boundaries.matching.assignment import assign
from ragbias.boundaries.matching.occurrences import MIN_CHARACTERS, Occurrence, ends_block, is_bounded
from ragbias.boundaries.patterns import MESSAGE_BORDER, is_separator
from ragbias.boundaries.spans import Span, split_at

Known = Mapping[str, list[Occurrence]]  # occurrences by document, the longest document first
UNCLEAR = (
    "documents are in the prompt several times, and those of this turn cannot be told apart; give a segmenter= that "
    "finds them"
)
ROLE = r"user|system|human|developer|assistant|model|tool|ipython|function|observation|final"
OPENING = re.compile(rf"(?:(?:{MESSAGE_BORDER.pattern})\s*(?:(?:{ROLE})(?=\s*(?:\n|<)))?\s*)+")
TOOL = re.compile(r"\A\s*(?:tool|ipython|function|observation)\s*\n|<tool_response>\s*\Z")
SPEAKER = re.compile(
    r"(?P<assistant>assistant|chatbot|(?<![^\W_])model(?![^\W_])|\[/INST\]|\[/TOOL_RESULTS\])"
    r"|tool|ipython|function|observation|user|system|human|developer|\[INST\]",
    re.IGNORECASE,
)


def in_last_message(text: str, known: Known) -> Known | None:
    """The occurrences in the message with this turn's context; ``None`` if it is unclear which.

    The last message counts that holds documents. Messages of the assistant never do, if there are others, nor does a
    message that quotes one document of several. A message that shares documents with an earlier one counts only if
    both introduce them in the same way, as the turns of a chat loop do, or if it holds more.
    """
    parts = _messages(text, outermost(text, known))
    while len(parts) > 1:
        last = _documents(parts[-1])
        others = [_documents(part) for part in parts[:-1] if not _are_alike(text, part, parts[-1])]
        if len(last) == 1 and any(len(each) > 1 for each in others):
            parts.pop()
        elif any(len(each) > 1 and not last.isdisjoint(each) and not each < last for each in others):
            return None
        else:
            break
    if not parts:
        return known
    begin, end = _bounds(text, parts[-1])
    here = {document: [each for each in found if begin <= each.begin < end] for document, found in known.items()}
    return {document: found for document, found in here.items() if found}


def assigned(text: str, documents: Sequence[str], known: Known) -> list[Occurrence] | None:
    """An occurrence for each document, in ascending order; ``None`` if there are several choices.

    Documents that occur more often than they are named are taken as often as they occur if one separator joins all.
    Else the named ones count if one separator joins them, and at most one of them is elsewhere, as in a question.
    """
    every = outermost(text, known)
    wanted, present = Counter(documents), Counter(each.document for each in every)
    if not present <= wanted and _is_uniform(text, every):
        wanted |= present
    found = assign(text, list(wanted.elements()), known)
    names = {each.document for each in found}
    rest = [each for each in every if not any(each.overlaps(other) for other in found)]
    if len(names) < 2 or names.isdisjoint(_documents(rest)):
        return found
    gaps = [text[each.end : found[0].begin] if each < found[0] else text[found[-1].end : each.begin] for each in rest]
    is_rival = len(names & _documents(rest)) > 1 or any(map(is_separator, gaps))
    return None if is_rival or not _is_uniform(text, found) else found


def outermost(text: str, known: Known) -> list[Occurrence]:
    """The occurrences that are in no longer one, in ascending order.

    Short texts count only next to others, with nothing but a separator between, or if there are no others.
    """
    long = {document: found for document, found in known.items() if is_long(document)}
    short = {document: found for document, found in known.items() if document not in long} if long else {}
    taken = _apart(text, [], long or known)
    near = _apart(text, taken, short)
    for each in (*near, *reversed(near)):  # from both sides, as short ones may be next to each other
        index = bisect(taken, each)
        left, right = taken[max(0, index - 1) : index], taken[index : index + 1]
        if left != [each] and (
            any(is_separator(text[other.end : each.begin]) for other in left)
            or any(is_separator(text[each.end : other.begin]) for other in right)
        ):
            taken.insert(index, each)
    return taken


def n_outside(text: str, known: Known, spans: Sequence[Span]) -> int:
    """The number of times that documents are in the prompt outside of all spans; short ones may be there by chance."""
    found = outermost(text, {document: found for document, found in known.items() if is_long(document)})
    return sum(not each.is_in(spans) for each in found)


def is_long(document: str) -> bool:
    """Whether a text is long enough not to be in a prompt by chance."""
    return len(document.strip()) >= MIN_CHARACTERS


def _apart(text: str, taken: Sequence[Occurrence], known: Known) -> list[Occurrence]:
    """The known occurrences that overlap neither a longer one nor what is taken, in ascending order."""
    apart, given = list(taken), set(taken)
    bounded = ([each for each in found if is_bounded(text, *each.span)] or found for found in known.values())
    every = (each for found in bounded for each in found)
    for each in sorted(every, key=lambda each: (each.begin - each.end, each)):
        index = bisect(apart, each)
        if not any(each.overlaps(other) for other in apart[max(0, index - 1) : index + 1]):
            apart.insert(index, each)
    return [each for each in apart if each not in given]


def _messages(text: str, occurrences: Sequence[Occurrence]) -> list[list[Occurrence]]:
    """The occurrences by message, without those of the assistant if there are others."""
    gaps = enumerate(pairwise(occurrences), 1)
    parts = split_at(occurrences, [i for i, (a, b) in gaps if MESSAGE_BORDER.search(text, a.end, b.begin)])
    return [part for part in parts if not _is_of_assistant(text, part)] or parts


def _is_of_assistant(text: str, part: Sequence[Occurrence]) -> bool:
    openings = list(OPENING.finditer(text, 0, part[0].begin))
    speakers = list(SPEAKER.finditer(openings[-1][0])) if openings else []
    return bool(speakers) and speakers[-1]["assistant"] is not None


def _bounds(text: str, part: Sequence[Occurrence]) -> Span:
    begins = [border.end() for border in MESSAGE_BORDER.finditer(text, 0, part[0].begin)]
    end = MESSAGE_BORDER.search(text, part[-1].end)
    return max(begins, default=0), end.start() if end else len(text)


def _documents(part: Sequence[Occurrence]) -> set[str]:
    return {each.document for each in part}


def _are_alike(text: str, first: Sequence[Occurrence], second: Sequence[Occurrence]) -> bool:
    """Whether two messages begin, or introduce their documents, with the same line, and break the line after them."""
    (begin, lead, ends), (other_begin, other_lead, other_ends) = (_frame(text, part) for part in (first, second))
    return ends and other_ends and (lead == other_lead or begin == other_begin)


def _frame(text: str, part: Sequence[Occurrence]) -> tuple[str, str, bool]:
    before = text[_bounds(text, part)[0] : part[0].begin]
    lines = TOOL.sub("", before).strip().splitlines() or [""]
    return "".join(lines[:2]), lines[-1], ends_block(text, part[-1])


def _is_uniform(text: str, occurrences: Sequence[Occurrence]) -> bool:
    """Whether one separator joins all."""
    gaps = {text[left.end : right.begin] for left, right in pairwise(occurrences)}
    return len(gaps) == 1 and all(map(is_separator, gaps))
