"""Prompts in three parts (prefix, retrieved documents, suffix), and their tokenisation."""

from __future__ import annotations

import itertools
import operator
from bisect import bisect_left, bisect_right
from collections.abc import Sequence, Sized
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from ragbias.boundaries.numbering import find_numbering
from ragbias.boundaries.splitting import DocumentNumbers, split
from ragbias.boundaries.text import CharSpan, add_margins, margins_of
from ragbias.checks import check_each_once, check_text
from ragbias.display import shown
from ragbias.errors import ArgumentError, EmptyDocumentError, SpanError, WrongTypeError
from ragbias.models.control_tokens import control_tokens, encode, is_shielded

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Span: TypeAlias = tuple[int, int]  # (begin, end) in tokens, ``end`` exclusive


@dataclass(frozen=True)
class Prompt:
    """A retrieval-augmented prompt, split at the borders of its documents.

    Args:
        prefix: all text before the first document, including the chat template; may be empty.
        documents: the retrieved documents in the retriever's order, each with its separator.
        suffix: all text after the last document, usually with the question.

    ``prompt.text`` is the concatenation of the parts.

    Raises:
        EmptyDocumentError: a document is empty or only white space.
        WrongTypeError: a part is not a string. This error is also a ``TypeError``.
        ArgumentError: a part contains an unpaired surrogate.
    """

    prefix: str
    documents: tuple[str, ...]
    suffix: str

    def __init__(self, prefix: str, documents: Sequence[str], suffix: str) -> None:
        if isinstance(documents, str) or not isinstance(documents, Sequence):
            raise WrongTypeError(f"documents={shown(documents)}; expected a list of strings, such as [document]")
        check_text("the prefix" if documents else "the prompt", prefix)
        check_text("the suffix", suffix)
        for index, document in enumerate(documents):
            check_text(f"document {index} of {len(documents)}", document)
            if not document.strip():
                raise EmptyDocumentError(f"document {index} of {len(documents)} is empty; leave it out")
        object.__setattr__(self, "prefix", prefix)
        object.__setattr__(self, "documents", tuple(documents))
        object.__setattr__(self, "suffix", suffix)

    @property
    def text(self) -> str:
        return self.prefix + "".join(self.documents) + self.suffix

    @property
    def spans(self) -> list[CharSpan]:
        """``(begin, end)`` of each document in characters of ``text``."""
        return _adjacent_spans(len(self.prefix), self.documents)

    def reordered(self, order: Sequence[int]) -> Prompt:
        """Return the prompt with its documents in another order. New document ``i`` is old document ``order[i]``.

        Raises:
            ArgumentError: ``order`` does not contain each index once.
        """
        check_each_once("order", order, len(self.documents), ArgumentError)
        return Prompt(self.prefix, [self.documents[index] for index in order], self.suffix)

    @classmethod
    def from_text(cls, text: str, spans: Sequence[CharSpan], *, strip_numbering: bool = False) -> Prompt:
        """Split a flat prompt at the character spans of its documents.

        If the text between two documents has no words, it is a separator. Otherwise it contains the next document's
        header, such as ``Document [2](Title: ...)``, or a header or footer that all documents share.

        Each document gets one separator, so that documents can be reordered. If a separator follows the last document,
        each document ends with one. Otherwise, each begins with one. If the first document has none, one is added.
        Apart from this separator and removed numbers, the text does not change. Spans may include headers.

        Args:
            text: the prompt, including the chat template.
            spans: ``(begin, end)`` of each document in characters, ``end`` exclusive.
            strip_numbering: whether to remove numbers such as in ``Document [3]`` or ``<doc3>``, which reveal the order
                to every method. Only Arabic numbers that count from 0 or 1 are removed.

        Raises:
            WrongTypeError: the text is not a string.
            SpanError: spans overlap or lie outside the text.
            AmbiguousSegmentsError: headers, footers and separators cannot be distinguished.
            EmptyDocumentError: a span contains no text.
        """
        return split_text(text, spans, strip_numbering)[0]


class FlatText(NamedTuple):
    """A prompt as one text, for the plain model.

    Attributes:
        text: the original prompt, or the prompt without numbers if they were removed.
        spans: ascending ``(begin, end)`` of each document in characters.
        lead: a separator that ``Prompt.from_text`` added before the first document. ``text`` does not include it.
    """

    text: str
    spans: Sequence[CharSpan]
    lead: str = ""

    @classmethod
    def of(cls, prompt: Prompt, lead: str = "") -> FlatText:
        """Join the parts of a split prompt. Leave out ``lead``, the separator that the split added."""
        begin, edges = len(prompt.prefix), prompt.spans
        spans = [(max(begin, left - len(lead)), right - len(lead)) for left, right in edges]
        return cls(prompt.prefix + prompt.text[begin + len(lead) :], spans, lead)


def split_text(
    text: str, spans: Sequence[CharSpan], strip_numbering: bool = False, numbering: DocumentNumbers | None = None
) -> tuple[Prompt, FlatText]:
    """Split a flat prompt, see ``Prompt.from_text``. Return the parts, and the text for the plain model."""
    if not isinstance(text, str):
        raise WrongTypeError(f"the prompt is {shown(text)}; expected a string")
    margins = margins_of(spans)
    ordered = [add_margins(span, margins) for span in check_spans(spans, len(text))]
    if not ordered:
        return Prompt(text, (), ""), FlatText(text, ())
    numbering = numbering or find_numbering(text, ordered)
    prefix, documents, suffix, lead = split(text, ordered, numbering, strip_numbering)
    prompt = Prompt(prefix, documents, suffix)
    flat = FlatText.of(prompt, lead)
    if flat.text != text and not strip_numbering:  # the split changed the white space between documents
        flat = FlatText(text, ordered, lead)
    return prompt, flat


