"""A prompt in three parts (prefix, retrieved documents, suffix), and the tokens of each part."""

from __future__ import annotations

import itertools
import operator
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from ragbias.boundaries.numbering import find_numbering
from ragbias.boundaries.splitting import DocumentNumbers, split
from ragbias.boundaries.text import CharSpan, margins_of, with_margins
from ragbias.checks import check_each_once
from ragbias.errors import ArgumentError, EmptyDocumentError, SpanError, WrongTypeError
from ragbias.models.control_tokens import control_tokens, encode, is_shielded

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Span: TypeAlias = tuple[int, int]  # (begin, end) in tokens, ``end`` exclusive


@dataclass(frozen=True)
class Prompt:
    """A retrieval-augmented prompt, split at the borders of its documents.

    Args:
        prefix: all text before the first document, chat template included; may be empty.
        documents: the retrieved chunks in the retriever's order, each with its separator.
        suffix: all text after the last document; usually with the question.

    ``prompt.text`` is the plain concatenation of the parts; nothing is added.

    Raises:
        EmptyDocumentError: a document is empty or only white space.
        WrongTypeError: a part is not a string; it is a ``TypeError`` as well.
    """

    prefix: str
    documents: tuple[str, ...]
    suffix: str

    def __init__(self, prefix: str, documents: Sequence[str], suffix: str) -> None:
        if isinstance(documents, str):
            raise WrongTypeError("documents must be a sequence of strings, got one string; write [document]")
        if not isinstance(documents, Sequence):
            raise WrongTypeError(f"documents must be a sequence of strings, got {type(documents).__name__}")
        for part in (prefix, *documents, suffix):
            if not isinstance(part, str):
                raise WrongTypeError(
                    f"a prompt is made of strings, got {type(part).__name__}; pass the document's text"
                )
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

    @property
    def spans(self) -> list[CharSpan]:
        """``(begin, end)`` of each document in characters of ``text``."""
        edges = itertools.accumulate(map(len, self.documents), initial=len(self.prefix))
        return list(itertools.pairwise(edges))

    def reordered(self, order: Sequence[int]) -> Prompt:
        """Return the prompt with its documents in another order. ``order[i]`` is the old index of document ``i``.

        Raises:
            ArgumentError: ``order`` does not contain each index once.
        """
        check_each_once("order", order, len(self.documents), ArgumentError)
        return Prompt(self.prefix, [self.documents[index] for index in order], self.suffix)

    @classmethod
    def from_text(cls, text: str, spans: Sequence[CharSpan], *, strip_numbering: bool = False) -> Prompt:
        """Split a flat prompt at the character spans of its documents.

        The text between two documents is their separator. Words in it are a header of the document after it
        (``Document [2](Title: ...) ``) or, if they are the same for all, a footer of the one before it. Every document
        carries one separator, so that the set of document segments does not depend on their order. The separator comes
        after each document if one also follows the last document, otherwise before it. If the template has no separator
        before the first document either, one is added. Only this, and stripped numbers, change the text.

        Spans may include the headers or not. The result is the same if the first header differs from the text before.

        Args:
            text: the prompt, with chat template.
            spans: ``(begin, end)`` of each document in characters, ``end`` exclusive.
            strip_numbering: remove the documents' numbers (``Document [3]``, ``<doc3>``), which reveal the order to any
                method; see ``ragbias.boundaries.strip_numbering``.

        Raises:
            WrongTypeError: the text is not a string.
            SpanError: spans overlap or lie outside the text.
            AmbiguousSegmentsError: documents have footers, or the first header is ambiguous.
            EmptyDocumentError: a span holds no text.
        """
        return split_text(text, spans, strip_numbering)[0]


class Flat(NamedTuple):
    """A flat prompt as the plain model gets it.

    Attributes:
        text: the original prompt, without stripped numbers.
        spans: ``(begin, end)`` of each document in characters.
        lead: the separator that begins the first document of the ``Prompt`` but is not in this text.
    """

    text: str
    spans: Sequence[CharSpan]
    lead: str = ""

    @classmethod
    def of(cls, prompt: Prompt, lead: str = "") -> Flat:
        """Join the parts to a flat prompt, without the separator that was added before the first document."""
        begin, edges = len(prompt.prefix), prompt.spans
        spans = [(max(begin, left - len(lead)), right - len(lead)) for left, right in edges]
        return cls(prompt.prefix + prompt.text[begin + len(lead) :], spans, lead)


def split_text(
    text: str, spans: Sequence[CharSpan], strip_numbering: bool = False, numbering: DocumentNumbers | None = None
) -> tuple[Prompt, Flat]:
    """Return the split prompt, and the flat prompt for the plain model. ``numbering`` may be passed if known."""
    if not isinstance(text, str):
        raise WrongTypeError(f"a prompt is a string, got {type(text).__name__}")
    ordered = with_margins(check_spans(spans, len(text)), margins_of(spans))
    if not ordered:
        return Prompt(text, (), ""), Flat(text, ())
    numbering = numbering or find_numbering(text, ordered)
    prefix, documents, suffix, lead = split(text, ordered, numbering, strip_numbering)
    prompt = Prompt(prefix, documents, suffix)
    flat = Flat.of(prompt, lead)
    unchanged = flat.text == text or strip_numbering  # else the split changed the white space between documents
    return prompt, flat if unchanged else Flat(text, ordered, lead)


