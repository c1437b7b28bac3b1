"""The messages of a prompt that hold documents, be they parted by a chat template or by roles in plain text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from ragbias.boundaries.matching.occurrences import Occurrence
from ragbias.boundaries.patterns import MESSAGE_BORDER
from ragbias.boundaries.spans import split_at

Speaker = Literal["assistant", "tool", "other"]

ROLE_LABEL = re.compile(  # at the beginning of a line, or inside one in capitals, as Vicuna has them
    r"^[ \t]*(?:\#{1,6}[ ]*|\*\*)?(?i:(?P<assistant>ai|assistant|bot|chatbot|model)|(?P<tool>tool)|"
    r"human|user|system)(?:[ ]message)?(?:\*\*)?[ ]?:(?:\*\*)?|(?<=[ >])(?:USER|(?P<inline>ASSISTANT)):",
    re.MULTILINE,
)
NAMES = r"user|system|human|developer|assistant|model|tool|ipython|function|observation|final"
OPENING = re.compile(
    rf"(?:(?:{MESSAGE_BORDER.pattern})\s*(?:(?:{NAMES})(?=\s*(?:\n|<)))?\s*)+"
)  # borders with a role's name
ROLE_NAME = re.compile(
    r"(?P<assistant>assistant|chatbot|(?<![^\W_])model(?![^\W_])|\[/INST\]|\[/TOOL_RESULTS\])"
    r"|(?P<tool>tool|ipython|function|observation)|user|system|human|developer|\[INST\]",
    re.IGNORECASE,
)
ANSWER_LABEL = r"^[ \t]*\**(?:[A-Z]?[a-z]+ )?(?i:answer|response|a)\**:\**\s*"
ANSWER_BEGINS = re.compile(rf"{ANSWER_LABEL}\Z", re.MULTILINE)
ANSWERED = re.compile(rf"{ANSWER_LABEL}(?:\S[^\n]*\n|\Z)", re.MULTILINE)


@dataclass(frozen=True)
class Message:
    """A message of a prompt.

    Attributes:
        occurrences: the documents in it, in ascending order, apart.
        begin: where its text begins, after the role.
        end: where its text ends, before what parts it from the next message.
        speaker: whose message it is.
    """

    occurrences: Sequence[Occurrence]
    begin: int
    end: int
    speaker: Speaker


def messages(text: str, occurrences: Sequence[Occurrence]) -> list[Message]:
    """The messages that hold documents, in ascending order. What looks like a border inside a document is none.

    Roles in plain text (``Human:`` and ``AI:``, or an answered question) part two messages too. A label of one role
    alone, or of an answer, does so only if it is not between all documents; else it is the documents' own.

    Args:
        text: the prompt.
        occurrences: of documents, in ascending order, apart.
    """
    gaps = [text[left.end : right.begin] for left, right in pairwise(occurrences)]
    certainty = [_parted(gap, before) for before, gap in zip(["", *gaps], gaps, strict=False)]
    needed = 1 if 0 in certainty else 2
    groups = split_at(occurrences, [index for index, each in enumerate(certainty, 1) if each >= needed])
    edges = [0, *(group[-1].end for group in groups)], [*(group[0].begin for group in groups), len(text)]
    return [_message(text, group, edges[0][index], edges[1][index + 1]) for index, group in enumerate(groups)]


def _message(text: str, occurrences: Sequence[Occurrence], first: int, last: int) -> Message:
    """The message of these documents, somewhere in ``text[first:last]``."""
    before, after = text[first : occurrences[0].begin], text[occurrences[-1].end : last]
    openings = sorted([*OPENING.finditer(before), *ROLE_LABEL.finditer(before)], key=lambda match: match.end())
    closings = [match.start() for match in (MESSAGE_BORDER.search(after), ROLE_LABEL.search(after)) if match]
    answered = list(ANSWERED.finditer(before))
    begin = max([0, *(each.end() for each in openings[-1:]), *(each.end() for each in answered[-1:])])
    speaker = _speaker(openings[-1]) if openings and openings[-1].end() >= begin else "other"
    if first and ANSWER_BEGINS.search(before):
        speaker = "assistant"
    return Message(occurrences, first + begin, occurrences[-1].end + min([*closings, len(after)]), speaker)


def _speaker(opening: re.Match[str]) -> Speaker:
    groups = opening.groupdict()
    names = [match.groupdict() for match in ROLE_NAME.finditer(opening[0])]
    groups = groups or (names[-1] if names else {})
    if groups.get("assistant") or groups.get("inline"):
        return "assistant"
    return "tool" if groups.get("tool") else "other"


def _parted(gap: str, before: str) -> int:
    """How certainly a border is between two documents: 2 for sure, 1 if such labels are not between all, 0 none.

    Args:
        gap: the text between the two.
        before: the one before the first of them, which is an answer itself if that is what its label says.
    """
    if MESSAGE_BORDER.search(gap):
        return 2
    roles = {bool(match["assistant"] or match["inline"]) for match in ROLE_LABEL.finditer(gap)}
    answered = ANSWERED.search(gap) or ANSWER_BEGINS.search(before)
    return 2 if len(roles) == 2 else 1 if roles or answered else 0
