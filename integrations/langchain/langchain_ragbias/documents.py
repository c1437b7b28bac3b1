"""Finding the retrieved documents in a templated prompt, and what happens if some are missing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from langchain_ragbias.listener import listener
from langchain_ragbias.run_tree import RunTree
from ragbias.adapters.missing_documents import MissingDocuments
from ragbias.boundaries import Boundaries, Segmenter, locate


def find(
    text: str,
    documents: Sequence[str] | None,
    artifacts: Sequence[Sequence[str]],
    system: Sequence[str],
    tree: RunTree,
    segmenter: Segmenter | None,
    include_headers: bool,
) -> Boundaries:
    """The documents in the final prompt: those given with the call, those of its run tree, those seen lately.

    Args:
        artifacts: texts that the conversation's tool messages carry, a list for each, the latest first.
        system: texts of system messages, in which nothing is found that only others retrieved.
        tree: what the runs around the request retrieved.
        documents, segmenter, include_headers: as in ``ragbias.boundaries.locate``.
    """
    found = locate(
        text,
        documents=documents,
        artifacts=artifacts,
        run=tree.latest_first(),
        registry=listener.retrievals.registry(),
        segmenter=segmenter,
        include_headers=include_headers,
        not_documents=system,
    )
    return replace(found, reason="; ".join(filter(None, (found.reason, tree.failure))))


def missing() -> MissingDocuments:
    """What judges requests that miss documents: of what a run retrieved, the chain may drop a part."""
    return MissingDocuments(
        complete=frozenset(), remedy="Pass documents= as they occur in the prompt, or retrieve inside the chain"
    )
