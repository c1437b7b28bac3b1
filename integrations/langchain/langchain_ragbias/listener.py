"""A listener that records the documents of LangChain's retrievers, chains and direct searches.

LangChain attaches the listener to every run of the process. The listener stores the documents of each run tree until
the root run ends. It also stores a limited number of recent retrievals for each context.
"""

from __future__ import annotations

import functools
import threading
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import Any
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler, BaseRunManager
from langchain_core.documents import Document
from langchain_core.messages import BaseMessage, ToolMessage
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables.config import ensure_config
from langchain_core.tracers.context import register_configure_hook
from langchain_core.vectorstores import VectorStore

from ragbias.boundaries import Boundaries, Segmenter, locate
from ragbias.boundaries.sources import MAX_AGE, document_texts, merge_fields
from ragbias.errors import MissingDocumentsWarning
from ragbias.frameworks import LastReports, LocatedDocuments, Retrievals, SearchWatch

MAX_DOCUMENTS = 2000  # maximum size of a list in a chain; a longer list is a corpus, not a retrieval
MAX_TREES = 1024  # maximum number of run trees; a run with an unfinished stream may never end
CONTEXT_VARIABLE = "langchain_ragbias_retrievals"
SEARCHES = tuple(f"{a}{name}_search" for a in ("", "a") for name in ("similarity", "max_marginal_relevance"))
MAX_DEPTH = 4  # maximum depth of nested lists and dicts
MAX_VISITED = 2000  # maximum number of lists and dicts in one value
SAMPLE = 16  # number of items of a list that are checked; a list of scalars, such as an embedding, is skipped
LEAVES = (str, bytes, int, float, type(None))
Begin = Callable[[], Callable[[], None]]
reports = LastReports("langchain_ragbias_reports")


def parent_run(run_manager: BaseRunManager | None) -> UUID | None:
    """Return the id of a request's parent run. Without a run manager, as in streams, the id is in the config."""
    if run_manager is not None:
        return run_manager.parent_run_id
    return getattr(ensure_config().get("callbacks"), "parent_run_id", None)


def begin_request(run_manager: BaseRunManager | None) -> UUID | None:
    """Return the id of a new request's parent run. If there is no parent, delete the earlier reports."""
    parent = parent_run(run_manager)
    if parent is None:
        reports.forget()
    return parent


@dataclass
class RunTree:
    """The state of a root run and its child runs. A text that was retrieved twice belongs to the later retrieval."""

    retrievals: list[Counter[str]] = field(default_factory=list)  # texts with their counts, the oldest retrieval first
    runs: set[UUID] = field(default_factory=set)  # runs that have not ended
    failure: str = ""  # why the listener may have missed documents
    on_end: list[Callable[[], None]] = field(default_factory=list)  # called when the root run ends or is dropped
    warn_at_end: list[Callable[[], None]] = field(default_factory=list)  # called at the end if nothing was retrieved
    last_start: float = field(default_factory=time.monotonic)  # start of the latest run

    def add_retrieval(self, texts: Sequence[str], retrieved: bool) -> None:
        """Add the texts of one retrieval. The metadata of equal texts is merged.

        ``retrieved`` is false for documents in inputs and outputs of chains. Such documents are a new retrieval only if
        at least one text is new.
        """
        merged: dict[str, str] = {}
        for text in texts:
            merged[text] = merge_fields(merged.get(text, text), text)
        counts = Counter(texts)
        n_known = sum(text in counts for earlier in self.retrievals for text in earlier)
        is_new = retrieved or n_known < len(counts)
        for earlier in self.retrievals:
            for old in [text for text in earlier if text in counts]:
                merged[old] = merge_fields(old, merged[old])
                counts[old] = max(counts[old], earlier.pop(old))
                if not is_new:
                    earlier[merged[old]] = counts[old]
        if is_new:
            self.retrievals.append(Counter({merged[text]: count for text, count in counts.items()}))
            self.retrievals = [retrieval for retrieval in self.retrievals if retrieval]

    def latest_first(self) -> list[list[str]]:
        """Return the texts of each retrieval, the latest first."""
        return [list(retrieval.elements()) for retrieval in reversed(self.retrievals)]


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
            self.fail(run_id, parent_run_id, f"the listener failed in {event.__name__}: {type(error).__name__}")

    return guarded


