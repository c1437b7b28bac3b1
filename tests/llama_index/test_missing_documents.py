"""Documents that are missing in the prompt: ignore, warn or raise."""

import warnings
from typing import Any

import pytest
from llama_index.core import Document, PromptTemplate, SummaryIndex
from llama_index.core.chat_engine import SimpleChatEngine
from llama_index.core.extractors import KeywordExtractor, SummaryExtractor, TitleExtractor
from llama_index.core.ingestion import IngestionPipeline
from llama_index.core.node_parser import SentenceSplitter
from llama_index.core.query_engine import CustomQueryEngine
from llama_index.core.schema import TextNode
from llama_index.llms.ragbias import MissingDocumentsWarning, RagBiasLLM

from ragbias.errors import NoDocumentsError

QUESTION = "What is the passphrase?"
REWRITTEN = PromptTemplate(
    "Context:\n{context_str}\n\n{query_str}",
    function_mappings={"context_str": lambda **kwargs: str(kwargs["context_str"]).upper()},
)


class MultiStepLike(CustomQueryEngine):
    """Ask the LLM for another question before retrieving."""

    llm: RagBiasLLM
    engine: Any

    def __init__(self, llm: RagBiasLLM, engine: Any) -> None:
        super().__init__(llm=llm, engine=engine)

    def custom_query(self, query_str: str) -> str:
        self.llm.complete(f"Rewrite: {query_str}")
        return str(self.engine.query(query_str))


DOCUMENTS = ["The Falcon Station gate is red.", "The Ivory Bridge gate is blue."]


def test_a_rewriting_template_runs_plain_with_a_reason(make_llm, index):
    llm = make_llm()
    engine = index.as_query_engine(llm=llm, similarity_top_k=3, text_qa_template=REWRITTEN)
    with pytest.warns(MissingDocumentsWarning, match="0 of 3 expected documents"):
        engine.query(QUESTION)
    report = llm.last_report
    assert report is not None
    assert (report["method_requested"], report["method_ran"]) == ("pine", "none")
    assert (report["n_expected"], report["n_found"]) == (3, 0)
    assert "verbatim" in report["reason"]


def test_warning_comes_once_for_each_call_site(make_llm, index):
    engine = index.as_query_engine(llm=make_llm(), similarity_top_k=3, text_qa_template=REWRITTEN)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for _ in range(3):
            engine.query(QUESTION)
        engine.query(QUESTION)
    warned = [warning for warning in seen if warning.category is MissingDocumentsWarning]
    assert [warning.filename for warning in warned] == [__file__] * 2
    assert warned[1].lineno == warned[0].lineno + 1


@pytest.mark.parametrize("mode", ["compact", "simple_summarize"])
def test_raise_is_not_swallowed_by_the_synthesizer(make_llm, index, mode):
    llm = make_llm(on_missing="raise")
    engine = index.as_query_engine(llm=llm, similarity_top_k=3, text_qa_template=REWRITTEN, response_mode=mode)
    with pytest.raises(NoDocumentsError, match="0 of 3"):
        engine.query(QUESTION)


def test_raise_reaches_the_reader_of_a_stream(make_llm, index):
    llm = make_llm(on_missing="raise")
    engine = index.as_query_engine(llm=llm, similarity_top_k=3, text_qa_template=REWRITTEN, streaming=True)
    with pytest.raises(NoDocumentsError, match="located 0 of 3 expected documents"):
        list(engine.query(QUESTION).response_gen)


async def test_raise_reaches_the_async_caller(make_llm, index):
    llm = make_llm(on_missing="raise")
    engine = index.as_query_engine(llm=llm, similarity_top_k=3, text_qa_template=REWRITTEN)
    with pytest.raises(NoDocumentsError, match="located 0 of 3 expected documents"):
        await engine.aquery(QUESTION)


def test_explicit_documents_that_do_not_occur_in_the_prompt(make_llm):
    with pytest.warns(MissingDocumentsWarning, match="0 of 2"):
        report = make_llm().complete(QUESTION, documents=DOCUMENTS).additional_kwargs["ragbias"]
    assert (report["method_ran"], report["n_expected"], report["n_found"]) == ("none", 2, 0)
    with pytest.raises(NoDocumentsError, match="located 0 of 2 expected documents"):
        make_llm(on_missing="raise").complete(QUESTION, documents=DOCUMENTS)


