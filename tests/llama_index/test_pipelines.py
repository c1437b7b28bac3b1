"""Stock pipelines in every kind of call find the retrieved documents and no others.

The results are compared with each row of docs/results/pipelines-llama-index.md.
"""

import ast
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from llama_index.core import QueryBundle, VectorStoreIndex
from llama_index.core.indices.query.query_transform import HyDEQueryTransform
from llama_index.core.node_parser import SentenceWindowNodeParser
from llama_index.core.postprocessor import LongContextReorder, MetadataReplacementPostProcessor, SimilarityPostprocessor
from llama_index.core.query_engine import (
    CitationQueryEngine,
    RouterQueryEngine,
    SubQuestionQueryEngine,
    TransformQueryEngine,
)
from llama_index.core.question_gen.types import BaseQuestionGenerator, SubQuestion
from llama_index.core.response_synthesizers import get_response_synthesizer
from llama_index.core.schema import Document, MetadataMode, NodeWithScore
from llama_index.core.selectors import EmbeddingSingleSelector
from llama_index.core.tools import QueryEngineTool, ToolMetadata
from llama_index.embeddings.huggingface import HuggingFaceEmbedding
from llama_index.llms.ragbias import RagBiasLLM

from ragbias.boundaries import Boundaries
from ragbias.models.tiny.world import Passage
from support.scripted import RecordingLM

QUESTION = "What is the passphrase of the Falcon Station?"
TOP_K = 4
FORMS = ("sync", "async", "stream", "async stream")
DOCS = Path(__file__).parents[2] / "docs" / "results" / "pipelines-llama-index.md"


@dataclass(frozen=True)
class World:
    """Indexes and the embedding model of the pipelines."""

    index: VectorStoreIndex
    windows: VectorStoreIndex
    embedding: HuggingFaceEmbedding


class FixedQuestions(BaseQuestionGenerator):
    """Ask each tool one question."""

    def generate(self, tools: Sequence[ToolMetadata], query: QueryBundle) -> list[SubQuestion]:
        return [SubQuestion(sub_question=f"{query.query_str} ({tool.name})", tool_name=tool.name) for tool in tools]

    async def agenerate(self, tools: Sequence[ToolMetadata], query: QueryBundle) -> list[SubQuestion]:
        return self.generate(tools, query)

    def _get_prompts(self) -> dict[str, Any]:
        return {}

    def _update_prompts(self, prompts: dict[str, Any]) -> None:
        return


Build = Callable[[World, RagBiasLLM, bool], Any]


def respond(mode: str, **settings: Any) -> Build:
    return lambda world, llm, streaming: world.index.as_query_engine(
        llm=llm, similarity_top_k=TOP_K, response_mode=mode, streaming=streaming, **settings
    )


def chat(mode: str) -> Build:
    return lambda world, llm, _: world.index.as_chat_engine(chat_mode=mode, llm=llm, similarity_top_k=TOP_K)


def windows(world: World, llm: RagBiasLLM, streaming: bool) -> Any:
    replaced = MetadataReplacementPostProcessor(target_metadata_key="window")
    return world.windows.as_query_engine(
        llm=llm, similarity_top_k=TOP_K, streaming=streaming, node_postprocessors=[replaced]
    )


def citations(world: World, llm: RagBiasLLM, streaming: bool) -> Any:
    return CitationQueryEngine.from_args(world.index, llm=llm, similarity_top_k=TOP_K, streaming=streaming)


def tools(world: World, llm: RagBiasLLM, streaming: bool) -> list[QueryEngineTool]:
    engine = respond("compact")(world, llm, streaming)
    return [
        QueryEngineTool.from_defaults(engine, name=name, description=f"Knows all about {name}.")
        for name in ("gates", "mottos")
    ]


def router(world: World, llm: RagBiasLLM, streaming: bool) -> Any:
    selector = EmbeddingSingleSelector.from_defaults(embed_model=world.embedding)
    return RouterQueryEngine.from_defaults(tools(world, llm, streaming), llm=llm, selector=selector)


def sub_questions(world: World, llm: RagBiasLLM, streaming: bool) -> Any:
    return SubQuestionQueryEngine.from_defaults(
        tools(world, llm, streaming=False),
        llm=llm,
        question_gen=FixedQuestions(),
        response_synthesizer=get_response_synthesizer(llm=llm, streaming=streaming),
        use_async=False,
    )


