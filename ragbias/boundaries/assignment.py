"""Choose one occurrence for each document of the current context.

The current context is the last message that contains documents. The model reads documents of earlier messages as plain
text. Occurrences next to each other are preferred. Longer documents are assigned first. Documents never overlap.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain, pairwise, permutations

from ragbias.boundaries.matching import (
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
from ragbias.boundaries.text import MESSAGE_BORDER, OPENING, CharSpan, Margins, is_separator, split_at

Known = Mapping[str, list[Occurrence]]  # the occurrences of each document, the longest document first
UNCLEAR = "documents occur several times and cannot be distinguished; pass a segmenter= that finds the right ones"
MAX_ANCHORS = 8  # maximum number of occurrences of the longest document from which a search starts
MAX_SEPARATORS = 12  # maximum number of separators tried at each occurrence
MAX_SEPARATOR = 200  # maximum length of a separator in characters
MAX_STEPS = 2000  # maximum number of backtracking steps of a search
IN_SENTENCE = tuple(" .,;:?!")  # characters that may follow a word in a sentence
TOOL = re.compile(r"\A\s*(?:tool|ipython|function|observation)\s*\n|<tool_response>\s*\Z")
SPEAKER = re.compile(
    r"(?P<assistant>assistant|chatbot|(?<![^\W_])model(?![^\W_])|\[/INST\]|\[/TOOL_RESULTS\])"
    r"|tool|ipython|function|observation|user|system|human|developer|\[INST\]",
    re.IGNORECASE,
)


def select_last_message(text: str, known: Known) -> Known | None:
    """Return the occurrences in the last message with documents, or ``None`` if the current context is ambiguous.

    Messages of the assistant are skipped. The context is ambiguous if an earlier message has several documents and the
    last message contains only one, or repeats only some of them. It is not ambiguous if both messages introduce their
    documents with the same text, as the turns of a chat loop do.
    """
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
    """Return one occurrence for each document in ascending order, or ``None`` if the choice is ambiguous.

    ``documents`` may list a document twice. If other occurrences remain, the choice is ambiguous in these cases:

    - Documents overlap, and no line break or tab outside the documents separates all chosen occurrences.
    - Several documents have other occurrences, or only a separator is between a chosen and another occurrence.
    - Different separators join the chosen occurrences.
    """
    named = Counter(documents)
    chosen = _assign(text, named, known)
    if chosen is None:
        return None
    taken = [(occurrence.begin, occurrence.end) for occurrence in chosen]
    left_over = [occurrence for occurrence in outermost_occurrences(text, known) if not occurrence.is_in(taken)]
    if left_over or len(chosen) < named.total():
        occurrences_of_named = {name: known[name] for name in named if name in known}
        is_whole = len(chosen) == named.total() and _is_block(text, chosen, occurrences_of_named)
        if _is_ambiguous([] if is_whole else left_over, occurrences_of_named):
            return None
        if is_whole and not any(map(is_long, named)) and _are_joined(text, chosen, left_over):
            return chosen
    names = {occurrence.document for occurrence in chosen}
    if len(names) < 2 or names.isdisjoint(_documents(left_over)):
        return chosen
    gaps = [text[o.end : chosen[0].begin] if o < chosen[0] else text[chosen[-1].end : o.begin] for o in left_over]
    is_rival = len(names & _documents(left_over)) > 1 or any(map(is_separator, gaps))
    return None if is_rival or not is_uniform(text, chosen) else chosen


def _is_ambiguous(rest: Sequence[Occurrence], known: Known) -> bool:
    """Whether two long documents partly overlap, or one contains the other and ``rest`` also contains documents."""
    long = [occurrence for document, found in known.items() if is_long(document) for occurrence in found]
    left_over = not known.keys().isdisjoint(_documents(rest))
    last: Occurrence | None = None
    for occurrence in sorted(long, key=lambda o: (o.begin, -o.end)):
        is_overlapping = last and occurrence.document != last.document and occurrence.begin < last.end
        if last and is_overlapping and (left_over or occurrence.end > last.end):
            return True
        if last is None or occurrence.end > last.end:
            last = occurrence
    return False


def outermost_occurrences(text: str, known: Known) -> list[Occurrence]:
    """Return the longest disjoint occurrences in order, without short documents that begin or end inside a word."""
    cover, apart = _Cover(text), []
    bounded = {document: [o for o in found if is_bounded(text, *o.span)] for document, found in known.items()}
    whole = (some or (known[document] if is_long(document) else []) for document, some in bounded.items())
    for occurrence in sorted(chain.from_iterable(whole), key=lambda o: (o.begin - o.end, o.begin, o.document)):
        if not cover.overlaps(occurrence):
            cover.add([occurrence])
            apart.append(occurrence)
    return sorted(apart)


def count_outside(text: str, known: Known, spans: Sequence[CharSpan]) -> int:
    """Count the occurrences of long documents that overlap no span."""
    found = outermost_occurrences(text, {document: found for document, found in known.items() if is_long(document)})
    return sum(not occurrence.is_in(spans) for occurrence in found)


def is_long(document: str) -> bool:
    """Whether a text is too long to occur in a prompt by chance."""
    return len(document.strip()) >= MIN_CHARACTERS


def _is_block(text: str, chosen: Sequence[Occurrence], known: Known) -> bool:
    """Whether the same text with a line break or tab separates all ``chosen``, and no occurrence crosses its edges."""
    edges = (chosen[0].begin, chosen[-1].end)
    is_crossed = any(o.begin < edge < o.end for o in chain.from_iterable(known.values()) for edge in edges)
    return not is_crossed and is_uniform(text, chosen) and not _distinct_separator(text, chosen).isprintable()


def _distinct_separator(text: str, occurrences: Sequence[Occurrence]) -> str:
    """Return the separator of the occurrences, or "" if it is not the same everywhere or occurs inside a document."""
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


def _assign(text: str, wanted: Counter[str], known: Known) -> list[Occurrence] | None:
    """Choose occurrences of as many documents as possible. Prefer the same form and separator for all documents.

    Return ``None`` if other occurrences are equally likely.
    """
    candidates = {  # without short documents inside words or inside lines such as ``---``
        document: [o for o in occurrences if is_long(document) or not is_cut(text, *o.span)]
        for document, occurrences in known.items()
        if document in wanted
    }
    best: list[Occurrence] = []
    tried_options: list[Known] = []
    exhausted = False
    readings = sorted({reading for o in chain.from_iterable(candidates.values()) for reading in o.readings})
    for reading in (*readings, None):  # None allows different forms, but no formatter's rewrites
        options = {}
        for document, occurrences in candidates.items():
            unchanged = [o for o in occurrences if min(o.readings) < len(READINGS)]
            if usable := unchanged if reading is None else [o for o in occurrences if reading in o.readings]:
                options[document] = usable
        if options and options not in tried_options:
            tried_options.append(options)
            search = _ContiguousSearch(text, options, wanted)
            contiguous = search.best()
            exhausted |= search.steps <= 0
            if len(contiguous) < sum(min(wanted[document], len(found)) for document, found in options.items()):
                contiguous = max(contiguous, _assign_one_by_one(text, options, wanted), key=len)
            best = max(best, contiguous, key=len)
        if len(best) == wanted.total():
            break
    if (exhausted and len(best) < wanted.total()) or _may_be_elsewhere(text, best, candidates):
        return None
    return _mark_margins(text, best)


def _may_be_elsewhere(text: str, assigned: Sequence[Occurrence], every: Known) -> bool:
    """Whether the context may contain a short document at another occurrence instead of the assigned one."""
    cover = _Cover(text, assigned)
    short = {occurrence.document for occurrence in assigned if not is_long(occurrence.document)}
    rivals = [occurrence for document in short for occurrence in every[document] if not cover.overlaps(occurrence)]
    return bool(rivals) and len(assigned) > 1 and not _are_joined(text, assigned, rivals)


def _are_joined(text: str, assigned: Sequence[Occurrence], rivals: Sequence[Occurrence]) -> bool:
    """Whether a separator that no document contains joins the documents, and other occurrences are in sentences."""
    begin, end, separator = assigned[0].begin, assigned[-1].end, _distinct_separator(text, assigned)
    in_sentence = all(is_in_sentence(text, occurrence) for occurrence in rivals)
    beside = any(separator in (text[occurrence.end : begin], text[end : occurrence.begin]) for occurrence in rivals)
    return separator.strip(" ") != "" and in_sentence and not beside and not is_cut(text, begin, end)


def is_in_sentence(text: str, occurrence: Occurrence) -> bool:
    """Whether the occurrence is in a sentence: after a space, and before a space or a punctuation mark."""
    begin, end = occurrence.begin, occurrence.end
    return text[begin - 1 : begin] == " " and text[end : end + 1] in IN_SENTENCE


def _mark_margins(text: str, assigned: list[Occurrence]) -> list[Occurrence] | None:
    """Record in ``margins`` whether documents differ in leading or trailing white space, unless they are quoted.

    Return ``None`` if documents differ only in this white space.
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


