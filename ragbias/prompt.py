"""A prompt in three parts: what stands before the retrieved documents, the documents, what stands after them."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ragbias.errors import EmptyDocumentError, SpanError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Span = tuple[int, int]


@dataclass(frozen=True)
class Prompt:
    """A retrieval-augmented prompt, split at the borders of its documents.

    Args:
        prefix: all text before the first document, chat template included; may be empty.
        documents: the retrieved chunks in the retriever's order, each with its separator.
        suffix: all text after the last document; the question usually stands here.

    ``prompt.text`` is the plain concatenation of the parts; nothing is added.

    Raises:
        EmptyDocumentError: a document is empty or only white space.
        TypeError: a part is not a string.
    """

    prefix: str
    documents: tuple[str, ...]
    suffix: str

    def __init__(self, prefix: str, documents: Sequence[str], suffix: str) -> None:
        if isinstance(documents, str):
            raise TypeError("documents must be a sequence of strings, got one string; write [document]")
        for part in (prefix, *documents, suffix):
            if not isinstance(part, str):
                raise TypeError(f"a prompt is made of strings, got {type(part).__name__}; pass the document's text")
        for index, document in enumerate(documents):
            if not document.strip():
                raise EmptyDocumentError(f"document {index} of {len(documents)} is empty; leave it out")
        object.__setattr__(self, "prefix", prefix)
        object.__setattr__(self, "documents", tuple(documents))
        object.__setattr__(self, "suffix", suffix)

    @property
    def text(self) -> str:
        """The flat prompt."""
        return self.prefix + "".join(self.documents) + self.suffix

    def reordered(self, order: Sequence[int]) -> Prompt:
        """The same prompt with its documents in another order; ``order[i]`` is the old index of the new ``i``-th."""
        return Prompt(self.prefix, [self.documents[index] for index in order], self.suffix)

    @classmethod
    def from_text(cls, text: str, spans: Sequence[Span]) -> Prompt:
        """Split a flat prompt at the character spans of its documents.

        The text between two documents is their separator (and, from its last line break on, a header of the next
        document, if the gaps differ). So that the set of document segments does not depend on their order, every
        document carries one separator: behind it if one stands behind the last document as well, else in front of it.
        Where the template has none before the first document either, one is added there; only then does ``.text``
        differ from ``text``.

        Args:
            text: the prompt, with chat template.
            spans: ``(begin, end)`` of each document in characters, ``end`` exclusive.

        Raises:
            SpanError: spans overlap or lie outside the text.
            EmptyDocumentError: a span holds no text.
        """
        ordered = check_spans(spans, len(text))
        if not ordered:
            return cls(text, (), "")
        bodies = [text[begin:end] for begin, end in ordered]
        gaps = [text[left[1] : right[0]] for left, right in itertools.pairwise(ordered)]
        prefix, suffix = text[: ordered[0][0]], text[ordered[-1][1] :]

        separator = _common_separator(gaps)
        headers = [gap[len(separator) :] for gap in gaps]
        first_header = ""
        if any(
            headers
        ):  # "Document [2](Title: ...) ": the first document's header is the end of the prefix's last line
            first_header = prefix[prefix.rfind("\n") + 1 :]
            prefix = prefix[: len(prefix) - len(first_header)]
        documents = [header + body for header, body in zip([first_header, *headers], bodies, strict=True)]

        if separator and suffix.startswith(separator):
            return cls(prefix, [document + separator for document in documents], suffix[len(separator) :])
        return cls(prefix.removesuffix(separator), [separator + document for document in documents], suffix)


def _common_separator(gaps: Sequence[str]) -> str:
    """What all gaps begin with, up to and including its last line break if the gaps go on differently."""
    common = os.path.commonprefix(list(gaps))  # noqa: RUF071 - by character is meant
    if all(gap == common for gap in gaps):
        return common
    return common[: common.rfind("\n") + 1]


def check_spans(spans: Sequence[Span], length: int) -> list[Span]:
    """Sorted spans, each inside ``[0, length)``, none empty, none overlapping another."""
    ordered = sorted((int(begin), int(end)) for begin, end in spans)
    for begin, end in ordered:
        if begin >= end:
            raise EmptyDocumentError(f"span ({begin}, {end}) is empty; a span is (begin, end) with begin < end")
        if begin < 0 or end > length:
            raise SpanError(f"span ({begin}, {end}) lies outside the prompt of length {length}")
    for left, right in itertools.pairwise(ordered):
        if right[0] < left[1]:
            raise SpanError(f"spans {left} and {right} overlap; every token belongs to one document at most")
    return ordered


@dataclass(frozen=True)
class TokenisedPrompt:
    """Token ids of a prompt, tokenised segment by segment.

    Attributes:
        prefix, suffix: token ids.
        documents: token ids of each document, the same wherever the document stands.
    """

    prefix: list[int]
    documents: list[list[int]]
    suffix: list[int]

    @property
    def ids(self) -> list[int]:
        """All token ids in order."""
        return [*self.prefix, *(token for document in self.documents for token in document), *self.suffix]

    @property
    def spans(self) -> list[Span]:
        """``(begin, end)`` of each document in tokens."""
        spans, begin = [], len(self.prefix)
        for document in self.documents:
            spans.append((begin, begin + len(document)))
            begin += len(document)
        return spans

    def reordered(self, order: Sequence[int]) -> TokenisedPrompt:
        """The same prompt with its documents in another order."""
        return TokenisedPrompt(self.prefix, [self.documents[index] for index in order], self.suffix)


def tokenise(prompt: Prompt, tokenizer: PreTrainedTokenizerBase) -> TokenisedPrompt:
    """Tokenise each segment on its own, so that no token straddles a border, with exactly one BOS if the model has one.

    Raises:
        EmptyDocumentError: a document has no tokens.
    """

    def encode(text: str) -> list[int]:
        return tokenizer(text, add_special_tokens=False)["input_ids"] if text else []

    prefix, documents = encode(prompt.prefix), [encode(document) for document in prompt.documents]
    for index, document in enumerate(documents):
        if not document:
            raise EmptyDocumentError(f"document {index} of {len(documents)} has no tokens; leave it out")
    bos = tokenizer.bos_token_id
    adds_bos = bos is not None and tokenizer("a")["input_ids"][:1] == [bos]
    if adds_bos and prefix[:1] != [bos]:
        prefix = [bos, *prefix]
    return TokenisedPrompt(prefix, documents, encode(prompt.suffix))
