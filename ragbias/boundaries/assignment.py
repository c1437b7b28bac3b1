"""Choose one occurrence for each document of the current context.

The current context is the last message that contains documents. The model reads documents of earlier messages as plain
text. Occurrences next to each other are preferred. Longer documents are assigned first. Documents never overlap.
"""

from __future__ import annotations

import re
from bisect import insort
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, product

from ragbias.boundaries.matching import (
    MAX_OCCURRENCES,
    READINGS,
    Occurrence,
    Occurrences,
    ends_block,
    fills_lines,
    filter_occurrences,
    is_bounded,
    is_cut,
    is_long,
    is_quoted,
    is_uniform,
    outermost_occurrences,
)
from ragbias.boundaries.text import (
    OPENING,
    CharSpan,
    Margins,
    gaps_between,
    is_separator,
    message_around,
    split_by_message,
)

MAX_ANCHORS = 8  # maximum number of occurrences of the longest document next to which separators are searched
MAX_SEPARATORS = 12  # maximum number of separators tried
MAX_SEPARATOR = 200  # maximum length of a separator in characters
IN_SENTENCE = tuple(" .,;:?!")  # characters that may follow a word in a sentence
TOOL = re.compile(r"\A\s*(?:tool|ipython|function|observation)\s*\n|<tool_response>\s*\Z")
SPEAKER = re.compile(
    r"(?P<assistant>assistant|chatbot|(?<![^\W_])model(?![^\W_])|\[/INST\]|\[/TOOL_RESULTS\])"
    r"|tool|ipython|function|observation|user|system|human|developer|\[INST\]",
    re.IGNORECASE,
)


def select_last_message(text: str, occurrences: Occurrences) -> Occurrences | None:
    """Return the occurrences in the last message with documents, or ``None`` if the current context is ambiguous.

    Messages of the assistant are skipped. An earlier message with several documents makes the context ambiguous if the
    last message has only one document, or shares documents with the earlier message. There are two exceptions:

    - The last message has all documents of the earlier message and more.
    - Both messages introduce their documents with the same text, as in a chat loop.
    """
    if any(is_long(document) and len(group) >= MAX_OCCURRENCES for document, group in occurrences.items()):
        return None  # a prompt of repeated lines
    *earlier, last = _messages(text, outermost_occurrences(text, occurrences)) or [[]]
    if not last:
        return occurrences
    rivals = [message for message in earlier if _may_be_current(message, last)]
    if not all(_have_same_introduction(text, rival, last) for rival in rivals):
        return None
    begin, end = message_around(text, last[0].begin, last[-1].end)
    return filter_occurrences(occurrences, lambda occurrence: begin <= occurrence.begin < end)


def _messages(text: str, occurrences: Sequence[Occurrence]) -> list[list[Occurrence]]:
    """Group the occurrences by message. Drop messages of the assistant if other messages contain documents."""
    messages = split_by_message(text, occurrences, [occurrence.span for occurrence in occurrences])
    messages = [message for message in messages if any(map(is_long, _documents(message)))] or messages
    return [message for message in messages if not _is_from_assistant(text, message)] or messages


def _is_from_assistant(text: str, message: Sequence[Occurrence]) -> bool:
    openings = list(OPENING.finditer(text, 0, message[0].begin))
    speakers = list(SPEAKER.finditer(openings[-1][0])) if openings else []
    return bool(speakers) and speakers[-1]["assistant"] is not None


def _may_be_current(earlier: Sequence[Occurrence], last: Sequence[Occurrence]) -> bool:
    """Whether an earlier message, and not the last one, may contain the documents of the current turn."""
    in_earlier, in_last = _documents(earlier), _documents(last)
    is_repeated = len(in_last) == 1 or not in_last.isdisjoint(in_earlier)
    return len(in_earlier) > 1 and is_repeated and not in_earlier < in_last


