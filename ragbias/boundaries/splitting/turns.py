"""Messages that may hold this turn's context: which of two is the later turn, and what belongs to its context."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from itertools import combinations

from ragbias.boundaries.known_text import fields_of, with_fields_of_both
from ragbias.boundaries.matching.occurrences import Occurrence
from ragbias.boundaries.patterns import LETTER, common_prefix, common_suffix
from ragbias.boundaries.splitting.blocks import Block, blocks_of
from ragbias.boundaries.splitting.document_groups import PART_OF_WORD
from ragbias.boundaries.splitting.messages import Message
from ragbias.boundaries.splitting.metadata_blocks import with_metadata

MIN_TEMPLATE = 12  # characters with which two messages begin alike, if both are of one template
MAX_AFTER = 300  # characters after the last document that are compared


class Turn:
    """A message, and which of its blocks of documents are quotes.

    Attributes:
        message: as given.
        quotes: the blocks that are quotes.
        blocks: all others, which may be its context.
        rivals: pairs of these with documents in common, one of which is a quote.
        documents: of the blocks.
    """

    def __init__(self, text: str, message: Message) -> None:
        self.text, self.message = text, message
        blocks = blocks_of(text, message)
        self.quotes: set[Block] = set()
        self.rivals: list[tuple[Block, Block]] = []
        for first, second in combinations(blocks, 2):
            verdict = first.quotes(second)
            quote = first if verdict > 0 else second
            shared = not first.documents.isdisjoint(second.documents)
            if (verdict and shared) or (verdict > 0 and second.question >= first.end and len(second.documents) == 1):
                self.quotes.add(quote)
            elif shared:
                self.rivals.append((first, second))
        self.blocks = [block for block in blocks if block not in self.quotes]
        self.rivals = [pair for pair in self.rivals if self.quotes.isdisjoint(pair)]
        self.documents = {document for block in self.blocks for document in block.documents}

    @property
    def inside_sentence(self) -> bool:
        return all(block.inside_sentence for block in self.blocks)

    @property
    def labelled(self) -> bool:
        return any(block.label for block in self.blocks)

    @property
    def around(self) -> tuple[str, str]:
        """What the message says before its first and after its last document."""
        before = self.text[self.message.begin : self.blocks[0].begin]
        return before, self.text[self.blocks[-1].end : self.message.end][:MAX_AFTER]

    def comes_after(self, earlier: Turn, retrieved: AbstractSet[str]) -> bool | None:
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

    def blocks_with(self, retrieved: AbstractSet[str]) -> list[Block]:
        """The blocks that hold any of these documents."""
        return [block for block in self.blocks if not block.documents.isdisjoint(retrieved)]

    def documents_with(self, retrievals: Sequence[Sequence[str]], latest: int) -> list[str] | None:
        """The documents of a retrieval and of all that continue its context here; ``None`` if these cannot be told."""
        blocks = self.blocks_with(set(retrievals[latest]))
        if not self.documents <= set(retrievals[latest]) and (len(blocks) > 1 or self._shows_metadata()):
            blocks = self.blocks
        if any(first in blocks or second in blocks for first, second in self.rivals):
            return None
        together = [retrievals[latest]]
        left = {document for block in blocks for document in block.documents} - set(retrievals[latest])
        for retrieval in (*retrievals[latest + 1 :], *retrievals[:latest]) if left else ():
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
        message = [(self.message.begin, self.message.end)]
        quotes = sorted((quote.begin, quote.end) for quote in self.quotes)
        return [each for each in found if each.is_in(message) and not each.is_in(quotes)]

    def _shows_metadata(self) -> bool:
        """Whether the documents of all retrievals here have their metadata around them in the same way."""
        found = [each for block in self.blocks for each in block.occurrences]
        fields = fields_of(each.document for each in found)
        spans = [each.span for each in found]
        return (
            bool(fields)
            and with_metadata(self.text, spans, [fields.get(each.document, {}) for each in found]) is not None
        )


def merged(retrievals: Sequence[Sequence[str]]) -> list[str]:
    """The texts of several retrievals, each as often as one of them names it, with the metadata of all."""
    texts: list[str] = []
    indices: dict[str, list[int]] = {}
    for retrieval in retrievals:
        seen: Counter[str] = Counter()
        for text in retrieval:
            known = indices.setdefault(text, [])
            if seen[text] < len(known):
                index = known[seen[text]]
                texts[index] = with_fields_of_both(text, texts[index])
            else:
                known.append(len(texts))
                texts.append(text)
            seen[text] += 1
    return texts


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
