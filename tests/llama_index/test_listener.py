"""The listener is passive, bounded and removable, and reports its failures."""

import gc

import pytest
from llama_index.core import get_response_synthesizer
from llama_index.core.instrumentation import get_dispatcher
from llama_index.core.llms import MockLLM
from llama_index.core.schema import MetadataMode, NodeWithScore, TextNode
from llama_index.llms.ragbias import install_listener, listener, uninstall_listener

QUESTION = "What is the passphrase?"


def attached() -> list[object]:
    return [handler for handler in get_dispatcher().span_handlers if isinstance(handler, listener.RetrievalSpanHandler)]


def test_importing_the_package_attaches_one_listener():
    assert len(attached()) == 1
    install_listener()
    assert len(attached()) == 1


def test_uninstalled_listener_sees_nothing(llm, nodes):
    uninstall_listener()
    assert not attached()
    get_response_synthesizer(llm=llm).synthesize(QUESTION, nodes)
    assert llm.last_report is not None
    assert (llm.last_report["source"], llm.last_report["n_found"]) == ("none", 0)
    assert listener.runs.retrievals.registry() is None


def test_uninstalling_forgets_what_was_seen(llm, nodes):
    get_response_synthesizer(llm=llm).synthesize(QUESTION, nodes)
    uninstall_listener()
    install_listener()
    prompt = "\n\n".join(node.get_content() for node in nodes)
    assert llm.complete(prompt).additional_kwargs["ragbias"]["n_found"] == 0


def test_synthesis_is_closed_after_success_and_after_failure(make_llm, nodes, on_forward):
    synthesizer = get_response_synthesizer(llm=make_llm())
    synthesizer.synthesize(QUESTION, nodes)
    assert listener.current_synthesis() is None

    def fail(_step: int) -> None:
        raise RuntimeError("the GPU fell off")

    with on_forward(fail), pytest.raises(RuntimeError, match="fell off"):  # type: ignore[attr-defined]
        synthesizer.synthesize(QUESTION, nodes)
    assert listener.current_synthesis() is None


class BrokenNode(TextNode):
    """A node that fails when it is first read, which the listener does."""

    reads: int = 0

    def get_content(self, metadata_mode: MetadataMode = MetadataMode.NONE) -> str:
        self.reads += 1
        if self.reads == 1:
            raise KeyError("secret text of the document")
        return super().get_content(metadata_mode)


def test_a_listener_failure_is_reported_without_document_text(llm, nodes):
    broken = NodeWithScore(node=BrokenNode(text="The gate of the last house is red."))
    with pytest.warns(UserWarning, match="5 of 6"):
        get_response_synthesizer(llm=llm).synthesize(QUESTION, [*nodes, broken])
    assert llm.last_report is not None
    assert (llm.last_report["n_found"], llm.last_report["n_expected"]) == (5, 6)
    assert "could not read node 5 of CompactAndRefine.synthesize: KeyError" in llm.last_report["reason"]
    assert "secret" not in llm.last_report["reason"]


@pytest.mark.slow
def test_no_growth_over_many_runs():
    dispatcher = get_dispatcher("test")
    (seen,) = attached()
    assert isinstance(seen, listener.RetrievalSpanHandler)

    class Synthesizer:
        @dispatcher.span
        def synthesize(self, query: str, nodes: list[NodeWithScore]) -> str:
            return query

        @dispatcher.span
        def retrieve(self, nodes: list[NodeWithScore]) -> list[NodeWithScore]:
            return nodes

    synthesizer = Synthesizer()

    retrievals = [
        [NodeWithScore(node=TextNode(text=f"Document {number}, {part}")) for part in "ab"] for number in range(1_500)
    ]

    def run(count: int) -> None:
        for number in range(count):
            nodes = retrievals[number % len(retrievals)]
            synthesizer.retrieve(nodes)
            synthesizer.synthesize("query", nodes)

    run(1_500)
    gc.collect()
    before, objects = len(listener.runs.retrievals.registry() or ()), len(gc.get_objects())
    run(10_000)
    gc.collect()
    assert len(listener.runs.retrievals.registry() or ()) <= before < 2 * len(retrievals)
    assert len(gc.get_objects()) < objects + 1_000
    assert not seen.open_spans
    assert not seen.completed_spans
    assert not seen.dropped_spans
    assert listener.current_synthesis() is None


def test_nested_synthesis_gives_way_to_the_outer_one_again(nodes):
    dispatcher = get_dispatcher("test")
    texts: list[object] = []

    class Synthesizer:
        @dispatcher.span
        def synthesize(self, nodes: list[NodeWithScore], inner: list[NodeWithScore]) -> str:
            if inner:
                Synthesizer().synthesize(inner, [])
            synthesis = listener.current_synthesis()
            texts.append(synthesis.texts if synthesis else None)
            return ""

    Synthesizer().synthesize(nodes[:2], nodes[2:4])
    assert texts == [tuple(node.get_content() for node in part) for part in (nodes[2:4], nodes[:2])]


def test_prompts_are_the_same_with_and_without_listener(index):
    engine = index.as_query_engine(llm=MockLLM(), similarity_top_k=3)  # its answer is the prompt
    with_listener = str(engine.query(QUESTION))
    uninstall_listener()
    assert str(engine.query(QUESTION)) == with_listener