class RetrievalCallbackHandler(BaseCallbackHandler):
    """A callback handler that records retrieved documents. It runs inline, so it finishes before the next step."""

    run_inline = True

    def __init__(self) -> None:
        self.installed = False
        self.retrievals = Retrievals(CONTEXT_VARIABLE)
        self._lock = threading.RLock()
        self._trees: OrderedDict[UUID, RunTree] = OrderedDict()  # tree of each root run
        self._roots: dict[UUID, UUID] = {}  # root run of each run
        self._prompts: OrderedDict[UUID, tuple[str, UUID | None]] = OrderedDict()  # prompts of running completions

    def tree(self, run_id: UUID | None) -> RunTree:
        """Return a copy of a run's tree. Outside a run, return an empty tree with the last failure."""
        with self._lock:
            if tree := self._tree_of(run_id):
                return replace(tree, retrievals=[retrieval.copy() for retrieval in tree.retrievals])
        return RunTree(failure=self.retrievals.failure())

    def parent_of_prompt(self, prompt: str) -> UUID | None:
        """Find the running completion request with this prompt. Return its parent run's id, or ``None``."""
        with self._lock:
            return next((parent for text, parent in reversed(self._prompts.values()) if text == prompt), None)

    def clear(self) -> None:
        self.retrievals.clear()
        with self._lock:
            for root in list(self._trees):
                self._drop_tree(root)
            self._roots.clear()
            self._prompts.clear()

    def record_search(self, result: object) -> None:
        """Record the result of a direct search on a vector store. Never raise an error."""
        run_id = parent_run(None)
        try:
            for documents in document_lists(result):
                self._record(run_id, documents, retrieved=True)
        except Exception as error:
            self.fail(run_id, None, f"the listener failed in a direct search: {type(error).__name__}")

    def fail(self, run_id: UUID | None, parent_run_id: UUID | None, failure: str) -> None:
        """Add a failure to the reports of requests in the run tree and in this context."""
        self.retrievals.fail(failure)
        with self._lock:
            for run in (run_id, parent_run_id):
                if tree := self._tree_of(run):
                    tree.failure = failure

    @_report_failures
    def on_retriever_start(self, *_: Any, run_id: UUID, parent_run_id: UUID | None, **__: Any) -> None:
        self._open_run(run_id, parent_run_id, self.retrievals.begin)

    @_report_failures
    def on_retriever_end(self, documents: Any, *, run_id: UUID, **_: Any) -> None:
        self._record(run_id, documents, retrieved=True)
        self._close_run(run_id)

    @_report_failures
    def on_chain_start(self, _: Any, inputs: Any, *, run_id: UUID, parent_run_id: UUID | None, **__: Any) -> None:
        self._open_run(run_id, parent_run_id, self.retrievals.begin, partial(reports.begin, empty=True))
        self._collect(run_id, inputs)

    @_report_failures
    def on_chain_end(self, outputs: Any, *, run_id: UUID, inputs: Any = None, **_: Any) -> None:
        self._collect(run_id, outputs)
        self._collect(run_id, inputs)  # the inputs of a streamed chain are unknown until its end
        self._close_run(run_id)

    @_report_failures
    def on_tool_start(self, *_: Any, run_id: UUID, parent_run_id: UUID | None, **__: Any) -> None:
        self._open_run(run_id, parent_run_id, self.retrievals.begin, reports.begin)

    @_report_failures
    def on_tool_end(self, output: Any, *, run_id: UUID, **_: Any) -> None:
        self._collect(run_id, output)
        self._close_run(run_id)

    @_report_failures
    def on_llm_start(self, _: Any, prompts: list[str], *, run_id: UUID, parent_run_id: UUID | None, **__: Any) -> None:
        self._open_run(run_id, parent_run_id, partial(self.retrievals.begin, shared=False))
        with self._lock:
            self._prompts[run_id] = (prompts[0], parent_run_id)
            while len(self._prompts) > MAX_TREES:
                self._prompts.popitem(last=False)

    @_report_failures
    def on_chat_model_start(self, *_: Any, run_id: UUID, parent_run_id: UUID | None, **__: Any) -> None:
        self._open_run(run_id, parent_run_id, partial(self.retrievals.begin, shared=False))

    @_report_failures
    def on_llm_end(self, *_: Any, run_id: UUID, **__: Any) -> None:
        self._close_run(run_id)

    on_llm_error = on_chain_error = on_tool_error = on_retriever_error = on_llm_end

    def _tree_of(self, run_id: UUID | None) -> RunTree | None:
        return self._trees.get(self._roots.get(run_id, run_id)) if run_id else None

    def _open_run(self, run_id: UUID, parent_run_id: UUID | None, *begins: Begin) -> None:
        """Register a run. For a root run, call the functions ``begins``, which create state that its steps share."""
        with self._lock:
            now = time.monotonic()
            parent = run_id if parent_run_id is None else parent_run_id
            root = self._roots.get(parent, parent)
            self._roots[run_id] = root
            tree = self._trees.setdefault(root, RunTree())
            tree.runs.add(run_id)
            tree.last_start = now
            if parent_run_id is None:
                tree.on_end += [begin() for begin in begins]
            self._trees.move_to_end(root)
            while len(self._trees) > MAX_TREES or now - next(iter(self._trees.values())).last_start > MAX_AGE:
                self._drop_tree(next(iter(self._trees)))

    def _close_run(self, run_id: UUID) -> None:
        warn_at_end: list[Callable[[], None]] = []
        with self._lock:
            root = self._roots.pop(run_id, None)
            self._prompts.pop(run_id, None)
            tree = self._trees.get(root) if root else None
            if root is not None and tree is not None:
                tree.runs.discard(run_id)
                if run_id == root or (not tree.runs and root not in self._roots):
                    self._drop_tree(root)
                    warn_at_end = [] if tree.retrievals else tree.warn_at_end
        for warn in warn_at_end:
            warn()

    def _drop_tree(self, root: UUID) -> None:
        tree = self._trees.pop(root)
        for run_id in tree.runs:
            self._roots.pop(run_id, None)
        for end in tree.on_end:
            end()

    def _collect(self, run_id: UUID, value: object) -> None:
        for documents in document_lists(value):
            if len(documents) <= MAX_DOCUMENTS:
                self._record(run_id, documents, retrieved=False)
            else:
                self.fail(run_id, None, f"{len(documents)} documents in one list count as a corpus, not as a retrieval")

    def _record(self, run_id: UUID | None, documents: Sequence[object], retrieved: bool) -> None:
        texts = document_texts(documents)
        if not texts:
            return
        self.retrievals.add(texts)
        with self._lock:
            if tree := self._tree_of(run_id):
                tree.add_retrieval(texts, retrieved)


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
        elif depth > 0 and isinstance(value, (list, tuple)) and not all(isinstance(e, LEAVES) for e in value[:SAMPLE]):
            if any(_as_document(item) for item in value[:MAX_VISITED]):
                yield [document for item in value if (document := _as_document(item))]
            waiting.extend(_children(value, depth))