def _have_same_introduction(text: str, first: Sequence[Occurrence], second: Sequence[Occurrence]) -> bool:
    """Whether two messages have the same first lines, or the same line before their documents.

    A line break, quotation mark, tag or the end of the prompt must follow the last document of both messages.
    """
    lines, other_lines = _introduction(text, first), _introduction(text, second)
    is_same = lines[:2] == other_lines[:2] or lines[-1] == other_lines[-1]
    return is_same and ends_block(text, first[-1].end) and ends_block(text, second[-1].end)


def _introduction(text: str, message: Sequence[Occurrence]) -> list[str]:
    """Return the lines of a message before its documents."""
    begin, _ = message_around(text, message[0].begin, message[-1].end)
    return TOOL.sub("", text[begin : message[0].begin]).strip().splitlines() or [""]


def assign_occurrences(text: str, wanted: Counter[str], occurrences: Occurrences) -> list[Occurrence] | None:
    """Return ``wanted[document]`` occurrences of each document, sorted by position.

    Fewer occurrences are returned if documents are missing. The result is ``None`` if the choice is ambiguous.
    """
    occurrences = {document: group for document, group in occurrences.items() if document in wanted}
    chosen = _choose(text, wanted, occurrences)
    return None if _is_ambiguous(text, chosen, wanted, occurrences) else _mark_margins(text, chosen)


def _choose(text: str, wanted: Counter[str], occurrences: Occurrences) -> list[Occurrence]:
    """Choose occurrences of as many documents as possible. Prefer the same form and separator for all documents."""
    best: list[Occurrence] = []
    for options in _options(text, occurrences):
        best = max(best, _longest_run(text, options, wanted), key=len)
        if len(best) < wanted.total():
            best = max(best, _choose_one_by_one(text, options, wanted), key=len)
        if len(best) == wanted.total():
            break
    return best


def _options(text: str, occurrences: Occurrences) -> Iterator[Occurrences]:
    """Yield the occurrences in each form separately, then the union of the forms in ``READINGS``.

    Leave out short documents that occur inside a word, or inside a line such as ``---``.
    """
    whole = filter_occurrences(occurrences, lambda o: is_long(o.document) or not is_cut(text, *o.span))
    readings = sorted({reading for o in chain.from_iterable(whole.values()) for reading in o.readings})
    options = [_with_reading(whole, reading) for reading in readings]
    options.append(filter_occurrences(whole, lambda o: min(o.readings) < len(READINGS)))
    for index, option in enumerate(options):
        if option and option not in options[:index]:
            yield option


def _with_reading(occurrences: Occurrences, reading: int) -> Occurrences:
    return filter_occurrences(occurrences, lambda occurrence: reading in occurrence.readings)


def _longest_run(text: str, options: Occurrences, wanted: Counter[str]) -> list[Occurrence]:
    """Return the longest sequence of documents that the same separator joins.

    Of several longest sequences, prefer, in this order: more documents that begin and end between words, all documents
    in quotation marks, a separator without letters, a block end after the last document, a later position.
    """
    beginning: dict[int, list[Occurrence]] = defaultdict(list)
    for occurrence in sorted(chain.from_iterable(options.values()), key=lambda o: o.begin - o.end):
        beginning[occurrence.begin].append(occurrence)  # the longest occurrence comes first
    separators = _separators(text, options)
    found = [(run, separator) for separator in separators for run in _runs(text, beginning, separator, wanted)]

    def rank(run: Sequence[Occurrence], separator: str) -> tuple[int, ...]:
        bounded = sum(is_bounded(text, *occurrence.span) for occurrence in run)
        quoted = all(is_quoted(text, *occurrence.span) for occurrence in run)
        return bounded, quoted, is_separator(separator), ends_block(text, run[-1].end), run[0].begin

    length = max(len(run) for run, _ in found)
    longest = [(run, separator) for run, separator in found if len(run) == length]
    best, _ = max(longest, key=lambda pair: rank(*pair))
    return best


