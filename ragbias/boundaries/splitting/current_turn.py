"""Which occurrences of documents are this turn's context, and which are of earlier turns, or quoted."""

from __future__ import annotations

import re
from bisect import bisect
from collections import Counter
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import combinations, pairwise

from ragbias.boundaries.matching.occurrences import Occurrence, is_bounded
from ragbias.boundaries.patterns import LETTER, QUESTION_LABEL, common_prefix, common_suffix, is_separator
from ragbias.boundaries.sources.known_text import fields_of
from ragbias.boundaries.sources.known_text import merged as with_fields_of_both
from ragbias.boundaries.spans import Span
from ragbias.boundaries.splitting.document_groups import PART_OF_WORD, document_groups
from ragbias.boundaries.splitting.messages import Message, messages
from ragbias.boundaries.splitting.metadata_blocks import with_metadata

MIN_CHARACTERS = 8  # shorter texts occur in too many prompts by chance
MIN_TEMPLATE = 12  # characters with which two messages begin alike, if both are of one template
MAX_AROUND = 300  # characters around a block that are looked at
QUESTION = re.compile(rf"^[ \t]*{QUESTION_LABEL.pattern}", re.IGNORECASE | re.MULTILINE)
CONTEXT_LABEL = re.compile(
    r"[^\n:?]{0,40}\b(?:context|documents?|docs|sources?|passages?|chunks?|snippets?|excerpts?|references?|results?"
    r"|information|knowledge|articles?|facts|evidence|texts?|data)\b[^\n:?]{0,30}(?::|[\W_]*$)",
    re.IGNORECASE,
)
LABEL_LINES = 4  # last lines before a document that may be a label, or its own header
OPENING_MARKS, CLOSING_MARKS = " \t\"'`([{\u2018\u201c\u00ab", " \t\"'`)]}\u2019\u201d\u00bb"
UNCLEAR = (
    "documents are in the prompt several times, and which of them are this turn's context cannot be told; put a line "
    "such as 'Context:' before it, or name a segmenter"
)


@dataclass(frozen=True)
class CurrentTurn:
    """What to look for, and where.

    Attributes:
        documents: those of the latest retrieval in the prompt, and of all that continue its context; as often named as
            they were retrieved, or occur there.
        known: by document, its occurrences in this turn, without quotes.
        doubt: in plain words, why these are not known; else empty.
    """

    documents: Sequence[str]
    known: Mapping[str, list[Occurrence]]
    doubt: str = ""


def current_turn(text: str, retrievals: Sequence[Sequence[str]], known: Mapping[str, list[Occurrence]]) -> CurrentTurn:
    """Tell this turn's context from what earlier turns retrieved, and from quotes.

    The latest retrieval counts that has a document in the prompt, where its documents occur last. Retrievals whose
    documents are in the same block belong to it. An assistant's message is never context if there is another.

    Args:
        text: the prompt.
        retrievals: texts, the latest retrieval first.
        known: the occurrences of all these texts, as ``occurrences_by_document`` gives them.
    """
    every = merged(retrievals)
    occurrences = outermost(text, known)
    if not occurrences:
        return CurrentTurn(every, known)
    turns = [_Turn(text, message) for message in messages(text, occurrences)]
    turns = [turn for turn in turns if turn.message.speaker != "assistant"] or turns
    chosen = _choose(turns, retrievals)
    if chosen is None:
        return CurrentTurn(every, known, UNCLEAR)
    turn, latest = chosen
    documents = turn.documents_with(retrievals, latest)
    if documents is None:
        return CurrentTurn(every, known, UNCLEAR)
    wanted = set(documents)
    here = {each: turn.within(found) for each, found in known.items() if each in wanted}  # the longest first
    return CurrentTurn(documents, {each: found for each, found in here.items() if found})


def merged(retrievals: Sequence[Sequence[str]]) -> list[str]:
    """The texts of several retrievals, each as often as one of them names it, with the metadata of all."""
    texts: list[str] = []
    for retrieval in retrievals:
        if not texts:
            texts = list(retrieval)
            continue
        new = {text: text for text in retrieval}
        texts = [with_fields_of_both(new[text], text) if text in new else text for text in texts]
        left = Counter(texts)
        for text in retrieval:
            left[text] -= 1
            if left[text] < 0:
                texts.append(text)
    return texts


