"""A listener that records retrieved nodes, from events of LlamaIndex's root dispatcher and from direct searches.

For each context, it stores the nodes of the current synthesis. For agents and the user's own prompts, it also stores a
limited number of recent retrievals. If an answer is streamed, LlamaIndex calls the LLM only when the stream is read,
perhaps in another thread. The listener then finds the synthesis by the frame of its stream in the call stack.
"""

from __future__ import annotations

import inspect
import sys
import threading
from collections import OrderedDict
from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import partial
from types import AsyncGeneratorType, GeneratorType
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.base.llms.base import BaseLLM
from llama_index.core.extractors.interface import BaseExtractor
from llama_index.core.instrumentation import get_dispatcher  # type: ignore[attr-defined]
from llama_index.core.instrumentation.span import BaseSpan
from llama_index.core.instrumentation.span_handlers import BaseSpanHandler
from llama_index.core.node_parser import NodeParser
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.response_synthesizers import Accumulate, Refine
from llama_index.core.schema import BaseNode, MetadataMode, NodeWithScore, TransformComponent
from llama_index.core.vector_stores.types import BasePydanticVectorStore, VectorStoreQueryResult
from llama_index.core.workflow import Workflow
from pydantic import PrivateAttr

from ragbias.boundaries import Boundaries, Registry, Segmenter, current_documents, join_reasons, locate
from ragbias.errors import MissingDocumentsWarning as MissingDocumentsWarning
from ragbias.frameworks import LastReports, LocatedDocuments, Runs, SearchWatch

runs = Runs("ragbias_llama_index_retrievals")
reports = LastReports("ragbias_llama_index_reports")
MAX_JOINED = 1024  # maximum number of documents that join retrieved texts
Streamed: TypeAlias = "GeneratorType[Any, Any, Any] | AsyncGeneratorType[Any, Any]"
PARTS = (BaseLLM, BaseRetriever, BaseNodePostprocessor, TransformComponent)  # the steps of a pipeline


@dataclass(frozen=True)
class Synthesis:
    """A ``synthesize`` span and the texts of its nodes."""

    id: str
    texts: tuple[str, ...]
    failures: tuple[str, ...]  # why nodes could not be read
    outer: Synthesis | None  # the enclosing synthesis
    one_by_one: bool  # whether each call of the LLM gets one node by design


_synthesis: ContextVar[Synthesis | None] = ContextVar("ragbias_llama_index_synthesis", default=None)
_run: ContextVar[str | None] = ContextVar("ragbias_llama_index_run", default=None)
_extraction: ContextVar[str | None] = ContextVar("ragbias_llama_index_extraction", default=None)


