"""A passive listener that notes which documents LangChain's retrievers and chains pass around.

It is attached to every run of the process by a configure hook, and keeps per run tree what the tree retrieved until the
root run ends, and in a bounded registry what was retrieved lately by anyone.
"""

from __future__ import annotations

import functools
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.tracers.context import register_configure_hook

from langchain_ragbias.collecting import document_lists
from langchain_ragbias.reports import reports
from ragbias.boundaries import Registry
from ragbias.boundaries.sources.known_text import merged
from ragbias.boundaries.sources.named import document_texts

MAX_DOCUMENTS = 2000  # that a chain passes on; a longer list is no retrieval, unless a retriever returned it
MAX_TREES = 1024  # of runs that never end, because a stream was neither finished nor closed
FAILURE_AGE = 60.0  # seconds for which a failure is reported to requests outside of any known run


@dataclass
class RunTree:
    """What was seen in the runs below one root run.

    Attributes:
        texts: each retrieved text with its metadata, as often as it occurred in one retrieval.
        runs: the runs that have not ended yet.
        failure: what went wrong in the listener, in plain words; empty if nothing did.
    """

    texts: Counter[str] = field(default_factory=Counter)
    runs: set[UUID] = field(default_factory=set)
    failure: str = ""

    def note(self, texts: Iterable[str]) -> None:
        """Add the texts of one retrieval, with the metadata of all that say the same."""
        known: dict[str, str] = {}
        for text in texts:
            known[text] = merged(known.get(text, text), text)
        counts = Counter(texts)
        for old in [text for text in self.texts if text in known]:
            known[old] = merged(old, known[old])
            counts[old] = max(counts[old], self.texts.pop(old))
        self.texts.update({known[text]: count for text, count in counts.items()})


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
        except Exception as error:
            self.fail(run_id, parent_run_id, f"the listener failed in {event.__name__}: {type(error).__name__}")

    return guarded


class RetrievalCallbackHandler(BaseCallbackHandler):
    """The handler. Runs inline, so that a retrieval is noted before the next step begins."""

    run_inline = True

    def __init__(self) -> None:
        self.installed = False
        self.registry = Registry()
        self._lock = threading.RLock()
        self._trees: OrderedDict[UUID, RunTree] = OrderedDict()  # by root run
        self._roots: dict[UUID, UUID] = {}  # root run by run
        self._prompts: OrderedDict[UUID, tuple[str, UUID | None]] = OrderedDict()  # of completions that are running
        self._last_failure = (float("-inf"), "")

    def tree(self, run_id: UUID | None) -> RunTree:
        """What is known about the tree that a run belongs to."""
        with self._lock:
            if run_id is not None:
                known = self._trees.get(self._roots.get(run_id, run_id))
                if known is not None:
                    return RunTree(known.texts.copy(), set(), known.failure)
            since, failure = self._last_failure
            return RunTree(failure=failure if time.monotonic() - since < FAILURE_AGE else "")

    def parent_of_prompt(self, prompt: str) -> UUID | None:
        """The run that sent this prompt to a completion model, if such a request is running."""
        with self._lock:
            return next((parent for text, parent in reversed(self._prompts.values()) if text == prompt), None)

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self.registry.clear()
            self._trees.clear()
            self._roots.clear()
            self._prompts.clear()
            self._last_failure = (float("-inf"), "")

    def fail(self, run_id: UUID, parent_run_id: UUID | None, failure: str) -> None:
        """Keep a failure for the report of the tree's requests."""
        with self._lock:
            self._last_failure = (time.monotonic(), failure)
            for run in (run_id, parent_run_id):
                tree = self._trees.get(self._roots.get(run, run)) if run else None
                if tree:
                    tree.failure = failure

    # retrievals

    @_guarded
    def on_retriever_start(self, *_: Any, run_id: UUID, parent_run_id: UUID | None, **__: Any) -> None:
        self._open(run_id, parent_run_id)

    @_guarded
    def on_retriever_end(self, documents: Any, *, run_id: UUID, **_: Any) -> None:
        self._note(run_id, documents)
        self._close(run_id)

    # chains and tools

    @_guarded
    def on_chain_start(self, _: Any, inputs: Any, *, run_id: UUID, parent_run_id: UUID | None, **__: Any) -> None:
        if parent_run_id is None:
            reports.clear()
        self._open(run_id, parent_run_id)
        self._collect(run_id, inputs)

    @_guarded
    def on_chain_end(self, outputs: Any, *, run_id: UUID, inputs: Any = None, **_: Any) -> None:
        self._collect(run_id, outputs)
        self._collect(run_id, inputs)  # of a streamed chain the input is known at its end only
        self._close(run_id)

    @_guarded
    def on_tool_start(self, *_: Any, run_id: UUID, parent_run_id: UUID | None, **__: Any) -> None:
        self._open(run_id, parent_run_id)

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

    def _open(self, run_id: UUID, parent_run_id: UUID | None) -> None:
        with self._lock:
            parent = run_id if parent_run_id is None else parent_run_id
            root = self._roots.get(parent, parent)
            self._roots[run_id] = root
            self._trees.setdefault(root, RunTree()).runs.add(run_id)
            while len(self._trees) > MAX_TREES:
                self._drop(next(iter(self._trees)))

    def _close(self, run_id: UUID) -> None:
        with self._lock:
            root = self._roots.pop(run_id, None)
            self._prompts.pop(run_id, None)
            tree = self._trees.get(root) if root else None
            if root is not None and tree is not None:
                tree.runs.discard(run_id)
                if run_id == root or (not tree.runs and root not in self._roots):
                    self._drop(root)

    def _drop(self, root: UUID) -> None:
        tree = self._trees.pop(root)
        for run_id in tree.runs:
            self._roots.pop(run_id, None)

    def _collect(self, run_id: UUID, value: object) -> None:
        for documents in document_lists(value):
            if len(documents) <= MAX_DOCUMENTS:
                self._note(run_id, documents)
            else:
                self.fail(
                    run_id, None, f"{len(documents)} documents in one list were taken for a corpus, not retrieved"
                )

    def _note(self, run_id: UUID, documents: Iterable[object]) -> None:
        texts = document_texts(documents)
        if not texts:
            return
        self.registry.add(texts)
        with self._lock:
            tree = self._trees.get(self._roots.get(run_id, run_id))
            if tree is not None:
                tree.note(texts)


listener = RetrievalCallbackHandler()
_hook: ContextVar[RetrievalCallbackHandler | None] = ContextVar("langchain_ragbias_listener", default=listener)


def install_listener() -> None:
    """Note from now on what retrievers return. Called when the package is imported; a second call does nothing."""
    if not listener.installed:
        listener.installed = True
        register_configure_hook(_hook, inheritable=True)


def uninstall_listener() -> None:
    """Stop listening and forget what was noted. Documents are then found only where they are given explicitly."""
    from langchain_core.tracers import context

    listener.installed = False
    listener.clear()
    context._configure_hooks[:] = [hook for hook in context._configure_hooks if hook[0] is not _hook]
