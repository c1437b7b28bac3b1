"""Retrieved documents inside the values that chains pass around."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from langchain_core.documents import Document
from langchain_core.messages import BaseMessage, ToolMessage

from ragbias.boundaries.context import document_texts

MAX_DEPTH = 4  # of lists and dicts inside each other
MAX_DOCUMENTS = 500  # a longer list is no retrieval but a corpus


def document_lists(value: object, depth: int = MAX_DEPTH) -> Iterator[list[str]]:
    """The texts of each list of documents in a chain's input or output, artifacts of tool messages included.

    They know the documents' metadata, see ``ragbias.boundaries.KnownText``.
    """
    if isinstance(value, Document):
        yield list(document_texts([value]))
    elif isinstance(value, ToolMessage):
        yield from document_lists(value.artifact, depth)
    elif depth > 0 and isinstance(value, dict):
        for item in value.values():
            yield from document_lists(item, depth - 1)
    elif depth > 0 and isinstance(value, (list, tuple)):
        documents = [item for item in value if isinstance(item, Document)]
        if 0 < len(documents) <= MAX_DOCUMENTS:
            yield list(document_texts(documents))
        for item in value:
            if not isinstance(item, (Document, str)):
                yield from document_lists(item, depth - 1)


def artifact_texts(messages: Sequence[BaseMessage]) -> list[str]:
    """The texts of all documents that the tool messages of a conversation carry as artifacts."""
    return [text for message in messages if isinstance(message, ToolMessage) for text in _flat(message)]


def _flat(message: ToolMessage) -> list[str]:
    return [text for texts in document_lists(message) for text in texts]