def hyde(world: World, llm: RagBiasLLM, streaming: bool) -> Any:
    return TransformQueryEngine(respond("compact")(world, llm, streaming), HyDEQueryTransform(llm=llm))


PIPELINES: dict[str, Build] = {
    "`compact`": respond("compact"),
    "`simple_summarize`": respond("simple_summarize"),
    "`tree_summarize`": respond("tree_summarize"),
    "`refine`": respond("refine"),
    "`accumulate`": respond("accumulate"),
    "`compact_accumulate`": respond("compact_accumulate"),
    "chat engine `context`": chat("context"),
    "chat engine `condense_plus_context`": chat("condense_plus_context"),
    "chat engine `condense_question`": chat("condense_question"),
    "`SimilarityPostprocessor`": respond("compact", node_postprocessors=[SimilarityPostprocessor(similarity_cutoff=0)]),
    "`LongContextReorder`": respond("compact", node_postprocessors=[LongContextReorder()]),
    "sentence windows": windows,
    "`CitationQueryEngine`": citations,
    "`RouterQueryEngine`": router,
    "`SubQuestionQueryEngine`": sub_questions,
    "HyDE": hyde,
}
NOT_STREAMED = {"`accumulate`", "`compact_accumulate`"}  # LlamaIndex refuses
CASES = [
    (name, form, is_chat_model)
    for name in PIPELINES
    for is_chat_model, forms in ((True, FORMS), (False, ("sync", "async stream")))
    for form in forms
    if not ("stream" in form and name in NOT_STREAMED)
]


@pytest.fixture(scope="module")
def world(
    index: VectorStoreIndex,
    make_index: Callable[..., VectorStoreIndex],
    embedding: HuggingFaceEmbedding,
    corpus: list[Passage],
) -> World:
    documents = [Document(text=passage.text) for passage in corpus]
    sentences = SentenceWindowNodeParser.from_defaults(window_size=1).get_nodes_from_documents(documents)
    return World(index, make_index(sentences), embedding)


async def ask(engine: Any, form: str) -> list[NodeWithScore]:
    """Ask, read the whole answer, and return the source nodes that LlamaIndex reports."""
    name = "query" if hasattr(engine, "query") else "stream_chat" if "stream" in form else "chat"
    if "async" in form:
        response = await getattr(engine, f"a{name}")(QUESTION)
        if "stream" in form:
            assert [token async for token in response.async_response_gen()]
    else:
        response = getattr(engine, name)(QUESTION)
        if "stream" in form:
            assert "".join(response.response_gen)
    return response.source_nodes or response.sources[0].raw_output.source_nodes


def bare(text: str) -> str:
    """Return a document as it occurs in a prompt, without the escapes of a printed list."""
    if "\\n" in text:
        text = ast.literal_eval('"' + text.replace('"', '\\"') + '"')
    return text.strip()


def counts(retrieved: Sequence[NodeWithScore], seen: Sequence[tuple[str, Boundaries]]) -> tuple[int, int, int, int]:
    """Count documents: retrieved, found in any call, found but not retrieved, and the most found in one call."""
    wanted = {node.get_content(MetadataMode.LLM).strip() for node in retrieved}
    found = [{bare(text[begin:end]) for begin, end in boundaries.spans} for text, boundaries in seen]
    everything = set().union(*found)
    return len(wanted), len(wanted & everything), len(everything - wanted), max(len(each) for each in found)


def row(name: str) -> list[str]:
    (line,) = [line for line in DOCS.read_text().splitlines() if line.startswith(f"| {name} |")]
    return [cell.strip() for cell in line.strip("|").split("|")]


@pytest.mark.filterwarnings("ignore:.*expected documents in the prompt:UserWarning")
@pytest.mark.parametrize(("name", "form", "is_chat_model"), CASES)
async def test_retrieved_documents_are_found_and_no_others(lm, world, name, form, is_chat_model):
    recording = RecordingLM(lm)
    llm = RagBiasLLM(lm=recording, max_new_tokens=4, is_chat_model=is_chat_model)
    retrieved = await ask(PIPELINES[name](world, llm, "stream" in form), form)
    measured = (len(recording.seen), *counts(retrieved, recording.seen))
    assert [str(each) for each in measured] == row(name)[1:]