def check_spans(spans: Sequence[Span], length: int | None = None) -> list[Span]:
    """Sort spans. Raise an error if a span is empty, overlaps another span, or lies outside ``[0, length)``."""
    try:
        ordered = sorted((operator.index(begin), operator.index(end)) for begin, end in spans)
    except (TypeError, ValueError) as error:
        raise SpanError(
            f"spans={spans!r}; expected pairs (begin, end) of whole numbers, e.g. [(9, 22), (22, 51)]"
        ) from error
    for begin, end in ordered:
        if begin >= end:
            raise EmptyDocumentError(f"span ({begin}, {end}) is empty; a span is (begin, end) with begin < end")
        if begin < 0 or (length is not None and end > length):
            size = f" of length {length}" if length else ""
            raise SpanError(f"span ({begin}, {end}) lies outside the prompt{size}")
    for left, right in itertools.pairwise(ordered):
        if right[0] < left[1]:
            raise SpanError(f"spans {left} and {right} overlap; every token belongs to one document at most")
    return ordered


@dataclass(frozen=True)
class TokenisedPrompt:
    """Token ids of a prompt, part by part.

    Attributes:
        prefix, suffix: token ids.
        documents: token ids of each document.
    """

    prefix: list[int]
    documents: list[list[int]]
    suffix: list[int]

    @property
    def ids(self) -> list[int]:
        return [*self.prefix, *(token for document in self.documents for token in document), *self.suffix]

    @property
    def spans(self) -> list[Span]:
        """``(begin, end)`` of each document in tokens."""
        return _adjacent_spans(len(self.prefix), self.documents)

    def reordered(self, order: Sequence[int]) -> TokenisedPrompt:
        return TokenisedPrompt(self.prefix, [self.documents[index] for index in order], self.suffix)


def _adjacent_spans(begin: int, documents: Sequence[Sized]) -> list[Span]:
    """Return the spans of documents that follow each other without gaps. The first one starts at ``begin``."""
    edges = itertools.accumulate(map(len, documents), initial=begin)
    return list(itertools.pairwise(edges))


def shield_documents(prompt: Prompt, tokenizer: PreTrainedTokenizerBase) -> Prompt:
    """Mark control-token strings in the documents, so that the tokenizer treats them as ordinary text."""
    shield = control_tokens(tokenizer).shield
    return Prompt(prompt.prefix, [shield(text) for text in prompt.documents], prompt.suffix)


def tokenise(prompt: Prompt, tokenizer: PreTrainedTokenizerBase) -> TokenisedPrompt:
    """Tokenise each part separately, so that token ids do not depend on the order. Begin with the BOS token, if any.

    Raises:
        EmptyDocumentError: a document has no tokens.
    """
    documents = [encode(document, tokenizer) for document in prompt.documents]
    for index, document in enumerate(documents):
        if not document:
            raise EmptyDocumentError(f"document {index} of {len(documents)} has no tokens; leave it out")
    return TokenisedPrompt(_tokenise_prefix(prompt.prefix, tokenizer), documents, encode(prompt.suffix, tokenizer))


def _tokenise_prefix(prefix: str, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Tokenise a prefix. If the tokenizer has a BOS token, begin with exactly one."""
    ids = encode(prefix, tokenizer)
    bos = tokenizer.bos_token_id
    if _adds_bos(tokenizer) and ids[:1] != [bos]:
        return [bos, *ids]
    return ids


def tokenise_whole(flat: FlatText, tokenizer: PreTrainedTokenizerBase) -> TokenisedPrompt:
    """Tokenise a text in one piece, as transformers' pipelines do, but with at most one BOS token.

    Each document includes the text between it and the next document. A token that spans the start of a document belongs
    to this document. A token that spans the end of the last document belongs to the last document. If
    ``shield_documents`` marked the text, prefix, documents and suffix are tokenised separately.
    """
    text, spans = flat.text, flat.spans
    borders = [*(begin for begin, _ in spans), spans[-1][1]] if spans else [len(text)]
    if is_shielded(text, tokenizer):
        segments = [encode(text[begin:end], tokenizer) for begin, end in itertools.pairwise(borders)]
        prefix = _tokenise_prefix(text[: borders[0]], tokenizer)
        return TokenisedPrompt(prefix, segments, encode(text[borders[-1] :], tokenizer))
    offsets = tokenizer.is_fast and bool(spans)
    encoded = tokenizer(text, return_offsets_mapping=offsets)
    ids: list[int] = encoded["input_ids"]
    has_two_bos = _adds_bos(tokenizer) and ids[:2] == [tokenizer.bos_token_id] * 2
    first = 1 if has_two_bos else 0
    if not spans:
        return TokenisedPrompt(ids[first:], [], [])
    if offsets:  # the offset of special tokens is (0, 0)
        mapping = encoded["offset_mapping"]
        starts = list(itertools.accumulate((start for start, _ in mapping), max))
        ends = list(itertools.accumulate((end for _, end in mapping), max))
        token_borders = [bisect_right(ends, begin) for begin, _ in spans]
        token_borders.append(bisect_left(starts, spans[-1][1]))
    else:  # count the tokens before each border; this is exact unless a token crosses the border
        token_borders = [min(len(tokenizer(text[:border])["input_ids"]), len(ids)) for border in borders]
    documents = [ids[begin:end] for begin, end in itertools.pairwise(token_borders)]
    return TokenisedPrompt(ids[first : token_borders[0]], documents, ids[token_borders[-1] :])


def _adds_bos(tokenizer: PreTrainedTokenizerBase) -> bool:
    bos = tokenizer.bos_token_id
    return bos is not None and tokenizer("a")["input_ids"][:1] == [bos]
