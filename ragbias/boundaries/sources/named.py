"""Documents that the user names, on the call or with a ``with ragbias.documents(...)`` block."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

from ragbias.boundaries.known_text import KnownText
from ragbias.errors import WrongTypeError


class _Block:
    """A ``documents`` block. Left in another context than it was entered in, it is over for all contexts."""

    def __init__(self, texts: tuple[str, ...], outer: _Block | None) -> None:
        self.texts, self.outer, self.over = texts, outer, False


_current: ContextVar[_Block | None] = ContextVar("ragbias_documents", default=None)


@contextmanager
def documents(docs: Iterable[object]) -> Iterator[tuple[str, ...]]:
    """Name the documents of all prompts in a block: ``with ragbias.documents(docs): chain.invoke(...)``.

    The innermost block counts. Threads that are started with a copy of the context, as frameworks do, see it too.

    Args:
        docs: strings, or objects with a text attribute ``page_content`` (LangChain) or ``text`` (LlamaIndex).

    Raises:
        WrongTypeError: an element has no text, or ``docs`` is a single string.
    """
    block = _Block(document_texts(docs), _current.get())
    token = _current.set(block)
    try:
        yield block.texts
    finally:
        try:
            _current.reset(token)
        except ValueError:  # left in another context, as by a generator that is closed there
            block.over = True


def current_documents() -> tuple[str, ...] | None:
    """The documents of the innermost ``documents`` block around this code; ``None`` outside of any."""
    block = _current.get()
    while block is not None and block.over:
        block = block.outer
    return None if block is None else block.texts


def document_texts(
    docs: Iterable[object], seen: Callable[[object], object] = lambda document: document
) -> tuple[str, ...]:
    """The text of each document, with its metadata (``KnownText``).

    Args:
        seen: maps a document to the object whose text and metadata are read.

    Raises:
        WrongTypeError: an element has no text, or ``docs`` is a single string or a dict.
    """
    if isinstance(docs, (str, bytes, Mapping)) or not isinstance(docs, Iterable):
        raise WrongTypeError(f"documents must be a list of texts or documents, got {_named(docs)}; write [document]")
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
    raise WrongTypeError(f"a document is a string or has a text in page_content or text, got {_named(document)}")


def _named(value: object) -> str:
    """A value in an error; of all but numbers only the type, as it may hold a document's text."""
    name = type(value).__name__
    return f"{name} {value!r}" if isinstance(value, (int, float)) else name