class _ContiguousSearch:
    """Search for the longest sequence of documents that the same separator joins."""

    def __init__(self, text: str, options: Known, wanted: Counter[str]) -> None:
        self.text, self.options = text, options
        self.wanted = Counter({document: wanted[document] for document in options})
        self.beginning: dict[int, list[Occurrence]] = defaultdict(list)
        self.ending: dict[int, list[Occurrence]] = defaultdict(list)
        for occurrence in sorted(chain.from_iterable(options.values()), key=lambda o: o.begin - o.end):
            self.beginning[occurrence.begin].append(occurrence)  # the longest occurrence comes first
            self.ending[occurrence.end].append(occurrence)
        self.steps = MAX_STEPS

    def best(self) -> list[Occurrence]:
        """Return the longest sequence. Ties go to whole words, quotes, separators without letters, and block ends."""
        longest = next(iter(self.options))
        anchors = sorted(self.options[longest], key=lambda o: (o.end - o.begin, o.begin), reverse=True)
        best: list[Occurrence] = []
        best_rank = (0, 0, False, False, False)
        for anchor in anchors[:MAX_ANCHORS]:
            for separator in self._separators(anchor):
                for step in (1, -1):
                    sequence = self._sequence(anchor, separator, step)
                    bounded = sum(is_bounded(self.text, *occurrence.span) for occurrence in sequence)
                    quoted = all(is_quoted(self.text, *occurrence.span) for occurrence in sequence)
                    block = ends_block(self.text, sequence[-1])
                    rank = (len(sequence), bounded, quoted, is_separator(separator), block)
                    if rank > best_rank:
                        best, best_rank = sequence, rank
                if best_rank[:2] == (self.wanted.total(), self.wanted.total()) and all(best_rank[3:]):
                    return best
        return best

    def _separators(self, anchor: Occurrence) -> list[str]:
        gaps = {""}
        for occurrences in self.options.values():
            for occurrence in occurrences:
                if anchor.end <= occurrence.begin <= anchor.end + MAX_SEPARATOR:
                    gaps.add(self.text[anchor.end : occurrence.begin])
                elif occurrence.end <= anchor.begin <= occurrence.end + MAX_SEPARATOR:
                    gaps.add(self.text[occurrence.end : anchor.begin])
        return sorted(gaps, key=lambda gap: (gap == "", len(gap), gap))[:MAX_SEPARATORS]

    def _sequence(self, anchor: Occurrence, separator: str, step: int) -> list[Occurrence]:
        """Return the sequence around ``anchor``. Search to the right first (``step=1``), or to the left first (-1)."""
        left = self.wanted.copy()
        left[anchor.document] -= 1
        first = self._extend(anchor, separator, left, step)
        left.subtract(occurrence.document for occurrence in first)
        second = self._extend(anchor, separator, left, -step)
        return sorted([anchor, *first, *second])

    def _extend(self, start: Occurrence, separator: str, left: Counter[str], step: int) -> list[Occurrence]:
        """Return the longest sequence of unused documents after ``start`` (``step=1``) or before it (-1)."""
        best: list[Occurrence] = []
        path: list[Occurrence] = []
        left, total = left.copy(), left.total()
        branches = [iter(self._neighbours(start, separator, left, step))]
        while branches and self.steps > 0 and len(best) < total:
            neighbour = next(branches[-1], None)
            if neighbour is None:
                branches.pop()
                if path:
                    left[path.pop().document] += 1
                continue
            path.append(neighbour)
            left[neighbour.document] -= 1
            best = path.copy() if len(path) > len(best) else best
            neighbours = self._neighbours(neighbour, separator, left, step)
            self.steps -= len(neighbours) > 1
            branches.append(iter(neighbours))
        return best

    def _neighbours(self, start: Occurrence, separator: str, left: Counter[str], step: int) -> list[Occurrence]:
        edge = start.end + len(separator) if step > 0 else start.begin - len(separator)
        if edge < 0 or not self.text.startswith(separator, start.end if step > 0 else edge):
            return []
        neighbours = self.beginning[edge] if step > 0 else self.ending[edge]
        return [neighbour for neighbour in neighbours if left[neighbour.document] > 0]


