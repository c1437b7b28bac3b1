"""Which nodes LlamaIndex retrieves: a passive span handler on the root dispatcher, and a watch on direct queries.

It keeps the nodes of the synthesis that is open in the current context, or whose stream is being read, and a bounded
registry of what the context, or the run that it belongs to, retrieved lately. LlamaIndex asks the LLM for a stream only
when that is read, which may be in another thread; the stream is then recognised among the frames that are running. The
registry is for agents, and for prompts of the user's own.
"""

from __future__ import annotations

import inspect
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from types import AsyncGeneratorType, GeneratorType
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.base.llms.base import BaseLLM
from llama_index.core.instrumentation import get_dispatcher  # type: ignore[attr-defined]
from llama_index.core.instrumentation.span import BaseSpan
from llama_index.core.instrumentation.span_handlers import BaseSpanHandler
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.schema import BaseNode, MetadataMode, NodeWithScore, TransformComponent
from llama_index.core.vector_stores.types import BasePydanticVectorStore, VectorStoreQueryResult
from llama_index.core.workflow import Workflow
from llama_index.llms.ragbias.requests import reports
from pydantic import PrivateAttr

from ragbias.adapters.retrievals import Retrievals
from ragbias.adapters.searches import SearchWatch
from ragbias.boundaries import Registry

MAX_RUNS = 1024  # that never end
CONTEXT_VARIABLE = "ragbias_llama_index_retrievals"
Streamed: TypeAlias = "GeneratorType[Any, Any, Any] | AsyncGeneratorType[Any, Any]"
PARTS = (BaseLLM, BaseRetriever, BaseNodePostprocessor, TransformComponent)  # what runs are made of; embeddings are one


@dataclass(frozen=True)
class Synthesis:
    """A `synthesize` span: its nodes' texts, which nodes could not be read, and the synthesis around it."""

    id: str
    texts: tuple[str, ...]
    failures: tuple[str, ...]
    outer: Synthesis | None


_synthesis: ContextVar[Synthesis | None] = ContextVar("ragbias_llama_index_synthesis", default=None)
_run: ContextVar[str | None] = ContextVar("ragbias_llama_index_run", default=None)


