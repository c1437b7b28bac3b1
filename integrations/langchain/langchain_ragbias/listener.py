"""A listener that records the documents of LangChain's retrievers, chains and direct searches.

LangChain attaches the listener to every run of the process.
"""

from __future__ import annotations

import functools
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import ContextVar
from functools import partial
from itertools import islice
from typing import Any
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler, BaseRunManager
from langchain_core.documents import Document
from langchain_core.messages import BaseMessage, ToolMessage
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables.config import ensure_config
from langchain_core.tracers import context
from langchain_core.vectorstores import VectorStore

from ragbias.boundaries import document_texts
from ragbias.errors import MissingDocumentsWarning as MissingDocumentsWarning
from ragbias.frameworks import LastReports, Runs, SearchWatch

MAX_DOCUMENTS = 2000  # maximum size of a list in a chain; a longer list is a corpus, not a retrieval
MAX_PROMPTS = 1024  # maximum number of prompts of running completions
SEARCHES = tuple(f"{a}{name}_search" for a in ("", "a") for name in ("similarity", "max_marginal_relevance"))
MAX_DEPTH = 4  # maximum depth of nested lists and dicts
MAX_VISITED = 2000  # maximum number of lists and dicts in one value
SAMPLE = 16  # number of items of a list that are checked; a list of scalars, such as an embedding, is skipped
LEAVES = (str, bytes, int, float, type(None))
reports = LastReports("langchain_ragbias_reports")


def parent_run(run_manager: BaseRunManager | None) -> UUID | None:
    """Return the id of a request's parent run. Without a run manager, as in streams, the id is in the config."""
    if run_manager is not None:
        return run_manager.parent_run_id
    return getattr(ensure_config().get("callbacks"), "parent_run_id", None)


def begin_request(run_manager: BaseRunManager | None) -> UUID | None:
    """Begin a request, and return the id of its parent run.

    If there is no parent, delete the earlier reports, so that ``last_report`` is None if the request fails.
    """
    parent = parent_run(run_manager)
    if parent is None:
        reports.forget()
    return parent


def _report_failures(event: Callable[..., None]) -> Callable[..., None]:
    """Wrap an event handler: skip it while the listener is uninstalled, and add its errors to reports."""

    @functools.wraps(event)
    def guarded(
        self: RetrievalCallbackHandler, *args: Any, run_id: UUID, parent_run_id: UUID | None = None, **kwargs: Any
    ) -> None:
        if not self.installed:
            return
        try:
            event(self, *args, run_id=run_id, parent_run_id=parent_run_id, **kwargs)
        except MissingDocumentsWarning:  # the user turned it into an error
            raise
        except Exception as error:
            self.runs.fail(f"the listener failed in {event.__name__}: {type(error).__name__}", run_id, parent_run_id)

    return guarded