def outermost(text: str, known: Mapping[str, list[Occurrence]]) -> list[Occurrence]:
    """The occurrences that are in no longer one, in ascending order.

    Those of short texts count only next to others, with nothing but a separator between; or if there are no others.

    Args:
        text: the prompt.
        known: occurrences by document.
    """
    long = {document: found for document, found in known.items() if is_long(document)}
    short = {document: found for document, found in known.items() if document not in long} if long else {}
    taken = _apart(text, [], long or known)
    near = _apart(text, taken, short)
    for each in (*near, *reversed(near)):  # from both sides, as short ones may be next to each other
        index = bisect(taken, each)
        if index and taken[index - 1] == each:
            continue
        before = taken[index - 1].end if index else -1
        after = taken[index].begin if index < len(taken) else -1
        if (before >= 0 and is_separator(text[before : each.begin])) or (
            after >= 0 and is_separator(text[each.end : after])
        ):
            taken.insert(index, each)
    return taken


def n_outside(text: str, known: Mapping[str, list[Occurrence]], spans: Sequence[Span]) -> int:
    """The number of times that documents are in the prompt outside of all spans; short ones may be there by chance."""
    found = outermost(text, {document: found for document, found in known.items() if is_long(document)})
    return sum(not any(each.begin < end and begin < each.end for begin, end in spans) for each in found)


def is_long(document: str) -> bool:
    """Whether a text is long enough not to be in a prompt by chance."""
    return len(document.strip()) >= MIN_CHARACTERS


def _apart(text: str, taken: Sequence[Occurrence], known: Mapping[str, list[Occurrence]]) -> list[Occurrence]:
    """The known occurrences that overlap neither a longer one nor what is taken, in ascending order."""
    apart = list(taken)
    every = (each for found in known.values() for each in _bounded(text, found))
    for each in sorted(every, key=lambda each: (each.begin - each.end, each)):
        index = bisect(apart, each)
        if not any(each.overlaps(other) for other in apart[max(0, index - 1) : index + 1]):
            apart.insert(index, each)
    given = set(taken)
    return [each for each in apart if each not in given]


def _bounded(text: str, found: Sequence[Occurrence]) -> Sequence[Occurrence]:
    return [each for each in found if is_bounded(text, each.begin, each.end)] or found


class _Block:
    """Neighbouring documents in a message, and how the text around says that they are context or quoted.

    Attributes:
        occurrences: of the documents, in ascending order.
        documents: their texts.
        begin, end: of all, in characters.
        uniform: whether the same text is between all of them.
        inside_sentence: whether words go on right before the first or after the last document.
        labelled: whether a line before it says that documents follow.
        question: where the last question label before it ends, in characters; -1 if there is none.
        in_question: whether it begins in the line of that label.
    """

    def __init__(self, text: str, occurrences: Sequence[Occurrence], first: int, last: int, question: int) -> None:
        self.occurrences = occurrences
        self.documents = {each.document for each in occurrences}
        self.begin, self.end = occurrences[0].begin, occurrences[-1].end
        self.uniform = len({text[left.end : right.begin] for left, right in pairwise(occurrences)}) < 2
        before, after = text[first : self.begin], text[self.end : last]
        labels = [match.end() for match in QUESTION.finditer(before)]
        self.question = first + labels[-1] if labels else question
        self.in_question = bool(labels) and "\n" not in before[labels[-1] :]
        left = before.rpartition("\n")[2].rstrip(OPENING_MARKS)[-1:]
        right = after.partition("\n")[0].lstrip(CLOSING_MARKS)[:1]
        begins_inside = left.isalpha() or left in tuple(",;")
        self.inside_sentence = begins_inside or right.isalnum() or right in tuple("?!,;")
        lines = before[labels[-1] if labels else 0 :][-MAX_AROUND:].splitlines()
        last_lines = [line for line in lines if line.strip()][-LABEL_LINES:]
        self.labelled = not begins_inside and not self.in_question and any(map(CONTEXT_LABEL.match, last_lines))

    def quotes(self, other: _Block) -> int:
        """Positive if this block quotes the other one's documents, negative if the other way round, else 0: as all
        that tells says, if it does not contradict itself."""
        first, second = sorted((self, other), key=lambda block: block.begin)
        asked = (second.question >= first.end) - (first.in_question and not first.labelled)
        signs = {first.labelled - second.labelled, second.inside_sentence - first.inside_sentence, asked} - {0}
        verdict = signs.pop() if len(signs) == 1 else 0
        return verdict if second is self else -verdict


