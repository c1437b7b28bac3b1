"""Fill a model's ``document_cache`` at indexing time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from langchain_core.documents import Document
from langchain_core.language_models import BaseChatModel
from langchain_core.prompts import BasePromptTemplate
from langchain_core.runnables import Runnable
from langchain_core.vectorstores import VectorStore

from langchain_ragbias.chat_models import ChatRagBias
from langchain_ragbias.llms import RagBiasPipeline
from langchain_ragbias.messages import template_messages
from ragbias.errors import ArgumentError, WrongTypeError
from ragbias.frameworks import join_parts
from ragbias.frameworks import warm as warm_lm

CONTEXT = "context"  # the variable for the documents in templates of LangChain's chains


def warm(
    llm: ChatRagBias | RagBiasPipeline,
    documents: VectorStore | Iterable[Document | str],
    prompt: BasePromptTemplate[Any] | Runnable[Any, Any] | Callable[[list[Document]], Any],
    progress: bool = True,
) -> int:
    """Compute the documents' keys and values and store them in ``document_cache``. Cached documents are skipped.

    Args:
        llm: the model.
        documents: documents, or a vector store that can list its documents (FAISS, InMemoryVectorStore).
        prompt: the chain's template. Its variable ``context`` gets the documents, separated by blank lines. Instead of
            a template, you can pass a function or runnable that takes a list of documents and returns the model's
            input. The input must end with a question.
        progress: whether to show a progress bar.

    Returns:
        the number of computed documents.

    Raises:
        ArgumentError: the model has no cache, the store cannot list its documents, or the template has no ``context``.
        DocumentNotFoundError: the prompt does not contain a document's text.
    """
    if not isinstance(llm, (ChatRagBias, RagBiasPipeline)):
        raise WrongTypeError(f"llm={type(llm).__name__}; expected ChatRagBias or RagBiasPipeline")
    converted = [each if isinstance(each, Document) else Document(each) for each in _list_documents(documents)]
    make_input = _input_function(prompt)

    def render(group: Sequence[Document]) -> str:
        return _flat_prompt(llm, make_input(list(group)))

    return warm_lm(llm.lm, converted, lambda document: document.page_content, render, progress)


def _list_documents(documents: VectorStore | Iterable[Document | str]) -> Sequence[Document | str]:
    if not isinstance(documents, VectorStore):
        return list(documents)
    of_faiss = getattr(getattr(documents, "docstore", None), "_dict", None)
    if of_faiss is not None:
        return list(of_faiss.values())
    of_memory = getattr(documents, "store", None)
    if isinstance(of_memory, dict):
        return [entry["text"] for entry in of_memory.values()]
    raise ArgumentError(f"{type(documents).__name__} cannot list its documents; pass them as a list")


def _input_function(prompt: Any) -> Callable[[list[Document]], Any]:
    """Return a function from documents to the model's input."""
    if isinstance(prompt, BasePromptTemplate):
        if CONTEXT not in prompt.input_variables:
            names = ", ".join(prompt.input_variables)
            raise ArgumentError(f"the template has the variables {names}; expected {CONTEXT}, or pass a function")
        others = {name: "?" for name in prompt.input_variables if name != CONTEXT}

        def fill(documents: list[Document]) -> Any:
            context = "\n\n".join(document.page_content for document in documents)
            return prompt.invoke({CONTEXT: context, **others})

        return fill
    if isinstance(prompt, Runnable):
        return prompt.invoke
    if callable(prompt):
        return prompt  # type: ignore[no-any-return]
    raise WrongTypeError(f"prompt={type(prompt).__name__}; expected a template, a runnable, or a function of documents")


def _flat_prompt(llm: ChatRagBias | RagBiasPipeline, given: Any) -> str:
    value = llm._convert_input(given)
    if isinstance(llm, BaseChatModel):
        return str(llm.lm.chat_text(join_parts(template_messages(value.to_messages()))))
    return value.to_string()
