"""Retrieved documents inside the values that chains pass around."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from langchain_core.documents import Document
from langchain_core.messages import BaseMessage, ToolMessage

from ragbias.boundaries.sources.named import document_texts

MAX_DEPTH = 4  # of lists and dicts inside each other
MAX_VISITED = 2000  # of them in one value
SAMPLE = 16  # items of a list; if all are scalars, so are the others, as of an embedding
LEAVES = (str, bytes, int, float, type(None))


def document_lists(value: object) -> Iterator[list[Document]]:
    """Each list of documents in a chain's input or output, artifacts of tool messages included.

    Every chain waits for this, so what is looked at is bounded, whatever the value.
    """
    waiting: deque[tuple[object, int]] = deque([(value, MAX_DEPTH)])
    for _ in range(MAX_VISITED):
        if not waiting:
            return
        value, depth = waiting.popleft()
        if isinstance(value, Document):
            yield [value]
        elif isinstance(value, ToolMessage):
            waiting.append((value.artifact, depth))
        elif depth > 0 and isinstance(value, dict):
            waiting.extend(_inner(value.values(), depth))
        elif depth > 0 and isinstance(value, (list, tuple)) and not all(isinstance(e, LEAVES) for e in value[:SAMPLE]):
            if any(_document(item) for item in value[:MAX_VISITED]):
                yield [document for item in value if (document := _document(item))]
            waiting.extend(_inner(value, depth))


def _document(item: object) -> Document | None:
    """The item, or the document of a pair with its score, as searches return them."""
    if isinstance(item, tuple) and item and not any(isinstance(each, Document) for each in item[1:SAMPLE]):
        item = item[0]
    return item if isinstance(item, Document) else None


def _inner(values: Iterable[object], depth: int) -> Iterator[tuple[object, int]]:
    first = islice(values, MAX_VISITED)
    return ((item, depth - 1) for item in first if not isinstance(item, LEAVES) and not _document(item))


def artifact_texts(messages: Sequence[BaseMessage]) -> list[list[str]]:
    """The texts of the documents that each tool message of a conversation carries as its artifact, the latest first."""
    tools = (message for message in reversed(messages) if isinstance(message, ToolMessage))
    return [[text for documents in document_lists(tool) for text in document_texts(documents)] for tool in tools]
