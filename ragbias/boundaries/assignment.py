"""Choose one occurrence for each document of the current context.

The current context is the last message that contains documents. The model reads documents of earlier messages as plain
text. Occurrences next to each other are preferred. Longer documents are assigned first. Documents never overlap.
"""

from __future__ import annotations

import re
from bisect import insort
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, pairwise, product

from ragbias.boundaries.matching import (
    MAX_OCCURRENCES,
    MIN_CHARACTERS,
    READINGS,
    Occurrence,
    ends_block,
    fills_lines,
    is_bounded,
    is_cut,
    is_quoted,
    is_uniform,
)
from ragbias.boundaries.text import MESSAGE_BORDER, OPENING, CharSpan, Margins, gaps_between, is_separator, split_at

Known = Mapping[str, list[Occurrence]]  # the occurrences of each document, the longest document first
UNCLEAR = "documents occur several times and cannot be distinguished; pass a segmenter= that finds the right ones"
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


def select_last_message(text: str, known: Known) -> Known | None:
    """Return the occurrences in the last message with documents, or ``None`` if the current context is ambiguous.

    Messages of the assistant are skipped. An earlier message with several documents makes the context ambiguous if the
    last message has only one document, or shares documents with the earlier message. There are two exceptions:

    - The last message has all documents of the earlier message and more.
    - Both messages introduce their documents with the same text, as in a chat loop.
    """
    if any(is_long(document) and len(found) >= MAX_OCCURRENCES for document, found in known.items()):
        return None  # a prompt of repeated lines
    parts = _messages(text, outermost_occurrences(text, known))
    last = _documents(parts[-1]) if parts else set()
    for part in parts[:-1]:
        other = _documents(part)
        repeats = len(other) > 1 and (len(last) == 1 or not last.isdisjoint(other)) and not other < last
        if repeats and not _have_same_introduction(text, part, parts[-1]):
            return None
    if not parts:
        return known
    begin, end = message_bounds(text, parts[-1])
    here = {document: [o for o in found if begin <= o.begin < end] for document, found in known.items()}
    return {document: found for document, found in here.items() if found}


def assign_occurrences(text: str, documents: Sequence[str], known: Known) -> list[Occurrence] | None:
    """Return one occurrence per document, sorted by position, or ``None`` if the choice is ambiguous.

    ``documents`` may list a document twice. Fewer occurrences are returned if some documents are missing.
    """
    wanted = Counter(documents)
    known = {document: found for document, found in known.items() if document in wanted}
    chosen = _choose(text, wanted, known)
    taken = [(occurrence.begin, occurrence.end) for occurrence in chosen]
    free = {document: [o for o in found if not o.is_in(taken)] for document, found in known.items()}
    left_over = outermost_occurrences(text, free)
    is_complete = len(chosen) == wanted.total()
    if _may_be_shifted(text, chosen, known):
        return None
    if left_over or not is_complete:
        is_block = is_complete and _is_block(text, chosen)
        if _overlap(known, nesting=bool(left_over) and not is_block):
            return None
        rivals = [occurrence for occurrence in left_over if occurrence.document in _documents(chosen)]
        if len(chosen) > 1 and rivals and not _is_clear(text, chosen, rivals, is_block):
            return None
    return _mark_margins(text, chosen)


def _may_be_shifted(text: str, chosen: Sequence[Occurrence], known: Known) -> bool:
    """Whether ``chosen`` may be wrong: another occurrence of a long document crosses its beginning or end."""
    for edge in (chosen[0].begin, chosen[-1].end) if chosen else ():
        for document, found in known.items():
            across = (
                text[o.begin : edge].strip() and text[edge : o.end].strip() for o in found if o.begin < edge < o.end
            )
            if is_long(document) and any(across):
                return True
    return False