def check_spans(spans: Sequence[Span], length: int | None = None) -> list[Span]:
    """Return the sorted spans. Raise an error if one is empty, overlaps another, or lies outside ``[0, length)``."""
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
            raise SpanError(
                f"span ({begin}, {end}) lies outside the prompt" + (f" of length {length}" if length else "")
            )
    for left, right in itertools.pairwise(ordered):
        if right[0] < left[1]:
            raise SpanError(f"spans {left} and {right} overlap; every token belongs to one document at most")
    return ordered


@dataclass(frozen=True)
class TokenisedPrompt:
    """Token ids of a prompt, part by part.

    Attributes:
        prefix, suffix: token ids.
        documents: token ids of each document, which do not depend on its position if segments are tokenised separately.
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
        edges = itertools.accumulate(map(len, self.documents), initial=len(self.prefix))
        return list(itertools.pairwise(edges))

    def reordered(self, order: Sequence[int]) -> TokenisedPrompt:
        """Return the prompt with its documents in another order."""
        return TokenisedPrompt(self.prefix, [self.documents[index] for index in order], self.suffix)


def shielded(prompt: Prompt, tokenizer: PreTrainedTokenizerBase) -> Prompt:
    """Mark the control-token strings in a prompt's documents as data."""
    shield = control_tokens(tokenizer).shield
    return Prompt(prompt.prefix, [shield(text) for text in prompt.documents], prompt.suffix)


def tokenise(prompt: Prompt, tokenizer: PreTrainedTokenizerBase) -> TokenisedPrompt:
    """Tokenise each segment separately, so that no token crosses a border. A model with BOS gets exactly one.

    Raises:
        EmptyDocumentError: a document has no tokens.
    """
    documents = [encode(document, tokenizer) for document in prompt.documents]
    for index, document in enumerate(documents):
        if not document:
            raise EmptyDocumentError(f"document {index} of {len(documents)} has no tokens; leave it out")
    return TokenisedPrompt(_begin(prompt.prefix, tokenizer), documents, encode(prompt.suffix, tokenizer))


def _begin(prefix: str, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Tokenise a prompt's prefix, with exactly one BOS if the model has one."""
    ids, bos = encode(prefix, tokenizer), tokenizer.bos_token_id
    return [bos, *ids] if _adds_bos(tokenizer) and ids[:1] != [bos] else ids


def tokenise_whole(text: str, spans: Sequence[CharSpan], tokenizer: PreTrainedTokenizerBase) -> TokenisedPrompt:
    """Tokenise a text in one piece, including special tokens, as transformers' pipelines do, but with a single BOS.

    ``spans`` are ``(begin, end)`` of each document in characters, ascending. Text between two documents belongs to the
    earlier one. A token that crosses a border belongs to the document there, or to the later of two documents. If
    control-token strings are shielded, each segment is tokenised separately.
    """
    if is_shielded(text, tokenizer):
        borders = [*(begin for begin, _ in spans), *(end for _, end in spans[-1:])] or [len(text)]
        segments = [encode(text[begin:end], tokenizer) for begin, end in itertools.pairwise(borders)]
        return TokenisedPrompt(_begin(text[: borders[0]], tokenizer), segments, encode(text[borders[-1] :], tokenizer))
    offsets = tokenizer.is_fast and bool(spans)
    encoded = tokenizer(text, return_offsets_mapping=offsets)
    ids: list[int] = encoded["input_ids"]
    doubled = _adds_bos(tokenizer) and ids[:2] == [tokenizer.bos_token_id] * 2
    if not spans:
        return TokenisedPrompt(ids[doubled:], [], [])
    if offsets:  # special tokens have the offset (0, 0)
        starts, ends = (list(itertools.accumulate(side, max)) for side in zip(*encoded["offset_mapping"], strict=True))
        at = [*(bisect_right(ends, begin) for begin, _ in spans), bisect_left(starts, spans[-1][1])]
    else:  # count the tokens before each border, which is exact unless a token crosses it
        borders = [*(begin for begin, _ in spans), spans[-1][1]]
        at = [min(len(tokenizer(text[:border])["input_ids"]), len(ids)) for border in borders]
    documents = [ids[begin:end] for begin, end in itertools.pairwise(at)]
    return TokenisedPrompt(ids[doubled : at[0]], documents, ids[at[-1] :])


def _adds_bos(tokenizer: PreTrainedTokenizerBase) -> bool:
    bos = tokenizer.bos_token_id
    return bos is not None and tokenizer("a")["input_ids"][:1] == [bos]