class RetrievalSpanHandler(BaseSpanHandler[BaseSpan]):
    """Record the texts of retrieved nodes. Add failures to reports, because the dispatcher ignores exceptions."""

    _streams: WeakKeyDictionary[Streamed, Synthesis] = PrivateAttr(default_factory=WeakKeyDictionary)
    _texts_by_document: OrderedDict[str, Sequence[str]] = PrivateAttr(default_factory=OrderedDict)  # by document id
    _state_lock: Any = PrivateAttr(default_factory=threading.Lock)

    def span_enter(
        self,
        id_: str,
        bound_args: inspect.BoundArguments,
        instance: Any = None,
        parent_id: str | None = None,
        *_args: Any,
        **_kwargs: Any,
    ) -> None:
        """Open a run if the span is a root. If the span is a synthesis, store its nodes."""
        if parent_id is None:
            if isinstance(instance, Workflow):  # the context of a workflow's tasks is not that of the caller
                reports.invalidate()
            runs.open(id_, None, partial(reports.begin, empty=not isinstance(instance, PARTS)))
            _run.set(None if isinstance(instance, BaseLLM) else id_)
        if isinstance(instance, BaseExtractor) and not _extraction.get():
            _extraction.set(id_)
        if _is_synthesis(id_):
            texts, failures = self.record(id_, bound_args.arguments.get("nodes", ()))
            one_by_one = type(instance) in (Refine, Accumulate)  # but their subclasses combine nodes
            _synthesis.set(Synthesis(id_, texts, failures, _synthesis.get(), one_by_one))
        elif isinstance(instance, BaseLLM) and (read := self._streaming_synthesis()):
            _synthesis.set(replace(read, id=id_, outer=_synthesis.get()))

    def span_exit(
        self, id_: str, bound_args: Any = None, instance: Any = None, result: Any = None, **_kwargs: Any
    ) -> None:
        """Close the span's synthesis, record the nodes that the span returned, and end its run."""
        closed = _close_synthesis(id_)
        stream = getattr(result, "response_gen", None)
        if closed is not None and isinstance(stream, (GeneratorType, AsyncGeneratorType)):
            with self._state_lock:
                self._streams[stream] = replace(closed, outer=None)
        if isinstance(result, list) and result and isinstance(result[0], NodeWithScore):
            self.record(id_, result)
        if isinstance(instance, NodeParser):
            self._remember_joined_texts(bound_args.arguments["nodes"])
        _end_run(id_)

    def span_drop(self, id_: str, *_args: Any, **_kwargs: Any) -> None:
        """Close a synthesis or a run that failed."""
        _close_synthesis(id_)
        _end_run(id_)

    def _remember_joined_texts(self, documents: Sequence[BaseNode]) -> None:
        """Remember which retrieved texts each document joins, because a node parser cuts the document into nodes."""
        recent = runs.retrievals.registry()
        for document in documents:
            content = document.get_content(MetadataMode.NONE)
            texts = _split_joined(content, recent)
            if sum(map(len, texts)) > len(content) / 2:  # a file may contain a few retrieved texts by chance
                self._texts_by_document[document.node_id] = texts
            if len(self._texts_by_document) > MAX_JOINED:
                self._texts_by_document.popitem(last=False)

    def _streaming_synthesis(self) -> Synthesis | None:
        """Return the synthesis whose stream is being read in the current call stack, or None."""
        with self._state_lock:
            read = [(_frame_of(stream), synthesis) for stream, synthesis in self._streams.items()]
        if not read:
            return None
        frame = sys._getframe().f_back
        while frame:
            for stream_frame, synthesis in read:
                if stream_frame is frame:
                    return synthesis
            frame = frame.f_back
        return None

    def record(self, id_: str, nodes: Sequence[NodeWithScore | BaseNode]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Record the texts of nodes. Return the texts with metadata, and the failures.

        Texts with and without metadata are recorded as two retrievals. Some documents join several retrieved texts. For
        a node that was cut from such a document, the retrieved texts are recorded instead of the node's own text.
        """
        texts: list[str] = []
        bare: list[str] = []
        failures: list[str] = []
        if not isinstance(nodes, Sequence):
            failures.append(f"the listener cannot read nodes of type {type(nodes).__name__}")
            nodes = ()
        for index, scored in enumerate(nodes):
            try:
                node = scored.node if isinstance(scored, NodeWithScore) else scored
                joined = self._texts_by_document.get(node.source_node.node_id) if node.source_node else None
                if joined:
                    texts += [text for text in joined if text not in texts]
                    continue
                texts.append(node.get_content(MetadataMode.LLM))
                bare.append(node.get_content(MetadataMode.NONE))
            except Exception as error:  # reported without its message, which may contain a document
                where = id_.partition("-")[0]
                failures.append(f"the listener could not read node {index} of {where}: {type(error).__name__}")
        runs.add(_run.get(), texts)
        if bare != texts:
            runs.retrievals.add(bare)
        for failure in failures:
            runs.fail(failure, _run.get())
        return tuple(text for text in texts if text.strip()), tuple(failures)

    def new_span(self, *_args: Any, **_kwargs: Any) -> None:
        """Do nothing. The base class would create a span."""

    prepare_to_exit_span = prepare_to_drop_span = new_span


def _is_synthesis(id_: str) -> bool:
    return ".synthesize-" in id_ or ".asynthesize-" in id_


def _frame_of(stream: Streamed) -> object:
    return stream.gi_frame if isinstance(stream, GeneratorType) else stream.ag_frame


def _close_synthesis(id_: str) -> Synthesis | None:
    """Close and return the synthesis with this id if it is the current one of this context."""
    current = _synthesis.get()
    if current is None or current.id != id_:
        return None
    _synthesis.set(current.outer)
    return current


def _end_run(id_: str) -> None:
    if _extraction.get() == id_:
        _extraction.set(None)
    runs.close(id_)


_installing = threading.Lock()
_listener = RetrievalSpanHandler()


def _record_search(result: object) -> None:
    """Record the nodes of a direct query on a vector store."""
    if isinstance(result, VectorStoreQueryResult) and result.nodes:
        _listener.record("a direct query-", result.nodes)


_search_watch = SearchWatch(
    BasePydanticVectorStore,
    ("query", "aquery"),
    BaseRetriever,
    ("_retrieve", "_aretrieve"),
    _record_search,
    ("retrieve", "aretrieve"),
    runs.retrievals.enter_task,
)


def install_listener(*, searches: bool = True) -> None:
    """Record retrieved nodes. Importing the package calls this function. Call it again to change settings.

    Args:
        searches: whether to record direct ``query`` calls of vector stores. LlamaIndex sends no events for them, so the
            listener adds ``__getattribute__`` to ``BasePydanticVectorStore`` and ``BaseRetriever`` in the process.
    """
    root = get_dispatcher()
    with _installing:
        if _listener not in root.span_handlers:
            root.span_handlers = [*root.span_handlers, _listener]
        _search_watch.install(searches)


def uninstall_listener() -> None:
    """Stop recording, and delete all recorded nodes. Later calls need ``documents=`` or ``ragbias.documents``."""
    global _listener
    root = get_dispatcher()
    with _installing:
        root.span_handlers = [handler for handler in root.span_handlers if handler is not _listener]
        runs.clear()
        _listener = RetrievalSpanHandler()
        _search_watch.uninstall()


def current_synthesis() -> Synthesis | None:
    """Return the current synthesis of this context, or None."""
    return _synthesis.get() if _listener in get_dispatcher().span_handlers else None


def locate_documents(
    prompt: str, documents: Sequence[str] | None, segmenter: Segmenter | None, boundaries: Boundaries | None = None
) -> LocatedDocuments:
    """Locate documents in the rendered prompt: those of the call, of its synthesis or of recent retrievals.

    ``boundaries`` are known if the chat template rendered the documents. Prompts of metadata extractors are not checked
    for missing documents, because each contains only one node by design.
    """
    if documents is None:
        documents = current_documents()
    boundaries = boundaries or _locate(prompt, documents, segmenter)
    warn_at_end = runs.get(_run.get()).warn_at_end
    return LocatedDocuments(boundaries, warn_at_end, must_be_complete=_extraction.get() is None)


def _locate(prompt: str, documents: Sequence[str] | None, segmenter: Segmenter | None) -> Boundaries:
    synthesis = current_synthesis()
    recent = runs.retrievals.registry()
    texts: Sequence[str] = synthesis.texts if synthesis else ()
    failures = synthesis.failures if synthesis else ()
    if len(texts) == 1:
        texts = _split_joined(texts[0], recent) or texts
    found = locate(prompt, documents=documents, run=[texts], registry=recent, segmenter=segmenter)
    if synthesis and synthesis.one_by_one and found.source == "run" and found.n_found == 1:
        found = replace(found, n_expected=1, n_absent=0, reason="")
    n_unread = 0
    if documents is None and found.source in ("run", "none"):
        n_unread = len(failures)
    if found.source == "none" and not failures:
        failures = (runs.retrievals.failure(),)
    reason = join_reasons(found.reason, *failures)
    return replace(found, n_expected=found.n_expected + n_unread, reason=reason)


def _split_joined(text: str, recent: Registry | None) -> Sequence[str]:
    """Return two or more texts of one retrieval that a node's ``text`` joins, or ``()`` if there are none.

    They must be whole lines of ``text``, because they replace it. If long texts are joined in another way, ``locate``
    ignores ``text``.
    """
    node = f"\n{text.strip()}\n"
    for retrieval in recent.candidates() if recent else ():
        inside = [part for part in retrieval if f"\n{part.strip()}\n" in node and len(part.strip()) < len(node) - 2]
        if len(inside) > 1:
            return inside
    return ()