def _is_clear(text: str, chosen: Sequence[Occurrence], rivals: Sequence[Occurrence], is_block: bool) -> bool:
    """Whether the chosen occurrences are the context, although some documents also occur elsewhere.

    The occurrences elsewhere are the ``rivals``. Rivals of short documents must be in sentences. In a block of short
    lines, nothing else is required. Otherwise, the same separator must join all chosen occurrences, and only one
    document may have rivals, for example because the question quotes it.
    """
    short = [occurrence for occurrence in rivals if not is_long(occurrence.document)]
    if short and not _are_joined(text, chosen, short):
        return False
    if is_block and not any(map(is_long, _documents(chosen))):
        return True
    gaps = [text[o.end : chosen[0].begin] if o < chosen[0] else text[chosen[-1].end : o.begin] for o in rivals]
    return len(_documents(rivals)) == 1 and not any(map(is_separator, gaps)) and is_uniform(text, chosen)


def _overlap(known: Known, nesting: bool) -> bool:
    """Whether occurrences of long documents partly overlap. ``nesting`` also counts one document inside another."""
    long = [occurrence for document, found in known.items() if is_long(document) for occurrence in found]
    last: Occurrence | None = None
    for occurrence in sorted(long, key=lambda o: (o.begin, -o.end)):
        is_inside = last is not None and occurrence.end <= last.end
        is_conflict = not is_inside or (nesting and last is not None and occurrence.document != last.document)
        if last and occurrence.begin < last.end and is_conflict:
            return True
        last = last if is_inside else occurrence
    return False


def outermost_occurrences(text: str, known: Known) -> list[Occurrence]:
    """Return the longest disjoint occurrences in order. Skip short documents that begin or end inside a word."""
    taken: list[CharSpan] = []
    apart: list[Occurrence] = []
    bounded = {document: [o for o in found if is_bounded(text, *o.span)] for document, found in known.items()}
    whole = (some or (known[document] if is_long(document) else []) for document, some in bounded.items())
    for occurrence in sorted(chain.from_iterable(whole), key=lambda o: (o.begin - o.end, o.begin, o.document)):
        if not occurrence.is_in(taken):
            insort(taken, (occurrence.begin, occurrence.end))
            apart.append(occurrence)
    return sorted(apart)


def outside_sentences(text: str, known: Known) -> dict[str, list[Occurrence]]:
    """Return the outermost occurrences. Skip short texts in sentences, such as ``due`` in ``Is it due?``."""
    separate: dict[str, list[Occurrence]] = {}
    every = outermost_occurrences(text, known)
    for index, occurrence in enumerate(every):
        gaps = gaps_between(text, [other.span for other in every[max(0, index - 1) : index + 2]])
        is_beside = any(is_separator(gap) and not {"|", ";"}.isdisjoint(gap) for gap in gaps)  # ``Due; Paid``
        if is_long(occurrence.document) or is_beside or not _is_in_sentence(text, occurrence):
            separate.setdefault(occurrence.document, []).append(occurrence)
    return {document: separate[document] for document in known if document in separate}


def count_outside(text: str, known: Known, spans: Sequence[CharSpan]) -> int:
    """Count the occurrences of long documents that overlap no span."""
    found = outermost_occurrences(text, {document: found for document, found in known.items() if is_long(document)})
    return sum(not occurrence.is_in(spans) for occurrence in found)


def is_long(document: str) -> bool:
    """Whether a text is too long to occur in a prompt by chance."""
    return len(document.strip()) >= MIN_CHARACTERS


def is_joined_text(retrieval: Sequence[str], others: Sequence[Sequence[str]]) -> bool:
    """Whether a retrieval is one text that joins several texts of other retrievals."""
    joined, *more = set(retrieval)
    parts = {text for other in others if joined not in other for text in other if is_long(text) and text in joined}
    return not more and len(parts) > 1


def count_expected(text: str, candidates: Sequence[Sequence[str]], in_message: Known) -> Counter[str]:
    """Count the documents that the prompt should contain, from ``candidates``, the latest retrieval first.

    All documents of the latest retrieval count. Documents of earlier retrievals count if they occur outside longer
    documents.
    """
    latest, *earlier = candidates
    separate = {occurrence.document for occurrence in outermost_occurrences(text, in_message)}
    outside = ([document for document in retrieval if document in separate] for retrieval in earlier)
    return merge_counts([latest, *outside])


def merge_counts(retrievals: Iterable[Iterable[str]]) -> Counter[str]:
    """Count the texts of several retrievals. The count of a text is its maximum over the retrievals."""
    merged: Counter[str] = Counter()
    for retrieval in retrievals:
        merged |= Counter(retrieval)
    return merged