def _assign_one_by_one(text: str, options: Known, wanted: Counter[str]) -> list[Occurrence]:
    """Choose occurrences outside longer documents. Any text may separate them. Prefer occurrences that fill lines."""
    assigned: list[Occurrence] = []
    longer, taken = _Cover(text), _Cover(text)
    for document, found in options.items():  # the longest document comes first
        pairs = permutations(found, 2) if len({o.end - o.begin for o in found}) > 1 else ()
        inner = {o for o, other in pairs if other.begin <= o.begin and o.end <= other.end}
        free = [occurrence for occurrence in found if occurrence not in inner and not longer.overlaps(occurrence)]
        free = [occurrence for occurrence in free if is_bounded(text, *occurrence.span)] or free
        longer.add(free)
        left = wanted[document]
        for occurrence in sorted(free, key=lambda o: (fills_lines(text, *o.span), o.begin), reverse=True):
            if left and not taken.overlaps(occurrence):
                assigned.append(occurrence)
                taken.add([occurrence])
                left -= 1
    return sorted(assigned)


class _Cover:
    """Record which characters of a prompt are covered by occurrences."""

    def __init__(self, text: str, occurrences: Iterable[Occurrence] = ()) -> None:
        self._covered = bytearray(len(text))
        self.add(occurrences)

    def add(self, occurrences: Iterable[Occurrence]) -> None:
        for occurrence in occurrences:
            self._covered[occurrence.begin : occurrence.end] = b"\1" * (occurrence.end - occurrence.begin)

    def overlaps(self, occurrence: Occurrence) -> bool:
        """Whether any character of the occurrence is covered."""
        return self._covered.find(1, occurrence.begin, occurrence.end) >= 0
