"""Documents computed at indexing time, for an LLM with a `document_cache`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llama_index.core.bridge.pydantic import Field
from llama_index.core.indices.base import BaseIndex
from llama_index.core.prompts import BasePromptTemplate
from llama_index.core.prompts.default_prompt_selectors import DEFAULT_TEXT_QA_PROMPT_SEL
from llama_index.core.schema import BaseNode, MetadataMode, TransformComponent
from llama_index.llms.ragbias.base import RagBiasLLM

from ragbias.adapters.warming import warm_with_bar
from ragbias.errors import ArgumentError, WrongTypeError


def warm(
    llm: RagBiasLLM,
    documents: BaseIndex[Any] | Sequence[BaseNode],
    template: BasePromptTemplate | None = None,
    progress: bool = True,
) -> int:
    """Compute documents for the LLM's `document_cache`; those that it has are left.

    Args:
        documents: an index that keeps its nodes, or nodes.
        template: the query engine's `text_qa_template`, with `context_str` and `query_str`; None: LlamaIndex's own.
            The question may be any, if it follows the documents.
        progress: show a bar.

    Returns:
        how many had to be computed.

    Raises:
        ArgumentError: the LLM has no cache, or the index keeps no nodes.
        DocumentNotFoundError: the prompt does not hold a document's text.
    """
    if not isinstance(llm, RagBiasLLM):
        raise WrongTypeError(f"llm={type(llm).__name__}; expected RagBiasLLM")
    nodes = _listed(documents)
    filled = template or DEFAULT_TEXT_QA_PROMPT_SEL
    return warm_with_bar(llm.lm, nodes, _text, lambda some: _flat(llm, filled, some), progress)


class WarmDocuments(TransformComponent):
    """A last step of an `IngestionPipeline` that computes its nodes for an LLM's `document_cache`."""

    llm: RagBiasLLM = Field(exclude=True)
    template: Any = Field(default=None, exclude=True)

    def __call__(self, nodes: Sequence[BaseNode], **kwargs: Any) -> Sequence[BaseNode]:
        if len(nodes) > 1:  # a single one does not show what parts it from others, and is computed when it is asked for
            warm(self.llm, nodes, self.template, progress=bool(kwargs.get("show_progress")))
        return nodes


def _listed(documents: Any) -> list[BaseNode]:
    if not isinstance(documents, BaseIndex):
        return list(documents)
    nodes = list(documents.docstore.docs.values())
    if not nodes:
        raise ArgumentError(f"{type(documents).__name__} keeps no nodes, its vector store does; give them as a list")
    return nodes


def _text(node: BaseNode) -> str:
    return node.get_content(metadata_mode=MetadataMode.LLM).strip()


def _flat(llm: RagBiasLLM, template: BasePromptTemplate, nodes: Sequence[BaseNode]) -> str:
    """The prompt that a response synthesizer would ask."""
    filled = {"context_str": "\n\n".join(map(_text, nodes)), "query_str": "?"}
    if llm.metadata.is_chat_model:
        return llm._chat_prompt(llm._get_messages(template, **filled))
    return llm._get_prompt(template, **filled)