class RetrievalCallbackHandler(BaseCallbackHandler):
    """A callback handler that records retrieved documents. It runs inline, so it finishes before the next step."""

    run_inline = True

    def __init__(self) -> None:
        self.installed = False
        self.runs = Runs("langchain_ragbias_retrievals")
        self._lock = threading.Lock()
        self._prompts: OrderedDict[UUID, tuple[str, UUID | None]] = OrderedDict()  # prompts of running completions

    def parent_of_prompt(self, prompt: str) -> UUID | None:
        """Find the latest running completion request with this prompt. Return its parent run's id, or ``None``.

        Runs that send equal prompts at the same time all get the id of the latest run's parent. Equal prompts contain
        the same documents, so normally each of these runs retrieved the same documents.
        """
        with self._lock:
            for text, parent in reversed(self._prompts.values()):
                if text == prompt:
                    return parent
        return None

    def clear(self) -> None:
        """Forget all runs, retrievals, failures and prompts."""
        self.runs.clear()
        with self._lock:
            self._prompts.clear()

    def record_search(self, result: object) -> None:
        """Record the result of a direct search on a vector store. Never raise an error."""
        run_id = parent_run(None)
        try:
            for documents in document_lists(result):
                self.runs.add(run_id, document_texts(documents))
        except Exception as error:
            self.runs.fail(f"the listener failed in a direct search: {type(error).__name__}", run_id)

    @_report_failures
    def on_retriever_start(self, *_: Any, run_id: UUID, parent_run_id: UUID | None, **__: Any) -> None:
        self.runs.open(run_id, parent_run_id)

    @_report_failures
    def on_retriever_end(self, documents: Any, *, run_id: UUID, **_: Any) -> None:
        self.runs.add(run_id, document_texts(documents))
        self.runs.close(run_id)

    @_report_failures
    def on_chain_start(self, _: Any, inputs: Any, *, run_id: UUID, parent_run_id: UUID | None, **__: Any) -> None:
        self.runs.open(run_id, parent_run_id, partial(reports.begin, empty=True))
        self._collect(run_id, inputs)

    @_report_failures
    def on_chain_end(self, outputs: Any, *, run_id: UUID, inputs: Any = None, **_: Any) -> None:
        self._collect(run_id, outputs)
        self._collect(run_id, inputs)  # the inputs of a streamed chain are unknown until its end
        self.runs.close(run_id)

    @_report_failures
    def on_tool_start(self, *_: Any, run_id: UUID, parent_run_id: UUID | None, **__: Any) -> None:
        self.runs.open(run_id, parent_run_id, reports.begin)

    @_report_failures
    def on_tool_end(self, output: Any, *, run_id: UUID, **_: Any) -> None:
        self._collect(run_id, output)
        self.runs.close(run_id)

    @_report_failures
    def on_llm_start(self, _: Any, prompts: list[str], *, run_id: UUID, parent_run_id: UUID | None, **__: Any) -> None:
        self.runs.open(run_id, parent_run_id, shared=False)
        with self._lock:
            self._prompts[run_id] = (prompts[0], parent_run_id)
            while len(self._prompts) > MAX_PROMPTS:
                self._prompts.popitem(last=False)

    @_report_failures
    def on_chat_model_start(self, *_: Any, run_id: UUID, parent_run_id: UUID | None, **__: Any) -> None:
        self.runs.open(run_id, parent_run_id, shared=False)

    @_report_failures
    def on_llm_end(self, *_: Any, run_id: UUID, **__: Any) -> None:
        with self._lock:
            self._prompts.pop(run_id, None)
        self.runs.close(run_id)

    on_llm_error = on_chain_error = on_tool_error = on_retriever_error = on_llm_end

    def _collect(self, run_id: UUID, value: object) -> None:
        for documents in document_lists(value):
            if len(documents) <= MAX_DOCUMENTS:
                self.runs.add(run_id, document_texts(documents), retrieved=False)
            else:
                failure = f"{len(documents)} documents in one list count as a corpus, not as a retrieval"
                self.runs.fail(failure, run_id)


def document_lists(value: object) -> Iterator[list[Document]]:
    """Yield each list of documents in a chain's input or output, including artifacts of tool messages.

    Only a limited number of values is searched, because every chain waits for the search.
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
            waiting.extend(_children(value.values(), depth))
        elif depth > 0 and isinstance(value, (list, tuple)):
            if all(isinstance(item, LEAVES) for item in value[:SAMPLE]):
                continue
            if any(_as_document(item) for item in value[:MAX_VISITED]):
                yield [document for document in map(_as_document, value) if document]
            waiting.extend(_children(value, depth))


def _as_document(item: object) -> Document | None:
    """Return the document if the item is a document or a ``(document, score)`` pair, else ``None``."""
    if isinstance(item, tuple) and item:
        has_others = any(isinstance(each, Document) for each in item[1:SAMPLE])
        item = None if has_others else item[0]
    return item if isinstance(item, Document) else None


def _children(values: Iterable[object], depth: int) -> Iterator[tuple[object, int]]:
    for item in islice(values, MAX_VISITED):
        if not isinstance(item, LEAVES) and not _as_document(item):
            yield item, depth - 1


def artifact_texts(messages: Sequence[BaseMessage]) -> list[list[str]]:
    """Return the document texts in the artifact of each tool message, the latest message first."""
    tools = (message for message in reversed(messages) if isinstance(message, ToolMessage))
    return [[text for documents in document_lists(tool) for text in document_texts(documents)] for tool in tools]


listener = RetrievalCallbackHandler()
_listener: ContextVar[RetrievalCallbackHandler | None] = ContextVar("langchain_ragbias_listener", default=listener)
_search_watch = SearchWatch(
    VectorStore,
    SEARCHES,
    BaseRetriever,
    ("_get_relevant_documents", "_aget_relevant_documents"),
    listener.record_search,
    ("invoke", "ainvoke"),
    listener.runs.retrievals.enter_task,
)


def install_listener(*, searches: bool = True) -> None:
    """Record the documents of retrievers. Importing the package calls this function. Call it again to change settings.

    Args:
        searches: whether to record direct searches of vector stores: ``similarity_search``,
            ``max_marginal_relevance_search``, their variants and async forms. LangChain sends no events for them, so
            the listener adds ``__getattribute__`` to ``VectorStore`` and ``BaseRetriever`` in the whole process.
    """
    if not listener.installed:
        listener.installed = True
        context.register_configure_hook(_listener, inheritable=True)
    _search_watch.install(searches)


def uninstall_listener() -> None:
    """Stop recording, and delete all recorded documents. Later requests need ``documents=``."""
    listener.installed = False
    listener.clear()
    _search_watch.uninstall()
    context._configure_hooks[:] = [hook for hook in context._configure_hooks if hook[0] is not _listener]
