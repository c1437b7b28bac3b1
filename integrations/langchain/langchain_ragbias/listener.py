"""A passive listener that notes which documents LangChain's retrievers, chains and direct searches pass around.

It is attached to every run of the process by a configure hook, and keeps per run tree what the tree retrieved until the
root run ends, and in a bounded registry what each context retrieved lately.
"""

from __future__ import annotations

import functools
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from functools import partial
from typing import Any
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.retrievers import BaseRetriever
from langchain_core.tracers.context import register_configure_hook
from langchain_core.vectorstores import VectorStore

from langchain_ragbias.collecting import document_lists
from langchain_ragbias.reports import parent_run, reports
from langchain_ragbias.run_tree import RunTree
from ragbias.adapters.missing_documents import MissingDocumentsWarning
from ragbias.adapters.retrievals import MAX_AGE, Retrievals
from ragbias.adapters.searches import SearchWatch
from ragbias.boundaries.sources.named import document_texts

MAX_DOCUMENTS = 2000  # that a chain passes on; a longer list is no retrieval, unless a retriever returned it
MAX_TREES = 1024  # of runs that never end, because a stream was neither finished nor closed
CONTEXT_VARIABLE = "langchain_ragbias_retrievals"
SEARCHES = (
    "similarity_search",
    "asimilarity_search",
    "max_marginal_relevance_search",
    "amax_marginal_relevance_search",
)
Begin = Callable[[], Callable[[], None]]


def _guarded(event: Callable[..., None]) -> Callable[..., None]:
    """Ignore events while uninstalled, and keep failures for the report: LangChain only logs them."""

    @functools.wraps(event)
    def guarded(
        self: RetrievalCallbackHandler, *args: Any, run_id: UUID, parent_run_id: UUID | None = None, **kwargs: Any
    ) -> None:
        if not self.installed:
            return
        try:
            event(self, *args, run_id=run_id, parent_run_id=parent_run_id, **kwargs)
        except MissingDocumentsWarning:  # which the user turned into an error
            raise
        except Exception as error:
            self.fail(run_id, parent_run_id, f"the listener failed in {event.__name__}: {type(error).__name__}")

    return guarded