def _separators(text: str, options: Occurrences) -> list[str]:
    """Return possible separators: the shortest texts between the longest document and another document."""
    gaps = {""}
    anchors = sorted(next(iter(options.values())))[-MAX_ANCHORS:]
    for anchor, occurrence in product(anchors, chain.from_iterable(options.values())):
        first, second = sorted((anchor, occurrence))
        if first.end <= second.begin <= first.end + MAX_SEPARATOR:
            gaps.add(text[first.end : second.begin])
    return sorted(gaps, key=lambda gap: (gap == "", len(gap), gap))[:MAX_SEPARATORS]


def _runs(
    text: str, beginning: Mapping[int, Sequence[Occurrence]], separator: str, wanted: Counter[str]
) -> Iterator[list[Occurrence]]:
    """Yield sequences of wanted documents that the separator joins. At each position, the longest document is used."""
    seen: set[int] = set()
    for position in sorted(beginning):
        run: list[Occurrence] = []
        remaining = wanted.copy()
        while position in beginning and position not in seen:
            seen.add(position)
            unused = [occurrence for occurrence in beginning[position] if remaining[occurrence.document]]
            if not unused:  # the sequence continues after the earlier copy of the document
                yield run.copy()
                unused = list(beginning[position])
                while not remaining[unused[0].document]:
                    remaining[run.pop(0).document] += 1
            run.append(unused[0])
            remaining[unused[0].document] -= 1
            end = unused[0].end
            position = end + len(separator) if text.startswith(separator, end) else -1
        if run:
            yield run


def _choose_one_by_one(text: str, options: Occurrences, wanted: Counter[str]) -> list[Occurrence]:
    """Choose occurrences outside longer documents. Any text may separate them. Prefer occurrences that fill lines."""
    chosen: list[Occurrence] = []
    taken: list[CharSpan] = []  # disjoint occurrences of longer documents
    for document, group in options.items():  # the longest document comes first
        free = [occurrence for occurrence in group if not occurrence.overlaps(taken)]
        free = [occurrence for occurrence in free if is_bounded(text, *occurrence.span)] or free
        disjoint: list[Occurrence] = []
        for occurrence in sorted(free, key=lambda o: (fills_lines(text, *o.span), o.end, -o.begin), reverse=True):
            if not occurrence.overlaps(taken):
                insort(taken, (occurrence.begin, occurrence.end))
                disjoint.append(occurrence)
        chosen += disjoint[: wanted[document]]
    return sorted(chosen)


def _is_ambiguous(text: str, chosen: Sequence[Occurrence], wanted: Counter[str], occurrences: Occurrences) -> bool:
    """Whether other occurrences than the chosen ones may be the documents."""
    if _may_be_shifted(text, chosen, occurrences):
        return True
    spans = [occurrence.span for occurrence in chosen]
    left_over = outermost_occurrences(text, filter_occurrences(occurrences, lambda o: not o.overlaps(spans)))
    is_complete = len(chosen) == wanted.total()
    if is_complete and not left_over:
        return False
    is_block = is_complete and not _distinct_separator(text, chosen).isprintable() and is_uniform(text, spans)
    if _overlap(occurrences, nesting=bool(left_over) and not is_block):
        return True
    rivals = [occurrence for occurrence in left_over if occurrence.document in _documents(chosen)]
    return len(chosen) > 1 and bool(rivals) and not _is_clear(text, chosen, rivals, is_block)


def _may_be_shifted(text: str, chosen: Sequence[Occurrence], occurrences: Occurrences) -> bool:
    """Whether another occurrence of a long document crosses the beginning or end of the chosen occurrences."""
    edges = (chosen[0].begin, chosen[-1].end) if chosen else ()
    pairs = product(_long_occurrences(occurrences), edges)
    crossing = [(other, edge) for other, edge in pairs if other.begin < edge < other.end]
    return any(text[other.begin : edge].strip() and text[edge : other.end].strip() for other, edge in crossing)


