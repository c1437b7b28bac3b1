"""The documents of a run tree of LangChain, and documents inside the values that chains pass on."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from uuid import UUID

from langchain_core.documents import Document
from langchain_core.messages import BaseMessage, ToolMessage

from ragbias.boundaries.known_text import with_fields_of_both
from ragbias.boundaries.sources.named import document_texts

MAX_DEPTH = 4  # of lists and dicts inside each other
MAX_VISITED = 2000  # lists and dicts in one value
SAMPLE = 16  # items of a list; if all are scalars, as in an embedding, the others are too
LEAVES = (str, bytes, int, float, type(None))


@dataclass
class RunTree:
    """The state of one root run and all runs below it.

    Attributes:
        retrievals: texts of each retrieval with their counts, in order of time; a text counts in the latest retrieval
            that returned it.
        runs: runs that have not ended.
        failure: why the listener may have missed documents; empty if it did not fail.
        ends: called when the root run ends or is forgotten.
        checks: called when the root run ends without any retrieval.
        active: start of the latest run, in seconds of a monotonic clock.
    """

    retrievals: list[Counter[str]] = field(default_factory=list)
    runs: set[UUID] = field(default_factory=set)
    failure: str = ""
    ends: list[Callable[[], None]] = field(default_factory=list)
    checks: list[Callable[[], None]] = field(default_factory=list)
    active: float = field(default_factory=time.monotonic)

    def note(self, texts: Sequence[str], retrieved: bool) -> None:
        """Add the texts of one retrieval; equal texts share their metadata.

        Args:
            texts: texts of the documents.
            retrieved: whether a retriever returned them; documents that a chain passes on count as a retrieval only if
                one of them is new.
        """
        known: dict[str, str] = {}
        for text in texts:
            known[text] = with_fields_of_both(known.get(text, text), text)
        counts = Counter(texts)
        n_known = sum(text in counts for each in self.retrievals for text in each)
        is_new = retrieved or n_known < len(counts)
        for each in self.retrievals:
            for old in [text for text in each if text in counts]:
                known[old] = with_fields_of_both(old, known[old])
                counts[old] = max(counts[old], each.pop(old))
                if not is_new:
                    each[known[old]] = counts[old]
        if is_new:
            self.retrievals.append(Counter({known[text]: count for text, count in counts.items()}))
            self.retrievals = [each for each in self.retrievals if each]

    def latest_first(self) -> list[list[str]]:
        """The texts of each retrieval, the latest first."""
        return [list(each.elements()) for each in reversed(self.retrievals)]


def document_lists(value: object) -> Iterator[list[Document]]:
    """Each list of documents in a chain's input or output, including artifacts of tool messages.

    The search is bounded for any value, because every chain waits for it.
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
    """The document itself, or of a pair with its score."""
    if isinstance(item, tuple) and item and not any(isinstance(each, Document) for each in item[1:SAMPLE]):
        item = item[0]
    return item if isinstance(item, Document) else None


def _inner(values: Iterable[object], depth: int) -> Iterator[tuple[object, int]]:
    first = islice(values, MAX_VISITED)
    return ((item, depth - 1) for item in first if not isinstance(item, LEAVES) and not _document(item))


def artifact_texts(messages: Sequence[BaseMessage]) -> list[list[str]]:
    """The texts of the documents in each tool message's artifact, the latest message first."""
    tools = (message for message in reversed(messages) if isinstance(message, ToolMessage))
    return [[text for documents in document_lists(tool) for text in document_texts(documents)] for tool in tools]