def _is_block(text: str, chosen: Sequence[Occurrence]) -> bool:
    """Whether one separator with a line break or tab joins all chosen occurrences, and no document contains it."""
    return is_uniform(text, chosen) and not _distinct_separator(text, chosen).isprintable()


def _distinct_separator(text: str, occurrences: Sequence[Occurrence]) -> str:
    """Return the separator of the occurrences, or "" if separators differ or a document contains it."""
    separator, *others = {text[left.end : right.begin] for left, right in pairwise(occurrences)} or {""}
    return "" if others or any(separator in text[o.begin : o.end] for o in occurrences) else separator


def _messages(text: str, occurrences: Sequence[Occurrence]) -> list[list[Occurrence]]:
    """Group the occurrences by message. Drop messages of the assistant if other messages contain documents."""
    gaps = enumerate(pairwise(occurrences), 1)
    parts = split_at(occurrences, [i for i, (a, b) in gaps if MESSAGE_BORDER.search(text, a.end, b.begin)])
    parts = [part for part in parts if any(map(is_long, _documents(part)))] or parts
    return [part for part in parts if not _is_from_assistant(text, part)] or parts


def _is_from_assistant(text: str, part: Sequence[Occurrence]) -> bool:
    openings = list(OPENING.finditer(text, 0, part[0].begin))
    speakers = list(SPEAKER.finditer(openings[-1][0])) if openings else []
    return bool(speakers) and speakers[-1]["assistant"] is not None


def message_bounds(text: str, part: Sequence[Occurrence]) -> CharSpan:
    """Return the span of the message that contains these occurrences."""
    begins = [border.end() for border in MESSAGE_BORDER.finditer(text, 0, part[0].begin)]
    end = MESSAGE_BORDER.search(text, part[-1].end)
    return max(begins, default=0), end.start() if end else len(text)


def _documents(part: Sequence[Occurrence]) -> set[str]:
    return {occurrence.document for occurrence in part}


def _have_same_introduction(text: str, first: Sequence[Occurrence], second: Sequence[Occurrence]) -> bool:
    """Whether two messages have the same first lines, or the same line before their documents.

    A line break, quotation mark, tag or the end of the prompt must follow the last document of both messages.
    """
    (begin, lead, ends), (other_begin, other_lead, other_ends) = (_introduction(text, part) for part in (first, second))
    return ends and other_ends and (lead == other_lead or begin == other_begin)


def _introduction(text: str, part: Sequence[Occurrence]) -> tuple[str, str, bool]:
    """Return a message's first lines, the line before its documents, and whether its last document ends a block."""
    before = text[message_bounds(text, part)[0] : part[0].begin]
    lines = TOOL.sub("", before).strip().splitlines() or [""]
    return "".join(lines[:2]), lines[-1], ends_block(text, part[-1])


def _choose(text: str, wanted: Counter[str], known: Known) -> list[Occurrence]:
    """Choose occurrences of as many documents as possible. Prefer the same form and separator for all documents."""
    candidates = {  # without short documents inside words or lines such as ``---``
        document: [o for o in found if is_long(document) or not is_cut(text, *o.span)]
        for document, found in known.items()
    }
    best: list[Occurrence] = []
    tried: list[Known] = []
    readings = sorted({reading for o in chain.from_iterable(candidates.values()) for reading in o.readings})
    for reading in (*readings, None):  # None allows different forms, except rewrites of formatters
        options = {}
        for document, occurrences in candidates.items():
            unchanged = [o for o in occurrences if min(o.readings) < len(READINGS)]
            if usable := unchanged if reading is None else [o for o in occurrences if reading in o.readings]:
                options[document] = usable
        if options and options not in tried:
            tried.append(options)
            best = max(best, _longest_run(text, options, wanted), key=len)
            if len(best) < wanted.total():
                best = max(best, _choose_one_by_one(text, options, wanted), key=len)
        if len(best) == wanted.total():
            break
    return best