class _Turn:
    """A message, without the blocks that are quotes.

    Attributes:
        message: as given.
        blocks: that may be its context.
        rivals: pairs of blocks with documents in common, one of which is a quote.
    """

    def __init__(self, text: str, message: Message) -> None:
        self.text, self.message = text, message
        blocks = _blocks(text, message)
        quotes: set[_Block] = set()
        self.rivals: list[tuple[_Block, _Block]] = []
        for first, second in combinations(blocks, 2):
            verdict = first.quotes(second)
            quote = first if verdict > 0 else second
            shared = not first.documents.isdisjoint(second.documents)
            if (verdict and shared) or (verdict > 0 and second.question >= first.end and len(second.documents) == 1):
                quotes.add(quote)
            elif shared:
                self.rivals.append((first, second))
        self.quotes = quotes
        self.blocks = [block for block in blocks if block not in quotes]
        self.rivals = [pair for pair in self.rivals if quotes.isdisjoint(pair)]
        self.documents = {document for block in self.blocks for document in block.documents}

    @property
    def inside_sentence(self) -> bool:
        return all(block.inside_sentence for block in self.blocks)

    @property
    def labelled(self) -> bool:
        return any(block.labelled for block in self.blocks)

    @property
    def around(self) -> tuple[str, str]:
        """What the message says before its first and after its last document."""
        before = self.text[self.message.begin : self.blocks[0].begin]
        return before, self.text[self.blocks[-1].end : self.message.end][:MAX_AROUND]

    def comes_after(self, earlier: _Turn, retrieved: AbstractSet[str]) -> bool | None:
        """Whether the documents here are this turn's, if they are in an earlier message too; ``None``: cannot be told.

        Args:
            earlier: that message.
            retrieved: the documents of the latest retrieval.
        """
        ours, theirs = self.documents & retrieved, earlier.documents & retrieved
        wordless = not any(map(LETTER.search, self.around))
        alike = _of_one_template(self.around, earlier.around) and not (wordless and len(ours) == 1)
        if self.inside_sentence and not earlier.inside_sentence:
            return None if alike else False
        if (
            alike
            or self.labelled
            or self.message.speaker == "tool"
            or (earlier.inside_sentence and not self.inside_sentence)
        ):
            return True
        asks = self.around[0].rstrip().endswith("?") and earlier.labelled
        if asks or (wordless and len(ours) == 1 and any(map(LETTER.search, earlier.around))):
            return False  # a question about documents, or one that is the same as a document
        if ours.isdisjoint(theirs):
            return len(ours) > 1 or len(theirs) == 1
        return True if ours > theirs or not earlier.documents <= retrieved else None

    def documents_with(self, retrievals: Sequence[Sequence[str]], latest: int) -> list[str] | None:
        """The documents of a retrieval and of all that continue its context here; ``None`` if these cannot be told."""
        blocks = [block for block in self.blocks if not block.documents.isdisjoint(retrievals[latest])]
        if not self.documents <= set(retrievals[latest]) and (len(blocks) > 1 or self._shows_metadata()):
            blocks = self.blocks
        if any(first in blocks or second in blocks for first, second in self.rivals):
            return None
        together = [retrievals[latest]]
        left = {document for block in blocks for document in block.documents} - set(retrievals[latest])
        for retrieval in (*retrievals[latest + 1 :], *retrievals[:latest]):
            if not left.isdisjoint(retrieval):
                together.append(retrieval)
                left -= set(retrieval)
        wanted = Counter(merged(together))
        for block in blocks:
            counts = Counter(each.document for each in block.occurrences)
            if not counts <= wanted:
                if not block.uniform:
                    return None
                together.append([each.document for each in block.occurrences])
        return merged(together)

    def within(self, found: Sequence[Occurrence]) -> list[Occurrence]:
        """The occurrences that are in the message, but in none of its quotes."""
        begin, end = self.message.begin, self.message.end
        here = [each for each in found if each.begin < end and begin < each.end]
        return [
            each for each in here if not any(quote.begin < each.end and each.begin < quote.end for quote in self.quotes)
        ]

    def _shows_metadata(self) -> bool:
        """Whether the documents of all retrievals here have their metadata around them in the same way."""
        found = [each for block in self.blocks for each in block.occurrences]
        fields = fields_of(each.document for each in found)
        spans = [each.span for each in found]
        return (
            bool(fields)
            and with_metadata(self.text, spans, [fields.get(each.document, {}) for each in found]) is not None
        )


