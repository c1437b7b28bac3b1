"""Neighbouring documents in a message, and which of several such blocks are quotes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

from ragbias.boundaries.matching.occurrences import Occurrence
from ragbias.boundaries.patterns import LETTER, QUESTION_LABEL, common_prefix
from ragbias.boundaries.spans import split_at
from ragbias.boundaries.splitting.document_groups import document_groups
from ragbias.boundaries.splitting.messages import Message

MAX_AROUND = 300  # characters around a block that are looked at
QUESTION = re.compile(rf"^[ \t]*{QUESTION_LABEL.pattern}", re.IGNORECASE | re.MULTILINE)
CONTEXT_LABEL = re.compile(
    r"[^\n:?]{0,40}\b(?:context|documents?|docs|sources?|passages?|chunks?|snippets?|excerpts?|references?|results?"
    r"|information|knowledge|articles?|facts|evidence|texts?|data)\b[^\n:?]{0,30}(?::|[\W_]*$)",
    re.IGNORECASE,
)
LABEL_LINES = 4  # last lines before a document that may be a label, or its own header
OPENING_MARKS, CLOSING_MARKS = " \t\"'`([{\u2018\u201c\u00ab", " \t\"'`)]}\u2019\u201d\u00bb"


class Block:
    """Neighbouring documents in a message, and how the text around says that they are context or quoted.

    Attributes:
        occurrences: of the documents, in ascending order.
        documents: their texts.
        begin, end: of all, in characters.
        uniform: whether the same text is between all of them.
        inside_sentence: whether words go on right before the first or after the last document.
        label: the line before it that says that documents follow; empty if there is none.
        after: the text after it, in its message.
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
        labels_of_context = [] if begins_inside or self.in_question else filter(CONTEXT_LABEL.match, last_lines)
        self.label = "".join(labels_of_context)
        self.after = after[:MAX_AROUND]

    def quotes(self, other: Block) -> int:
        """Positive if this block quotes the other one's documents, negative if the other way round, else 0: as all
        that tells says, if it does not contradict itself."""
        first, second = sorted((self, other), key=lambda block: block.begin)
        alike = first.label != "" and first.label == second.label  # as the next turn's context would be
        alike = alike or LETTER.search(common_prefix(first.after, second.after)) is not None
        asked = (second.question >= first.end) - (first.in_question and not first.label)
        labelled = bool(first.label) - bool(second.label)
        signs = {labelled, second.inside_sentence - first.inside_sentence, asked, -alike} - {0}
        verdict = signs.pop() if len(signs) == 1 else 0
        return verdict if second is self else -verdict


def blocks_of(text: str, message: Message) -> list[Block]:
    """The groups of documents in a message. A question parts them, unless it is between all documents."""
    gaps = {right.begin: text[left.end : right.begin] for left, right in pairwise(message.occurrences)}
    asked = {begin for begin, gap in gaps.items() if QUESTION.search(gap)}
    asked = asked if len(asked) < len(gaps) else set()
    groups: list[list[Occurrence]] = []
    for group in document_groups(text, message.occurrences):
        groups += split_at(group, [index for index, each in enumerate(group) if each.begin in asked])
    begins = [message.begin, *(group[-1].end for group in groups)]
    ends = [*(group[0].begin for group in groups[1:]), message.end]
    found: list[Block] = []
    for group, first, last in zip(groups, begins, ends, strict=False):
        found.append(Block(text, group, first, last, found[-1].question if found else -1))
    return found