class RetrievalSpanHandler(BaseSpanHandler[BaseSpan]):
    """Collects the texts of retrieved nodes; never changes what LlamaIndex does.

    The dispatcher swallows the exceptions of its handlers, so they are kept and shown in reports.
    """

    _retrievals: Retrievals = PrivateAttr()
    _runs: OrderedDict[str, list[Callable[[], None]]] = PrivateAttr(default_factory=OrderedDict)  # what ends each
    _retrieving: set[str | None] = PrivateAttr(default_factory=set)  # those of them in which something was retrieved
    _streams: WeakKeyDictionary[Streamed, Synthesis] = PrivateAttr(default_factory=WeakKeyDictionary)
    _changing: Any = PrivateAttr(default_factory=threading.Lock)

    def __init__(self, process_wide: bool = False) -> None:
        super().__init__()
        self._retrievals = Retrievals(CONTEXT_VARIABLE, process_wide)

    @property
    def retrievals(self) -> Retrievals:
        """What was seen lately, and what went wrong."""
        return self._retrievals

    def span_enter(
        self,
        id_: str,
        bound_args: inspect.BoundArguments,
        instance: Any = None,
        parent_id: str | None = None,
        *_args: Any,
        **_kwargs: Any,
    ) -> None:
        """Begin a run, or open a synthesis: its prompt is made of its nodes, which have passed all postprocessors."""
        if parent_id is None:
            if isinstance(instance, Workflow):  # runs in tasks of its own, whose caller is not known
                reports.outdate()
            self._begin(id_, anew=not isinstance(instance, PARTS))
            _run.set(None if isinstance(instance, BaseLLM) else id_)
        if _is_synthesis(id_):
            texts, failures = self._read(id_, bound_args.arguments.get("nodes", ()))
            _synthesis.set(Synthesis(id_, texts, failures, _synthesis.get()))
        elif isinstance(instance, BaseLLM) and (read := self._synthesis_that_is_read()):
            _synthesis.set(replace(read, id=id_, outer=_synthesis.get()))

    def span_exit(self, id_: str, *_args: Any, result: Any = None, **_kwargs: Any) -> None:
        """Close a synthesis, note what a retriever or postprocessor returned, and end a run."""
        closed, stream = _close(id_), getattr(result, "response_gen", None)
        if closed is not None and isinstance(stream, (GeneratorType, AsyncGeneratorType)):
            with self._changing:
                self._streams[stream] = replace(closed, outer=None)
        if isinstance(result, list) and result and isinstance(result[0], NodeWithScore):
            self._read(id_, result)
        self._end(id_)

    def span_drop(self, id_: str, *_args: Any, **_kwargs: Any) -> None:
        """Close a synthesis or a run that failed."""
        _close(id_)
        self._end(id_)

    def searched(self, result: object) -> None:
        """Note the nodes that a direct query on a vector store returned."""
        if isinstance(result, VectorStoreQueryResult) and result.nodes:
            self._read("a direct query-", result.nodes)

    def at_end(self, id_: str | None) -> Callable[[Callable[[], None]], None] | None:
        """Takes what is to be called when a run ends in which nothing was retrieved; None if none is going on."""
        with self._changing:
            ends = self._runs.get(id_) if id_ else None
        return None if ends is None else lambda judge: ends.append(lambda: None if id_ in self._retrieving else judge())

    def _begin(self, id_: str, anew: bool) -> None:
        """A run's steps share what they retrieve and report, and leave it to the caller.

        Args:
            anew: it is more than a part of a run of the user's own, so it begins without reports.
        """
        ends = [self._retrievals.begin(), reports.begin(anew)]
        with self._changing:
            self._runs[id_] = ends
            oldest = next(iter(self._runs)) if len(self._runs) > MAX_RUNS else None
        if oldest is not None:
            self._end(oldest)

    def _end(self, id_: str) -> None:
        with self._changing:
            ends = self._runs.pop(id_, [])
        for end in ends:
            end()
        self._retrieving.discard(id_)

    def _synthesis_that_is_read(self) -> Synthesis | None:
        """The synthesis whose stream is what runs here; it asks the LLM."""
        with self._changing:
            read = [(_frame(stream), synthesis) for stream, synthesis in self._streams.items()]
        frame = sys._getframe() if read else None
        while frame is not None:
            for its_frame, synthesis in read:
                if its_frame is frame:
                    return synthesis
            frame = frame.f_back
        return None

    def _read(self, id_: str, nodes: Sequence[NodeWithScore | BaseNode]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The nodes' texts as LlamaIndex prints them into prompts, and the failures.

        The registry gets the bare texts too, as a retrieval of their own.
        """
        texts: list[str] = []
        bare: list[str] = []
        failures: list[str] = []
        if not isinstance(nodes, Sequence):
            failures.append(f"the listener cannot read nodes of type {type(nodes).__name__}")
            nodes = ()
        for index, node in enumerate(nodes):
            try:
                node = node.node if isinstance(node, NodeWithScore) else node
                texts.append(node.get_content(MetadataMode.LLM))
                bare.append(node.get_content(MetadataMode.NONE))
            except Exception as error:  # noqa: PERF203 - its message may hold a document's text, so only its type is kept
                where = id_.partition("-")[0]
                failures.append(f"the listener could not read node {index} of {where}: {type(error).__name__}")
        if texts and (run := _run.get()) in self._runs:
            self._retrieving.add(run)
        self._retrievals.add(texts)
        if bare != texts:
            self._retrievals.add(bare)
        for failure in failures:
            self._retrievals.fail(failure)
        return tuple(text for text in texts if text.strip()), tuple(failures)

    def new_span(self, *_args: Any, **_kwargs: Any) -> None:
        """No span objects are made."""

    def prepare_to_exit_span(self, *_args: Any, **_kwargs: Any) -> None:
        """No span objects are made."""

    def prepare_to_drop_span(self, *_args: Any, **_kwargs: Any) -> None:
        """No span objects are made."""


def _is_synthesis(id_: str) -> bool:
    return ".synthesize-" in id_ or ".asynthesize-" in id_


def _frame(stream: Streamed) -> object:
    return stream.gi_frame if isinstance(stream, GeneratorType) else stream.ag_frame


def _close(id_: str) -> Synthesis | None:
    """Close the synthesis, if it is the one that is open here."""
    current = _synthesis.get()
    if current is None or current.id != id_:
        return None
    _synthesis.set(current.outer)
    return current


_installing = threading.Lock()
_listener: RetrievalSpanHandler | None = None


def _searched(result: object) -> None:
    if _listener is not None:
        _listener.searched(result)


_searches = SearchWatch(
    BasePydanticVectorStore, ("query", "aquery"), BaseRetriever, ("_retrieve", "_aretrieve"), _searched
)


def install_listener(*, searches: bool = True, process_wide: bool = False) -> None:
    """Attach the listener to LlamaIndex's root dispatcher, once; call it again to change a setting.

    Args:
        searches: note what `query` and `aquery` of vector stores return too, where code of the user's own calls them.
        process_wide: let a request find what anyone in this process retrieved. Else it finds what its own run
            retrieved, or its own context (thread or task). Only for processes with one user.
    """
    global _listener
    root = get_dispatcher()
    with _installing:
        if _listener is None or _listener.retrievals.process_wide != process_wide:
            _detach()
            _listener = RetrievalSpanHandler(process_wide)
        if all(handler is not _listener for handler in root.span_handlers):
            root.span_handlers = [*root.span_handlers, _listener]
        if searches:
            _searches.install()
        else:
            _searches.uninstall()


def uninstall_listener() -> None:
    """Detach the listener and forget what it saw; `documents=` and `ragbias.documents` go on working."""
    with _installing:
        _detach()
        _searches.uninstall()


def _detach() -> None:
    global _listener
    root = get_dispatcher()
    root.span_handlers = [handler for handler in root.span_handlers if handler is not _listener]
    if _listener is not None:
        _listener.retrievals.clear()
    _listener = None


def open_synthesis() -> Synthesis | None:
    """The synthesis that is open in this context, or whose stream is read here."""
    return None if _listener is None else _synthesis.get()


def registry() -> Registry | None:
    """What this context, or the run that it belongs to, retrieved lately; None while the listener is uninstalled."""
    return None if _listener is None else _listener.retrievals.registry()


def failure() -> str:
    """What went wrong in the listener lately, in this context."""
    return "" if _listener is None else _listener.retrievals.failure()


def at_end() -> Callable[[Callable[[], None]], None] | None:
    """Takes what is to be called when the run that is going on here ends; None outside of any."""
    return None if _listener is None else _listener.at_end(_run.get())
