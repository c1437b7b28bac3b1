"""``CitationQueryEngine`` writes ``Source 1:`` into the nodes, below their metadata."""

import itertools

import pytest
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.query_engine import CitationQueryEngine
from llama_index.core.schema import NodeWithScore, TextNode
from llama_index.llms.ragbias import RagBiasLLM

from ragbias import DebiasedLM
from ragbias.errors import NumberedHeadersWarning
from support.prompts import SENTENCES

PAGES = {"none": {}, "files": {"file_path": "{name}.txt"}, "pages": {"file_path": "{name}.txt", "page_label": "{page}"}}


class InOrder(BaseRetriever):
    def __init__(self, order, metadata):
        super().__init__()
        self.nodes = [
            TextNode(
                text=SENTENCES[index],
                metadata={key: value.format(name="abc"[index], page=index + 1) for key, value in metadata.items()},
            )
            for index in order
        ]

    def _retrieve(self, query_bundle):
        return [NodeWithScore(node=node, score=1.0) for node in self.nodes]


def prompted(lm, order, metadata):
    llm = RagBiasLLM(lm=lm, max_new_tokens=8)
    engine = CitationQueryEngine.from_args(index=None, llm=llm, retriever=InOrder(order, metadata))
    answer = str(engine.query("Who sleeps?"))
    return answer, llm.last_report


@pytest.fixture
def wide(llama, byte_tokenizer):
    return lambda **settings: DebiasedLM(llama, byte_tokenizer, **settings)


@pytest.mark.parametrize("metadata", PAGES)
def test_its_numbers_are_reported_and_warned_of(wide, metadata):
    with pytest.warns(NumberedHeadersWarning, match="strip_numbering=True") as warned:
        _, report = prompted(wide(), [2, 0, 1], PAGES[metadata])
    assert (report["method_ran"], report["numbering"]) == ("pine", "present")
    assert [each.filename for each in warned] == [__file__]


@pytest.mark.parametrize("metadata", PAGES)
def test_stripped_it_answers_alike_in_every_order(wide, metadata):
    lm = wide(strip_numbering=True)
    answers = {}
    for order in itertools.permutations(range(3)):
        answer, report = prompted(lm, order, PAGES[metadata])
        assert (report["method_ran"], report["n_found"]) == ("pine", 3)
        if metadata == "pages" and order in ((0, 1, 2), (2, 1, 0)):  # the pages count by accident
            assert (report["numbering"], "may belong to the documents" in report["reason"]) == ("present", True)
        else:
            assert (report["numbering"], report["reason"]) == ("stripped", "")
        answers[answer] = order
    assert len(answers) == 1