def test_no_warning_where_nothing_was_expected_or_needed(make_llm):
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        make_llm(on_missing="ignore").complete(QUESTION)
        make_llm().complete(QUESTION, documents=[])
        make_llm(on_missing="ignore").complete(QUESTION, documents=DOCUMENTS)
        make_llm(method="none", on_missing="raise").complete(QUESTION, documents=DOCUMENTS)
        make_llm().complete(f"{DOCUMENTS[0]}\n{QUESTION}", documents=DOCUMENTS[:1])


@pytest.mark.parametrize("step", [1, -1])
def test_parts_of_a_document_of_joined_nodes_count_as_nodes(make_llm, make_index, step):
    """A splitter may cut the document, and the cuts depend on the order of the nodes."""
    texts = [
        " ".join(f"Room {number} of the {place} is dry." for number in range(4)) for place in ("mill", "hall", "inn")
    ]
    nodes = make_index([TextNode(text=text) for text in texts]).as_retriever(similarity_top_k=3).retrieve(QUESTION)
    document, llm = Document(text="\n".join(node.text for node in nodes[::step])), make_llm()

    def found(size: int) -> tuple[str, int, int]:
        splitter = SentenceSplitter(chunk_size=size, chunk_overlap=0, tokenizer=list)
        SummaryIndex.from_documents([document], transformations=[splitter]).as_query_engine(llm=llm).query(QUESTION)
        assert llm.last_report is not None
        return llm.last_report["method_ran"], llm.last_report["n_found"], llm.last_report["n_expected"]

    assert found(400) == ("pine", 3, 3)
    with pytest.warns(MissingDocumentsWarning, match="splits a Document that joins nodes, index the nodes;"):
        assert found(100) == ("none", 0, 3)


def test_raise_accepts_one_document_and_an_empty_list(make_llm, index):
    llm = make_llm(on_missing="raise")
    index.as_query_engine(llm=llm, similarity_top_k=1).query(QUESTION)
    assert llm.complete(QUESTION, documents=[]).additional_kwargs["ragbias"]["method_ran"] == "none"
    with pytest.raises(NoDocumentsError, match="located none"):
        llm.complete(QUESTION)


def test_graders_and_extractors_hold_one_document_by_design(make_llm, index):
    llm = make_llm(on_missing="raise", max_new_tokens=2)
    for found in index.as_retriever(similarity_top_k=2).retrieve(QUESTION):
        graded = llm.complete(f"Retrieved document:\n{found.text}\n\nUser question: {QUESTION}\nIs it relevant?")
        report = graded.additional_kwargs["ragbias"]
        assert (report["n_found"], report["reason"]) == (1, "one document found, so there is no order to debias")
    nodes = [TextNode(text="Heron Mill has a brass owl."), TextNode(text="Ember Abbey has a tin whale.")]
    extractors = [TitleExtractor(llm=llm, nodes=1), SummaryExtractor(llm=llm), KeywordExtractor(llm=llm)]
    assert len(IngestionPipeline(transformations=extractors).run(nodes=nodes)) == 2
    with pytest.raises(NoDocumentsError, match="located none in the prompt"):
        llm.complete(QUESTION)


def test_a_line_that_never_finds_documents_warns_once(make_llm):
    llm = make_llm()
    engine = SimpleChatEngine.from_defaults(llm=make_llm())
    for ask in (lambda: llm.complete(QUESTION), lambda: engine.chat(QUESTION)):
        with pytest.warns(MissingDocumentsWarning, match="located none in the prompt.*pass documents=") as seen:
            ask()
        assert [warning.filename for warning in seen] == [__file__]
        with warnings.catch_warnings():
            warnings.simplefilter("error", MissingDocumentsWarning)
            ask()


def test_a_request_before_its_runs_retrieval_is_no_mistake(make_llm, index):
    llm = make_llm()
    asking = MultiStepLike(llm, index.as_query_engine(llm=llm, similarity_top_k=3))
    with warnings.catch_warnings():
        warnings.simplefilter("error", MissingDocumentsWarning)
        asking.query(QUESTION)