class RetrievalCallbackHandler(BaseCallbackHandler):
    """The handler. Runs inline, so that a retrieval is noted before the next step begins."""

    run_inline = True

    def __init__(self) -> None:
        self.installed = False
        self.retrievals = Retrievals(CONTEXT_VARIABLE)
        self._lock = threading.RLock()
        self._trees: OrderedDict[UUID, RunTree] = OrderedDict()  # by root run
        self._roots: dict[UUID, UUID] = {}  # root run by run
        self._prompts: OrderedDict[UUID, tuple[str, UUID | None]] = OrderedDict()  # of completions that are running

    def tree(self, run_id: UUID | None) -> RunTree:
        """What is known about the tree that a run belongs to."""
        with self._lock:
            known = self._tree_of(run_id)
            if known is not None:
                return RunTree([each.copy() for each in known.retrievals], set(), known.failure)
        return RunTree(failure=self.retrievals.failure())

    def at_end(self, run_id: UUID | None) -> Callable[[Callable[[], None]], None] | None:
        """Takes what is to be called when the root of a run ends; ``None`` for runs that are not known."""
        with self._lock:
            tree = self._tree_of(run_id)
        return None if tree is None else tree.judges.append

    def parent_of_prompt(self, prompt: str) -> UUID | None:
        """The run that sent this prompt to a completion model, if such a request is running."""
        with self._lock:
            return next((parent for text, parent in reversed(self._prompts.values()) if text == prompt), None)

    def clear(self) -> None:
        """Forget everything."""
        self.retrievals.clear()
        with self._lock:
            for root in list(self._trees):
                self._drop(root)
            self._roots.clear()
            self._prompts.clear()

    def searched(self, result: object) -> None:
        """Note what a direct search on a vector store returned; never raises."""
        run_id = parent_run(None)
        try:
            for documents in document_lists(result):
                self._note(run_id, documents, retrieved=True)
        except Exception as error:
            self.fail(run_id, None, f"the listener failed in a direct search: {type(error).__name__}")

    def fail(self, run_id: UUID | None, parent_run_id: UUID | None, failure: str) -> None:
        """Keep a failure for the reports of the tree's requests, and of this context's."""
        self.retrievals.fail(failure)
        with self._lock:
            for run in (run_id, parent_run_id):
                if tree := self._tree_of(run):
                    tree.failure = failure

    # retrievals

    @_guarded
    def on_retriever_start(self, *_: Any, run_id: UUID, parent_run_id: UUID | None, **__: Any) -> None:
        self._open(run_id, parent_run_id, self.retrievals.begin)

    @_guarded
    def on_retriever_end(self, documents: Any, *, run_id: UUID, **_: Any) -> None:
        self._note(run_id, documents, retrieved=True)
        self._close(run_id)

    # chains and tools

    @_guarded
    def on_chain_start(self, _: Any, inputs: Any, *, run_id: UUID, parent_run_id: UUID | None, **__: Any) -> None:
        self._open(run_id, parent_run_id, self.retrievals.begin, reports.begin)
        self._collect(run_id, inputs)

    @_guarded
    def on_chain_end(self, outputs: Any, *, run_id: UUID, inputs: Any = None, **_: Any) -> None:
        self._collect(run_id, outputs)
        self._collect(run_id, inputs)  # of a streamed chain the input is known at its end only
        self._close(run_id)

    @_guarded
    def on_tool_start(self, *_: Any, run_id: UUID, parent_run_id: UUID | None, **__: Any) -> None:
        self._open(run_id, parent_run_id, self.retrievals.begin, partial(reports.begin, anew=False))

    @_guarded
    def on_tool_end(self, output: Any, *, run_id: UUID, **_: Any) -> None:
        self._collect(run_id, output)
        self._close(run_id)

    # models

    @_guarded
    def on_llm_start(self, _: Any, prompts: list[str], *, run_id: UUID, parent_run_id: UUID | None, **__: Any) -> None:
        self._open(run_id, parent_run_id)
        with self._lock:
            self._prompts[run_id] = (prompts[0], parent_run_id)
            while len(self._prompts) > MAX_TREES:
                self._prompts.popitem(last=False)

    @_guarded
    def on_chat_model_start(self, *_: Any, run_id: UUID, parent_run_id: UUID | None, **__: Any) -> None:
        self._open(run_id, parent_run_id)

    @_guarded
    def on_llm_end(self, *_: Any, run_id: UUID, **__: Any) -> None:
        self._close(run_id)

    on_llm_error = on_chain_error = on_tool_error = on_retriever_error = on_llm_end

    # run trees

    def _tree_of(self, run_id: UUID | None) -> RunTree | None:
        return self._trees.get(self._roots.get(run_id, run_id)) if run_id else None

    def _open(self, run_id: UUID, parent_run_id: UUID | None, *begins: Begin) -> None:
        """Note a run; a root run begins what its steps share."""
        with self._lock:
            now = time.monotonic()
            parent = run_id if parent_run_id is None else parent_run_id
            root = self._roots.get(parent, parent)
            self._roots[run_id] = root
            tree = self._trees.setdefault(root, RunTree())
            tree.runs.add(run_id)
            tree.active = now
            if parent_run_id is None:
                tree.ends += [begin() for begin in begins]
            self._trees.move_to_end(root)
            while len(self._trees) > MAX_TREES or now - next(iter(self._trees.values())).active > MAX_AGE:
                self._drop(next(iter(self._trees)))

    def _close(self, run_id: UUID) -> None:
        judges: list[Callable[[], None]] = []
        with self._lock:
            root = self._roots.pop(run_id, None)
            self._prompts.pop(run_id, None)
            tree = self._trees.get(root) if root else None
            if root is not None and tree is not None:
                tree.runs.discard(run_id)
                if run_id == root or (not tree.runs and root not in self._roots):
                    self._drop(root)
                    judges = [] if tree.retrievals else tree.judges
        for judge in judges:
            judge()

    def _drop(self, root: UUID) -> None:
        tree = self._trees.pop(root)
        for run_id in tree.runs:
            self._roots.pop(run_id, None)
        for end in tree.ends:
            end()

    def _collect(self, run_id: UUID, value: object) -> None:
        for documents in document_lists(value):
            if len(documents) <= MAX_DOCUMENTS:
                self._note(run_id, documents, retrieved=False)
            else:
                self.fail(
                    run_id, None, f"{len(documents)} documents in one list were taken for a corpus, not retrieved"
                )

    def _note(self, run_id: UUID | None, documents: Sequence[object], retrieved: bool) -> None:
        texts = document_texts(documents)
        if not texts:
            return
        self.retrievals.add(texts)
        with self._lock:
            if tree := self._tree_of(run_id):
                tree.note(texts, retrieved)


listener = RetrievalCallbackHandler()
_hook: ContextVar[RetrievalCallbackHandler | None] = ContextVar("langchain_ragbias_listener", default=listener)
_searches = SearchWatch(
    VectorStore, SEARCHES, BaseRetriever, ("_get_relevant_documents", "_aget_relevant_documents"), listener.searched
)


def install_listener(*, searches: bool = True, process_wide: bool = False) -> None:
    """Note from now on what retrievers return. Called when the package is imported; call it again to change a setting.

    Args:
        searches: note what direct searches return too: ``similarity_search``, ``max_marginal_relevance_search``, their
            variants and async forms, on vector stores of any class.
        process_wide: let a request find what anyone in this process retrieved. Else it finds what its own run
            retrieved, or its own context (thread or task). Only for processes with one user.
    """
    if process_wide != listener.retrievals.process_wide:
        listener.clear()
        listener.retrievals = Retrievals(CONTEXT_VARIABLE, process_wide)
    if not listener.installed:
        listener.installed = True
        register_configure_hook(_hook, inheritable=True)
    if searches:
        _searches.install()
    else:
        _searches.uninstall()


def uninstall_listener() -> None:
    """Stop listening and forget what was noted. Documents are then found only where they are given explicitly."""
    from langchain_core.tracers import context

    listener.installed = False
    listener.clear()
    _searches.uninstall()
    context._configure_hooks[:] = [hook for hook in context._configure_hooks if hook[0] is not _hook]
