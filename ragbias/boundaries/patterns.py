"""What recurs in prompts: borders between chat messages, numbered headers, question labels, separators."""

from __future__ import annotations

import os
import re
import string
import unicodedata

MESSAGE_BORDER = re.compile(
    r"<[|｜][^|｜>]*[|｜]>|</?(?:start|end)_of_turn>|\[/?INST\]|</?s>|\[/?TOOL_RESULTS\]|</?tool_response>"
)
NUMBER = re.compile(r"\d+")
LETTER = re.compile(r"[^\W\d_]")
QUESTION_LABEL = re.compile(
    r"(?<!\*)\**(?:question|query|user|human|answer|instructions?|task)\b[^\n:]{0,20}:", re.IGNORECASE
)
QUESTION_LINE = re.compile(rf"\n[ \t]*{QUESTION_LABEL.pattern}", re.IGNORECASE)
DOCUMENT_LABEL = (
    r"(?i:(?:retrieved[ ]|search[ ])?(?:document|doc|source|passage|chunk|snippet|excerpt|context|result|text))"
)
NUMBERED_HEADER = re.compile(
    rf"""
    (?P<markup>\#{{1,6}}[ ]|\*\*)?
    (?:
        (?P<label>{DOCUMENT_LABEL})[ ]?
        (?:\[(?P<square>\d{{1,4}})\]|\((?P<round>\d{{1,4}})\)|\#?(?P<plain>\d{{1,4}})(?=:|[ ]?\(|\*\*|[ \t]*(?:\n|$)))
        (?:[ ]?\((?:[^()\n]|\([^()\n]*\))*\))?                # (Title: ...), with parentheses of its own
      | \[(?P<bare>\d{{1,4}})\](?=\s)
    )
    (?:\*\*)?(?P<colon>:?)(?:\*\*)?(?=\s)[ \t]*\n?
    """,
    re.VERBOSE,
)
ESCAPED_SPACE = re.compile(r"\\[nrt]")  # as in a printed list


def is_separator(gap: str) -> bool:
    """Whether the text between two documents is nothing but a separator, escaped or not, numbering included."""
    return not LETTER.search(ESCAPED_SPACE.sub("", gap)) and not MESSAGE_BORDER.search(gap)


def holds_words(gap: str) -> bool:
    """Whether there is a letter, a digit or a symbol such as a star: more than space, escaped too, and punctuation."""
    bare = ESCAPED_SPACE.sub("", gap)
    return any(unicodedata.category(each)[0] in "LMNS" and each not in string.punctuation for each in bare)


def common_prefix(*texts: str) -> str:
    """The longest text that all begin with."""
    return os.path.commonprefix(texts)  # noqa: RUF071 - by character is meant


def common_suffix(*texts: str) -> str:
    """The longest text that all end with."""
    return common_prefix(*(text[::-1] for text in texts))[::-1]
