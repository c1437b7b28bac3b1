"""Document texts with metadata, the context manager ``documents``, and the registry of recent retrievals."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import accumulate, islice
from pathlib import PureWindowsPath
from typing import Any

from ragbias.boundaries.matching import escaped_forms
from ragbias.errors import WrongTypeError

MAX_TEXTS = 2048  # maximum number of texts in a registry
MAX_CHARACTERS = 16_000_000  # maximum total number of characters in a registry
MAX_AGE = 3600.0  # seconds until a retrieval is forgotten
MAX_FIELDS = 40
MAX_VALUES = MAX_FIELDS // 2  # each value has two printed forms
MAX_VALUE = 300  # maximum length of a value in characters
MAX_PRINTED = 2000  # maximum length in characters of all metadata printed together
IS_PATH = re.compile(r"[^\n'\"]*[/\\][^\n'\"/\\]+")
SCALARS = (str, int, float, bool, type(None))

Field = tuple[str, str]


class KnownText(str):
    """A document's text with its metadata. Comparisons and hashes ignore the metadata.

    Attributes:
        fields: metadata as ``(name, printed value)`` pairs. A name may occur several times.
    """

    __slots__ = ("fields",)
    fields: tuple[Field, ...]

    def __new__(cls, text: str, fields: Iterable[Field] = ()) -> KnownText:
        known = super().__new__(cls, text)
        known.fields = tuple(dict.fromkeys(fields))[:MAX_FIELDS]
        return known

    @classmethod
    def of(cls, text: str, metadata: Mapping[str, object] | None = None, id: str | None = None) -> KnownText:
        """Combine a text with its metadata and id.

        Values are stored as ``str``, ``repr`` and ``json.dumps`` print them. Values that are too long for a
        document's header are dropped.
        """
        return cls(text, _printed_fields(metadata or {}, id))

    def __reduce__(self) -> tuple[type[KnownText], tuple[str, tuple[Field, ...]]]:
        return KnownText, (str(self), self.fields)


def fields_of(texts: Iterable[str]) -> dict[str, dict[str, list[str]]]:
    """Return each text's metadata: values by field name. Texts that differ only in outer white space share metadata."""
    known: dict[str, dict[str, list[str]]] = {}
    of_stripped: dict[str, dict[str, list[str]]] = {}
    for text in texts:
        if isinstance(text, KnownText) and text.fields:
            values = of_stripped.setdefault(text.strip(), {})
            known[text] = values
            for name, value in text.fields:
                if value not in values.setdefault(name, []):
                    values[name].append(value)
    return known


def merge_fields(old: str, new: str) -> str:
    """Merge the metadata of two equal texts. The fields of ``new`` come first."""
    old_fields, new_fields = getattr(old, "fields", ()), getattr(new, "fields", ())
    return new if set(old_fields) <= set(new_fields) else KnownText(new, (*new_fields, *old_fields))


def _printed_fields(metadata: Mapping[str, object], id: str | None) -> Iterator[Field]:
    """Yield each field with each printed form of its value that is short enough for a header."""
    printed: list[tuple[str, Callable[[Any], str], object]] = []
    if metadata and len(metadata) < MAX_FIELDS and all(isinstance(value, SCALARS) for value in metadata.values()):
        printed += [("metadata", repr, metadata), ("metadata!j", json.dumps, metadata)]
    values = {"id": id, **{str(name): value for name, value in metadata.items() if isinstance(name, SCALARS)}}
    for name, value in islice(values.items(), MAX_VALUES):
        if value is not None and (isinstance(value, SCALARS) or not isinstance(value, (Mapping, Iterable))):
            printed += [(name, str, value), (f"{name}!r", repr, value)]
    for name, write, value in printed:
        try:
            text = write(value)
        except Exception:  # user code may raise any error, and metadata is optional
            continue
        limit = MAX_PRINTED if value is metadata else MAX_VALUE
        if text.strip() and len(text) <= limit:
            yield name, text
            if IS_PATH.fullmatch(text):
                path = PureWindowsPath(text)  # splits at / and \
                yield f"{name}!name", path.name
                yield f"{name}!stem", path.stem


class _Block:
    """The documents of a ``with ragbias.documents(...)`` block.

    ``ended`` is set only if the block ends in another context than the one it began in.
    """

    def __init__(self, texts: tuple[str, ...], outer: _Block | None) -> None:
        self.texts = texts
        self.outer = outer
        self.ended = False


_current: ContextVar[_Block | None] = ContextVar("ragbias_documents", default=None)


