"""Fill an LLM's ``document_cache`` at indexing time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llama_index.core.bridge.pydantic import Field
from llama_index.core.indices.base import BaseIndex
from llama_index.core.prompts import BasePromptTemplate
from llama_index.core.prompts.default_prompt_selectors import DEFAULT_TEXT_QA_PROMPT_SEL
from llama_index.core.schema import BaseNode, MetadataMode, TransformComponent
from llama_index.llms.ragbias.base import RagBiasLLM

from ragbias.errors import ArgumentError, WrongTypeError
from ragbias.frameworks import warm as warm_lm


def warm(
    llm: RagBiasLLM,
    documents: BaseIndex[Any] | Sequence[BaseNode],
    template: BasePromptTemplate | None = None,
    progress: bool = True,
) -> int:
    """Compute the documents' keys and values and store them in ``document_cache``. Cached documents are skipped.

    Args:
        llm: the LLM.
        documents: nodes, or an index whose docstore contains the nodes.
        template: the query engine's ``text_qa_template``, with ``context_str`` and ``query_str``; None uses
            LlamaIndex's default. The question must follow the documents.
        progress: whether to show a progress bar.

    Returns:
        the number of computed documents.

    Raises:
        ArgumentError: the LLM has no cache, or the index has no nodes in its docstore.
        DocumentNotFoundError: the prompt does not contain a document's text.
    """
    if not isinstance(llm, RagBiasLLM):
        raise WrongTypeError(f"llm={type(llm).__name__}; expected RagBiasLLM")
    nodes = _list_nodes(documents)
    filled = template or DEFAULT_TEXT_QA_PROMPT_SEL
    return warm_lm(llm.lm, nodes, _text, lambda some: _flat_prompt(llm, filled, some), progress)


class WarmDocuments(TransformComponent):
    """The last step of an ``IngestionPipeline``: store keys and values of nodes in an LLM's ``document_cache``."""

    llm: RagBiasLLM = Field(exclude=True)
    template: BasePromptTemplate | None = Field(default=None, exclude=True)

    def __call__(self, nodes: Sequence[BaseNode], **kwargs: Any) -> Sequence[BaseNode]:
        if len(nodes) > 1:  # a single node does not show the separator
            warm(self.llm, nodes, self.template, progress=bool(kwargs.get("show_progress")))
        return nodes


def _list_nodes(documents: BaseIndex[Any] | Sequence[BaseNode]) -> list[BaseNode]:
    if not isinstance(documents, BaseIndex):
        return list(documents)
    nodes = list(documents.docstore.docs.values())
    if not nodes:
        raise ArgumentError(f"{type(documents).__name__} has its nodes in the vector store only; pass them as a list")
    return nodes


def _text(node: BaseNode) -> str:
    return node.get_content(metadata_mode=MetadataMode.LLM).strip()


def _flat_prompt(llm: RagBiasLLM, template: BasePromptTemplate, nodes: Sequence[BaseNode]) -> str:
    """Return the prompt of a response synthesizer."""
    filled = {"context_str": "\n\n".join(map(_text, nodes)), "query_str": "?"}
    if llm.metadata.is_chat_model:
        return llm._chat_prompt(llm._get_messages(template, **filled))
    return llm._get_prompt(template, **filled)