def _blocks(text: str, message: Message) -> list[_Block]:
    """The groups of documents in a message. A question parts them, unless it is between all documents."""
    gaps = {right.begin: text[left.end : right.begin] for left, right in pairwise(message.occurrences)}
    asked = {begin for begin, gap in gaps.items() if QUESTION.search(gap)}
    asked = asked if len(asked) < len(gaps) else set()
    groups: list[list[Occurrence]] = []
    for group in document_groups(text, message.occurrences):
        for index, each in enumerate(group):
            if index and each.begin not in asked:
                groups[-1].append(each)
            else:
                groups.append([each])
    begins = [message.begin, *(group[-1].end for group in groups)]
    ends = [*(group[0].begin for group in groups[1:]), message.end]
    blocks: list[_Block] = []
    for group, first, last in zip(groups, begins, ends, strict=False):
        blocks.append(_Block(text, group, first, last, blocks[-1].question if blocks else -1))
    return blocks


def _choose(turns: Sequence[_Turn], retrievals: Sequence[Sequence[str]]) -> tuple[_Turn, int] | None:
    """The message with this turn's context, and the index of its retrieval; ``None`` if it cannot be told.

    A retrieval of which but a part is in an earlier message, beside documents of others, was left out of this turn's
    prompt; one of which the prompt holds nothing but a quote, too. Then the one before it counts.
    """
    fallback: tuple[_Turn, int] | None = None
    held = [turn for turn in turns if turn.documents]
    for index, retrieval in enumerate(retrievals):
        retrieved = set(retrieval)
        options = [turn for turn in held if not turn.documents.isdisjoint(retrieved)]
        if not options:
            continue
        turn = _latest(options, retrieved)
        if turn is None:
            return None
        fits = turn is held[-1] or turn.documents <= retrieved or retrieved <= turn.documents
        quoted = turn.inside_sentence and len(turn.documents) == 1 and not all(each.inside_sentence for each in held)
        if fits and not quoted:
            return turn, index
        fallback = fallback or (turn, index)
    return fallback


def _latest(turns: Sequence[_Turn], retrieved: AbstractSet[str]) -> _Turn | None:
    """The message that is later than all others, or that the later ones only quote."""
    for index in reversed(range(len(turns))):
        before = all(turns[index].comes_after(other, retrieved) for other in turns[:index])
        if before and all(other.comes_after(turns[index], retrieved) is False for other in turns[index + 1 :]):
            return turns[index]
    return None


def _of_one_template(ours: tuple[str, str], theirs: tuple[str, str]) -> bool:
    """Whether the text around documents begins or ends with the same words, or is none before them."""
    beginning = common_prefix(ours[0], theirs[0])
    if len(beginning) >= MIN_TEMPLATE and LETTER.search(beginning):
        return True
    if LETTER.search(PART_OF_WORD.sub("", common_suffix(ours[0], theirs[0]))):
        return True
    if re.search(r"\w[^\w\s]|\w\s", common_prefix(ours[1], theirs[1])):
        return True
    return not LETTER.search(ours[0]) and not LETTER.search(theirs[0])
