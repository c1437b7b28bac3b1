"""Headers and footers that a chain derives from metadata, so that no source knows them verbatim."""

import itertools

import pytest
from langchain_core.documents import Document
from langchain_core.prompts import PromptTemplate
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnableLambda, RunnablePassthrough

from langchain_ragbias import ChatRagBias
from ragbias.lm import DebiasedLM

TOURS = Document("Guided tours start at noon. The passphrase is whisper lagoon dagger.", metadata={"at": "copper-hall"})
WALLS = Document("The walls are emerald. The passphrase is cobweb ivy wagon.", metadata={"at": "pulsar-observatory"})
ROOF = Document("The roof is flat. The passphrase is iris granite oak.", metadata={"at": "pulsar-observatory"})


class Fixed(BaseRetriever):
    documents: list[Document]

    def _get_relevant_documents(self, query, *, run_manager):
        return self.documents


@pytest.fixture(scope="module")
def tiny():
    return DebiasedLM.from_pretrained("tiny")


def answers(tiny, form, question):
    """Run every order. Return the methods that ran, by answer."""
    llm = ChatRagBias(lm=tiny, max_tokens=6, logprobs=True, on_missing="ignore")
    prompt = PromptTemplate.from_template("Context:\n\n{context}\n\nQuestion: {question}\nAnswer:")
    given = {}
    for order in itertools.permutations([TOURS, WALLS, ROOF]):
        joined = Fixed(documents=list(order)) | RunnableLambda(lambda found: "\n\n".join(map(form, found)))
        message = ({"context": joined, "question": RunnablePassthrough()} | prompt | llm).invoke(question)
        about = message.response_metadata
        answer = (message.content, tuple(each["logprob"] for each in about["logprobs"]["content"]))
        given.setdefault(answer, []).append((about["ragbias"]["method_ran"], bool(about["ragbias"]["reason"])))
    return given


def about(document):
    return "About " + document.metadata["at"].replace("-", " ").title()


def test_pine_is_invariant_if_two_documents_share_a_header(tiny):
    given = answers(tiny, lambda each: f"{about(each)}\n{each.page_content}", "What is the passphrase of Copper Hall?")
    ((text, _),) = given
    assert text.strip().startswith("whisper lagoon")
    assert list(given.values()) == [[("pine", False)] * 6]


def test_every_order_runs_plain_if_two_documents_share_a_footer(tiny):
    given = answers(tiny, lambda each: f"{each.page_content}\n{about(each)}", "What is the passphrase of Copper Hall?")
    assert [ran for each in given.values() for ran in each] == [("none", True)] * 6
