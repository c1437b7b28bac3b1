"""Which nodes LlamaIndex retrieves: a passive span handler on the root dispatcher.

It keeps the nodes of the synthesis that is open in the current context, those of the one that was closed last there,
and a bounded registry of all texts seen lately. The second is for streams, which LlamaIndex generates after their
synthesis has closed, the third for streams that are read in another thread, and for prompts of the user's own.
"""

from __future__ import annotations

import inspect
import threading
from collections import deque
from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any

from llama_index.core.instrumentation import get_dispatcher  # type: ignore[attr-defined]
from llama_index.core.instrumentation.span import BaseSpan
from llama_index.core.instrumentation.span_handlers import BaseSpanHandler
from llama_index.core.schema import MetadataMode, NodeWithScore
from pydantic import PrivateAttr

from ragbias.boundaries import Registry

_KEPT_FAILURES = 16


@dataclass(frozen=True)
class Synthesis:
    """A `synthesize` span: its nodes' texts, which nodes could not be read, who saw it, and the synthesis around it."""

    id: str
    listener: RetrievalSpanHandler
    texts: tuple[str, ...]
    failures: tuple[str, ...]
    outer: Synthesis | None


_synthesis: ContextVar[Synthesis | None] = ContextVar("ragbias_llama_index_synthesis", default=None)
_closed: ContextVar[Synthesis | None] = ContextVar("ragbias_llama_index_closed_synthesis", default=None)


class RetrievalSpanHandler(BaseSpanHandler[BaseSpan]):
    """Collects the texts of retrieved nodes; never changes what LlamaIndex does.

    The dispatcher swallows the exceptions of its handlers, so they are kept in `failures` and shown in reports.
    """

    _registry: Registry = PrivateAttr(default_factory=Registry)
    _failures: deque[str] = PrivateAttr(default_factory=lambda: deque(maxlen=_KEPT_FAILURES))

    @property
    def registry(self) -> Registry:
        """All texts seen lately."""
        return self._registry

    @property
    def failures(self) -> tuple[str, ...]:
        """What went wrong in here lately, without any text of documents."""
        return tuple(self._failures)

    def span_enter(self, id_: str, bound_args: inspect.BoundArguments, *_args: Any, **_kwargs: Any) -> None:
        """Open a synthesis: its nodes have passed all postprocessors and are what the prompt is made of."""
        if _is_synthesis(id_):
            texts, failures = self._read(id_, bound_args.arguments.get("nodes", ()))
            _synthesis.set(Synthesis(id_, self, texts, failures, _synthesis.get()))

    def span_exit(self, id_: str, *_args: Any, result: Any = None, **_kwargs: Any) -> None:
        """Close a synthesis, or note what a retriever or postprocessor returned."""
        _close(id_)
        if isinstance(result, list) and result and isinstance(result[0], NodeWithScore):
            self._read(id_, result)

    def span_drop(self, id_: str, *_args: Any, **_kwargs: Any) -> None:
        """Close a synthesis that failed."""
        _close(id_)

    def _read(self, id_: str, nodes: Sequence[NodeWithScore]) -> tuple[tuple[str, ...], tuple[str, ...]]:
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
                texts.append(node.node.get_content(MetadataMode.LLM))
                bare.append(node.node.get_content(MetadataMode.NONE))
            except Exception as error:  # noqa: PERF203 - its message may hold a document's text, so only its type is kept
                where = id_.partition("-")[0]
                failures.append(f"the listener could not read node {index} of {where}: {type(error).__name__}")
        self._registry.add(texts)
        if bare != texts:
            self._registry.add(bare)
        self._failures.extend(failures)
        return tuple(text for text in texts if text.strip()), tuple(failures)

    def new_span(self, *_args: Any, **_kwargs: Any) -> None:
        """No span objects are made."""

    def prepare_to_exit_span(self, *_args: Any, **_kwargs: Any) -> None:
        """No span objects are made."""

    def prepare_to_drop_span(self, *_args: Any, **_kwargs: Any) -> None:
        """No span objects are made."""


def _is_synthesis(id_: str) -> bool:
    return ".synthesize-" in id_ or ".asynthesize-" in id_


def _close(id_: str) -> None:
    current = _synthesis.get()
    if current is not None and current.id == id_:
        _synthesis.set(current.outer)
        _closed.set(replace(current, outer=None))


_installing = threading.Lock()
_listener: RetrievalSpanHandler | None = None


def install_listener() -> None:
    """Attach the listener to LlamaIndex's root dispatcher, once."""
    global _listener
    root = get_dispatcher()
    with _installing:
        if _listener is None:
            _listener = RetrievalSpanHandler()
        if all(handler is not _listener for handler in root.span_handlers):
            root.span_handlers = [*root.span_handlers, _listener]


def uninstall_listener() -> None:
    """Detach the listener and forget what it saw; `documents=` and `ragbias.documents` go on working."""
    global _listener
    root = get_dispatcher()
    with _installing:
        root.span_handlers = [handler for handler in root.span_handlers if handler is not _listener]
        _listener = None


def open_synthesis() -> Synthesis | None:
    """The synthesis that is open in this context."""
    return None if _listener is None else _synthesis.get()


def closed_synthesis() -> Synthesis | None:
    """The synthesis that was closed last in this context."""
    closed = _closed.get()
    return closed if closed is not None and closed.listener is _listener else None


def registry() -> Registry | None:
    """All texts seen lately, or None while the listener is uninstalled."""
    return None if _listener is None else _listener.registry


def failures() -> tuple[str, ...]:
    """What went wrong in the listener lately."""
    return () if _listener is None else _listener.failures
