"""Finding the retrieved documents in a prompt, and what judges requests that miss some."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from llama_index.core.schema import BaseNode, MetadataMode
from llama_index.llms.ragbias import listener

from ragbias.adapters.missing_documents import MissingDocuments
from ragbias.boundaries import Boundaries, Segmenter, current_documents, locate
from ragbias.boundaries.sources.named import check_lasting, document_texts


def find(
    text: str,
    documents: Sequence[Any] | None,
    segmenter: Segmenter | None = None,
    include_headers: bool = False,
    system: Sequence[str] = (),
) -> Boundaries:
    """The documents in the final prompt: those given with the call, those of its synthesis, those seen lately.

    Args:
        documents: texts, or nodes with or without score; an empty list says that there are none.
        segmenter, include_headers: as in ``ragbias.boundaries.locate``.
        system: texts of system messages, in which nothing is found that only others retrieved.
    """
    given = current_documents() if documents is None else _texts_of(documents)
    synthesis = listener.open_synthesis()
    texts, unread = (synthesis.texts, synthesis.failures) if synthesis else ((), ())
    found = locate(
        text,
        documents=given,
        run=[texts],
        registry=listener.registry(),
        segmenter=segmenter,
        include_headers=include_headers,
        not_documents=system,
    )
    expected = found.n_expected
    if found.source == "none":
        unread = unread or (listener.failure(),)
    if given is None and synthesis and found.source in ("run", "none"):
        expected += len(synthesis.failures)
    return replace(found, n_expected=expected, reason="; ".join(filter(None, (found.reason, *unread))))


def missing() -> MissingDocuments:
    """What judges requests that miss documents: the nodes of a synthesis are what its prompt is made of."""
    return MissingDocuments(
        complete=frozenset({"run"}),
        remedy="If LlamaIndex spreads them over several calls, take response_mode='compact', or give the LLM a larger "
        "context_window; if a template rewrites them, or they come from code of your own, pass documents=... or use "
        "`with ragbias.documents(...)`",
    )


def _texts_of(documents: Sequence[Any]) -> tuple[str, ...]:
    """Texts as the LLM sees them; anything else than texts and nodes is refused by `document_texts`."""
    check_lasting(documents)
    return document_texts(documents, _seen_by_the_llm)


def _seen_by_the_llm(document: Any) -> Any:
    node = getattr(document, "node", document)
    return node.get_content(metadata_mode=MetadataMode.LLM) if isinstance(node, BaseNode) else document