def _overlap(occurrences: Occurrences, nesting: bool) -> bool:
    """Whether long documents partly overlap, or, with ``nesting``, whether one is inside another."""
    outer: Occurrence | None = None
    for occurrence in sorted(_long_occurrences(occurrences), key=lambda o: (o.begin, -o.end)):
        if outer is None or occurrence.end > outer.end:
            if outer is not None and occurrence.begin < outer.end:
                return True
            outer = occurrence
        elif nesting and occurrence.document != outer.document:
            return True
    return False


def _long_occurrences(occurrences: Occurrences) -> list[Occurrence]:
    return [occurrence for document, group in occurrences.items() if is_long(document) for occurrence in group]


def _is_clear(text: str, chosen: Sequence[Occurrence], rivals: Sequence[Occurrence], is_block: bool) -> bool:
    """Return true if the chosen occurrences are the context, although some documents also occur elsewhere (``rivals``).

    Rivals of short documents must be in sentences. If the chosen occurrences are a block (``is_block``) of short
    documents, this is enough. Otherwise the same separator must join all chosen occurrences, and only one document may
    have rivals, for example because the question quotes it.
    """
    short = [occurrence for occurrence in rivals if not is_long(occurrence.document)]
    if short and not _are_joined(text, chosen, short):
        return False
    if is_block and not any(map(is_long, _documents(chosen))):
        return True
    begin, end = chosen[0].begin, chosen[-1].end
    before = [text[rival.end : begin] for rival in rivals if rival.begin < begin]
    after = [text[end : rival.begin] for rival in rivals if rival.begin >= begin]
    is_one_quoted = len(_documents(rivals)) == 1 and not any(map(is_separator, before + after))
    return is_one_quoted and is_uniform(text, [occurrence.span for occurrence in chosen])


def _are_joined(text: str, chosen: Sequence[Occurrence], rivals: Sequence[Occurrence]) -> bool:
    """Whether one separator joins the documents, no document contains it, and all rivals are in sentences."""
    begin, end = chosen[0].begin, chosen[-1].end
    separator = _distinct_separator(text, chosen)
    in_sentences = all(is_in_sentence(text, *rival.span) for rival in rivals)
    is_beside = any(separator in (text[rival.end : begin], text[end : rival.begin]) for rival in rivals)
    return separator.strip(" ") != "" and in_sentences and not is_beside and not is_cut(text, begin, end)


def _distinct_separator(text: str, occurrences: Sequence[Occurrence]) -> str:
    """Return the separator of the occurrences, or "" if separators differ or a document contains it."""
    gaps = set(gaps_between(text, [occurrence.span for occurrence in occurrences]))
    if len(gaps) != 1:
        return ""
    separator = gaps.pop()
    is_inside = any(separator in text[occurrence.begin : occurrence.end] for occurrence in occurrences)
    return "" if is_inside else separator


def _documents(occurrences: Sequence[Occurrence]) -> set[str]:
    return {occurrence.document for occurrence in occurrences}


def is_in_sentence(text: str, begin: int, end: int) -> bool:
    """Whether ``text[begin:end]`` is in a sentence: after a space, and before a space or a punctuation mark."""
    return text[begin - 1 : begin] == " " and text[end : end + 1] in IN_SENTENCE


def _mark_margins(text: str, chosen: list[Occurrence]) -> list[Occurrence] | None:
    """Record in ``margins`` whether documents differ in leading or trailing white space.

    Return ``None`` if two documents are equal apart from this white space. Quoted documents have no margins.
    """
    if all(is_quoted(text, *occurrence.span) for occurrence in chosen):
        if len({text[occurrence.end] for occurrence in chosen}) < 2:
            return chosen
        return [replace(occurrence, begin=occurrence.begin - 1, end=occurrence.end + 1) for occurrence in chosen]
    documents = _documents(chosen)
    leading = {document[: len(document) - len(document.lstrip())] for document in documents}
    trailing = {document[len(document.rstrip()) :] for document in documents}
    margins = Margins(len(leading) > 1, len(trailing) > 1)
    if any(margins) and len({document.strip() for document in documents}) < len(documents):
        return None
    return [replace(occurrence, margins=margins) for occurrence in chosen]