def _as_document(item: object) -> Document | None:
    """Return the document if the item is a document or a ``(document, score)`` pair, else ``None``."""
    if isinstance(item, tuple) and item and not any(isinstance(each, Document) for each in item[1:SAMPLE]):
        item = item[0]
    return item if isinstance(item, Document) else None


def _children(values: Iterable[object], depth: int) -> Iterator[tuple[object, int]]:
    first = islice(values, MAX_VISITED)
    return ((item, depth - 1) for item in first if not isinstance(item, LEAVES) and not _as_document(item))


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
    lambda: listener.retrievals.enter_task(),
)


def locate_documents(
    prompt: str,
    documents: Sequence[str] | None,
    segmenter: Segmenter | None,
    parent_run_id: UUID | None,
    artifacts: Sequence[Sequence[str]] = (),
    boundaries: Boundaries | None = None,
) -> LocatedDocuments:
    """Locate the documents in a rendered prompt: those of the call, of its run, or of recent retrievals.

    Args:
        artifacts: the documents' texts for each message with documents, the latest message first.
        boundaries: boundaries of the documents if the chat template rendered them; ``None`` to locate them.
    """
    tree = listener.tree(parent_run_id)
    boundaries = boundaries or locate(
        prompt,
        documents=documents,
        artifacts=artifacts,
        run=tree.latest_first(),
        registry=listener.retrievals.registry(),
        segmenter=segmenter,
    )
    boundaries = replace(boundaries, reason="; ".join(filter(None, (boundaries.reason, tree.failure))))
    return LocatedDocuments(boundaries, bool(tree.failure), tree.warn_at_end if tree.runs else None)


def install_listener(*, searches: bool = True) -> None:
    """Record the documents of retrievers. Importing the package calls this function. Call it again to change settings.

    Args:
        searches: whether to record direct searches of vector stores: ``similarity_search``,
            ``max_marginal_relevance_search``, their variants and async forms. LangChain sends no events for them, so
            the listener adds ``__getattribute__`` to ``VectorStore`` and ``BaseRetriever`` in the whole process.
    """
    if not listener.installed:
        listener.installed = True
        register_configure_hook(_listener, inheritable=True)
    if searches:
        _search_watch.install()
    else:
        _search_watch.uninstall()


def uninstall_listener() -> None:
    """Stop recording, and delete all recorded documents. Later requests need ``documents=``."""
    from langchain_core.tracers import context

    listener.installed = False
    listener.clear()
    _search_watch.uninstall()
    context._configure_hooks[:] = [hook for hook in context._configure_hooks if hook[0] is not _listener]