def _are_joined(text: str, chosen: Sequence[Occurrence], rivals: Sequence[Occurrence]) -> bool:
    """Whether one separator joins the documents, no document contains it, and all rivals are in sentences."""
    begin, end, separator = chosen[0].begin, chosen[-1].end, _distinct_separator(text, chosen)
    in_sentence = all(_is_in_sentence(text, occurrence) for occurrence in rivals)
    beside = any(separator in (text[occurrence.end : begin], text[end : occurrence.begin]) for occurrence in rivals)
    return separator.strip(" ") != "" and in_sentence and not beside and not is_cut(text, begin, end)


def _is_in_sentence(text: str, occurrence: Occurrence) -> bool:
    """Whether the occurrence is in a sentence: after a space, and before a space or a punctuation mark."""
    begin, end = occurrence.begin, occurrence.end
    return text[begin - 1 : begin] == " " and text[end : end + 1] in IN_SENTENCE


def _mark_margins(text: str, assigned: list[Occurrence]) -> list[Occurrence] | None:
    """Record in ``margins`` whether documents differ in leading or trailing white space.

    Return ``None`` if two documents are equal apart from this white space. Quoted documents have no margins.
    """
    documents = _documents(assigned)
    left = len({document[: len(document) - len(document.lstrip())] for document in documents}) > 1
    right = len({document[len(document.rstrip()) :] for document in documents}) > 1
    quoted = all(is_quoted(text, *occurrence.span) for occurrence in assigned)
    if quoted and len({text[o.end] for o in assigned}) > 1:
        return [replace(occurrence, begin=occurrence.begin - 1, end=occurrence.end + 1) for occurrence in assigned]
    if quoted or not (left or right):
        return assigned
    if len({document.strip() for document in documents}) < len(documents):
        return None
    return [replace(occurrence, margins=Margins(left, right)) for occurrence in assigned]


def _longest_run(text: str, options: Known, wanted: Counter[str]) -> list[Occurrence]:
    """Return the longest sequence of documents that the same separator joins.

    Of several longest sequences, prefer, in this order: more documents that are whole words, all documents in quotation
    marks, a separator without letters, a block end after the last document, a later position.
    """
    beginning: dict[int, list[Occurrence]] = defaultdict(list)
    for occurrence in sorted(chain.from_iterable(options.values()), key=lambda o: o.begin - o.end):
        beginning[occurrence.begin].append(occurrence)  # the longest occurrence comes first
    best: list[Occurrence] = []
    best_rank: tuple[int, ...] = ()
    for separator in _separators(text, options):
        for run in _runs(text, beginning, separator, wanted):
            if len(run) >= len(best):
                bounded = sum(is_bounded(text, *occurrence.span) for occurrence in run)
                quoted = all(is_quoted(text, *occurrence.span) for occurrence in run)
                block = ends_block(text, run[-1])
                rank = (len(run), bounded, quoted, is_separator(separator), block, run[0].begin)
                if rank > best_rank:
                    best, best_rank = run, rank
    return best


def _separators(text: str, options: Known) -> list[str]:
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
        left = wanted.copy()
        while position in beginning and position not in seen:
            seen.add(position)
            unused = [occurrence for occurrence in beginning[position] if left[occurrence.document]]
            if not unused:  # the sequence continues after the earlier copy of the document
                yield run.copy()
                unused = list(beginning[position])
                while not left[unused[0].document]:
                    left[run.pop(0).document] += 1
            run.append(unused[0])
            left[unused[0].document] -= 1
            end = unused[0].end
            position = end + len(separator) if text.startswith(separator, end) else -1
        if run:
            yield run


def _choose_one_by_one(text: str, options: Known, wanted: Counter[str]) -> list[Occurrence]:
    """Choose occurrences outside longer documents. Any text may separate them. Prefer occurrences that fill lines."""
    chosen: list[Occurrence] = []
    longer: list[CharSpan] = []  # disjoint occurrences of longer documents
    for document, found in options.items():  # the longest document comes first
        free = [occurrence for occurrence in found if not occurrence.is_in(longer)]
        free = [occurrence for occurrence in free if is_bounded(text, *occurrence.span)] or free
        left = wanted[document]
        for occurrence in sorted(free, key=lambda o: (fills_lines(text, *o.span), o.end, -o.begin), reverse=True):
            if not occurrence.is_in(longer):
                insort(longer, (occurrence.begin, occurrence.end))
                if left:
                    chosen.append(occurrence)
                    left -= 1
    return sorted(chosen)