@contextmanager
def documents(docs: Iterable[object]) -> Iterator[tuple[str, ...]]:
    """Set the documents of all prompts in a block: ``with ragbias.documents(docs): chain.invoke(...)``.

    The innermost block applies. It also applies in threads that run in a copy of its context, such as LangChain's.

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
        except ValueError:  # the block ends in a different context, for example in a generator
            block.ended = True


def current_documents() -> tuple[str, ...] | None:
    """Return the documents of the innermost active ``documents`` block, or ``None`` if there is none."""
    block = _current.get()
    while block is not None and block.ended:
        block = block.outer
    return None if block is None else block.texts


def document_texts(
    docs: Iterable[object], unwrap: Callable[[object], object] = lambda document: document, *, reusable: bool = False
) -> tuple[str, ...]:
    """Return the text of each document, with its metadata.

    Args:
        unwrap: applied to each document. It returns a string, or an object with ``page_content`` or ``text``.
        reusable: whether several calls may read the documents. If so, an iterator is refused.

    Raises:
        WrongTypeError: a document has no text, or ``docs`` is a single document or a refused iterator.
    """
    if reusable and isinstance(docs, Iterator):
        raise WrongTypeError(
            f"documents is a {type(docs).__name__}, which only one call can read; write list(documents)"
        )
    if isinstance(docs, (str, bytes, Mapping)) or not isinstance(docs, Iterable):
        raise WrongTypeError(f"documents must be a list of texts or documents, got {_describe(docs)}; write [document]")
    return tuple(_text(unwrap(document)) for document in docs)


def _text(document: object) -> str:
    if isinstance(document, str):
        return document
    for text in (getattr(document, "page_content", None), getattr(document, "text", None)):
        if isinstance(text, str):
            metadata = getattr(document, "metadata", None)
            id = getattr(document, "id", None)
            known_metadata = metadata if isinstance(metadata, Mapping) else None
            known_id = id if isinstance(id, str) else None
            return KnownText.of(text, known_metadata, known_id)
    raise WrongTypeError(f"a document is a string or has a text in page_content or text, got {_describe(document)}")


def _describe(value: object) -> str:
    """Name a value's type, and the value if it is a number. Other values may contain private text."""
    name = type(value).__name__
    return f"{name} {value!r}" if isinstance(value, (int, float)) else name


Retrieval = tuple[str, ...]
PROBE = 16  # length of the middle part of a text, which is searched first


class Registry:
    """A thread-safe store of recent retrievals. It drops retrievals after an hour, and the oldest ones when it is full.

    Args:
        everywhere: the registry of all threads and tasks; only for the registry of a single thread or task. It shows
            whether a prompt contains documents that another thread or task retrieved.
    """

    def __init__(self, everywhere: Registry | None = None) -> None:
        self.everywhere = everywhere
        self._lock = threading.Lock()
        # the time and the pairs (text, its middle part) of each retrieval, the oldest first
        self._retrievals: dict[Retrieval, tuple[float, list[tuple[str, str]]]] = {}

    def copy(self) -> Registry:
        """Return an independent registry with the same retrievals."""
        copied = Registry(self.everywhere)
        with self._lock:
            copied._retrievals = self._retrievals.copy()
        return copied

    def add(self, texts: Iterable[str]) -> None:
        """Store the texts of one retrieval. Drop blank texts, and texts beyond the limits of the registry."""
        fitting = (text for text in texts if len(text) <= MAX_CHARACTERS and text.strip())
        first = list(islice(fitting, MAX_TEXTS))
        sizes = accumulate(map(len, first))
        retrieval = tuple(text for text, size in zip(first, sizes, strict=True) if size <= MAX_CHARACTERS)
        if not retrieval:
            return
        now = time.monotonic()
        with self._lock:
            self._retrievals.pop(retrieval, None)  # an equal retrieval may have other metadata
            self._retrievals[retrieval] = now, [(text, _middle(text.strip())) for text in retrieval]
            self._drop_old(now)

    def candidates(self) -> list[Retrieval]:
        """Return the stored retrievals, the latest first."""
        with self._lock:
            self._drop_old(time.monotonic())
            return list(reversed(self._retrievals))

    def likely_in(self, prompt: str) -> set[str]:
        """Return all stored texts that occur in the prompt, verbatim or escaped, and perhaps some that do not."""
        with self._lock:
            self._drop_old(time.monotonic())
            probes = [probe for _, retrieval in self._retrievals.values() for probe in retrieval]
        pieces = {prompt[begin : begin + PROBE] for begin in range(len(prompt) - PROBE + 1)} if probes else set()

        def occurs(probe: str) -> bool:
            return probe in pieces or (len(probe) < PROBE and probe in prompt)

        likely = {text for text, probe in probes if occurs(probe)}
        if "\\" not in prompt:
            return likely
        for text in {text for text, _ in probes} - likely:
            if any(occurs(_middle(form)) for form in escaped_forms(text.strip())):
                likely.add(text)
        return likely

    def __len__(self) -> int:
        """Return the number of texts in all retrievals."""
        with self._lock:
            return sum(map(len, self._retrievals))

    def _drop_old(self, now: float) -> None:
        """Drop retrievals that are too old, and the oldest ones if there are too many texts or characters."""
        n_texts = n_characters = 0
        for retrieval, (added, _) in list(reversed(self._retrievals.items())):
            n_texts += len(retrieval)
            n_characters += sum(map(len, retrieval))
            if n_texts > MAX_TEXTS or n_characters > MAX_CHARACTERS or now - added > MAX_AGE:
                del self._retrievals[retrieval]


def _middle(form: str) -> str:
    begin = max(0, (len(form) - PROBE) // 2)
    return form[begin : begin + PROBE]
