"""Documents that the user names: on the call, or for all of a ``with ragbias.documents(...)`` block."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

from ragbias.boundaries.sources.known_text import KnownText
from ragbias.errors import WrongTypeError

_current: ContextVar[tuple[str, ...] | None] = ContextVar("ragbias_documents", default=None)


@contextmanager
def documents(docs: Iterable[object]) -> Iterator[tuple[str, ...]]:
    """Say which documents the prompts of this block hold: ``with ragbias.documents(docs): chain.invoke(...)``.

    The innermost block counts. Threads that were started with a copy of the context, as frameworks do, see it too.

    Args:
        docs: strings, or objects with a text attribute ``page_content`` (LangChain) or ``text`` (LlamaIndex).

    Raises:
        WrongTypeError: an element has no text, or ``docs`` is a single string.
    """
    token = _current.set(document_texts(docs))
    try:
        yield _current.get() or ()
    finally:
        _current.reset(token)


def current_documents() -> tuple[str, ...] | None:
    """The documents of the innermost ``documents`` block around this code; ``None`` outside of any."""
    return _current.get()


def document_texts(
    docs: Iterable[object], seen: Callable[[object], object] = lambda document: document
) -> tuple[str, ...]:
    """The text of each document, which knows the metadata of documents that have any.

    Args:
        seen: what of a document is read.

    Raises:
        WrongTypeError: an element has no text, or ``docs`` is a single string or a dict.
    """
    if isinstance(docs, (str, bytes, Mapping)) or not isinstance(docs, Iterable):
        raise WrongTypeError(
            f"documents must be a list of texts or documents, got {type(docs).__name__}; write [document]"
        )
    return tuple(_text(seen(document)) for document in docs)


def check_lasting(docs: object) -> None:
    """Refuse documents that can be read only once, as arguments may be bound to many calls.

    Raises:
        WrongTypeError: ``docs`` is an iterator, say a generator.
    """
    if isinstance(docs, Iterator):
        raise WrongTypeError(
            f"documents is a {type(docs).__name__}, which only one call could read; write list(documents)"
        )


def _text(document: object) -> str:
    if isinstance(document, str):
        return document
    for text in (getattr(document, "page_content", None), getattr(document, "text", None)):
        if isinstance(text, str):
            metadata, name = getattr(document, "metadata", None), getattr(document, "id", None)
            known = metadata if isinstance(metadata, Mapping) else None
            return KnownText.of(text, known, name if isinstance(name, str) else None)
    raise WrongTypeError(f"a document is a string or has a text in page_content or text, got {type(document).__name__}")
