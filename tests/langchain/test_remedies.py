"""Every remedy from a warning works: the method then runs and is order-invariant."""

import json
import re
import warnings

import pytest
from langchain_classic.chains import RetrievalQAWithSourcesChain
from langchain_core.documents import Document
from langchain_core.messages import HumanMessage
from langchain_core.prompts import ChatPromptTemplate, PromptTemplate
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnablePassthrough

from langchain_ragbias import ChatRagBias
from ragbias import DebiasedLM, Prompt
from ragbias.boundaries import locate
from ragbias.errors import MissingDocumentsWarning, NumberedHeadersWarning
from ragbias.generation.preparing import split_located
from support.prompts import SENTENCES

PROMPT = ChatPromptTemplate.from_messages([("system", "Use it.\n\nContext:\n{context}"), ("human", "{input}")])
ORDERS = ([0, 1, 2], [2, 0, 1])
FORMS = {
    "numbered tags": lambda docs: "\n".join(f"<doc{i}>{each.page_content}</doc{i}>" for i, each in enumerate(docs, 1)),
    "footers": lambda docs: "\n".join(f"{each.page_content}\n(by {each.metadata['title'][:2]})" for each in docs),
    "cut": lambda docs: "\n".join(f"<doc>{each.page_content[:12]}</doc>" for each in docs),
    "one cut": lambda docs: "\n".join(f"<doc>{each.page_content[:20]}</doc>" for each in docs),
    "upper": lambda docs: "\n".join(f"<doc>{each.page_content.upper()}</doc>" for each in docs),
}
SEGMENTERS = {
    "numbered tags": re.compile(r"<doc\d>(.*?)</doc\d>"),
    "footers": re.compile(r"^.*\n\(by ..\)$", re.MULTILINE),
    "cut": re.compile(r"<doc>(.*?)</doc>"),
    "one cut": re.compile(r"<doc>(.*?)</doc>"),
    "upper": re.compile(r"<doc>(.*?)</doc>"),
}


class InOrder(BaseRetriever):
    order: list[int]

    def _get_relevant_documents(self, query, *, run_manager):
        return [
            Document(SENTENCES[index], metadata={"title": ["Zebra", "Apple", "Lemon"][index]}) for index in self.order
        ]


def chain(llm, form, order):
    return ({"context": InOrder(order=order) | form, "input": RunnablePassthrough()} | PROMPT | llm).invoke("Who?")


def in_own_code(llm, form, order):
    return llm.invoke(PROMPT.invoke({"context": form(InOrder(order=order).invoke("Who?")), "input": "Who?"}))


def reports(llm, call, form):
    """Return reports and answers for all orders."""
    answers = [call(llm, FORMS[form], order) for order in ORDERS]
    return [each.response_metadata["ragbias"] for each in answers], {each.content for each in answers}


@pytest.mark.parametrize("call", [chain, in_own_code])
@pytest.mark.parametrize("form", FORMS)
def test_a_fitting_segmenter_runs_before_anything_is_given_up(llama, byte_tokenizer, form, call):
    lm = DebiasedLM(llama, byte_tokenizer, strip_numbering=True)
    llm = ChatRagBias(lm=lm, segmenter=SEGMENTERS[form], max_tokens=6)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found, answers = reports(llm, call, form)
    assert {(each["method_ran"], each["n_found"], each["n_expected"]) for each in found} == {("pine", 3, 3)}
    assert len(answers) == 1


@pytest.mark.parametrize("form", FORMS)
def test_a_segmenter_gives_the_same_segments_in_every_order(form):
    parts = set()
    for order in ORDERS:
        docs = InOrder(order=order).invoke("Who?")
        text = f"Use it.\n\nContext:\n{FORMS[form](docs)}\n\nQuestion: who?"
        found = locate(text, run=[[each.page_content for each in docs]], segmenter=SEGMENTERS[form])
        prompt = Prompt.from_text(text, found.spans, strip_numbering=True)
        assert split_located(text, found, strip_numbering=True).parts == prompt
        parts.add((prompt.prefix, tuple(sorted(prompt.documents)), prompt.suffix))
    assert len(parts) == 1
    assert len(prompt.documents) == 3


@pytest.mark.parametrize("call", [chain, in_own_code])
def test_tagged_documents_with_numbers_run_with_a_warning(llama, byte_tokenizer, call):
    llm = ChatRagBias(model=llama, tokenizer=byte_tokenizer, max_tokens=6)
    with pytest.warns(NumberedHeadersWarning, match="strip_numbering=True"):
        found, answers = reports(llm, call, "numbered tags")
    assert {(each["method_ran"], each["n_found"], each["numbering"]) for each in found} == {("pine", 3, "present")}
    assert len(answers) == 2
    stripping = ChatRagBias(model=llama, tokenizer=byte_tokenizer, max_tokens=6, strip_numbering=True)
    found, answers = reports(stripping, call, "numbered tags")
    assert {(each["method_ran"], each["numbering"]) for each in found} == {("pine", "stripped")}
    assert len(answers) == 1


def test_found_but_ambiguous_documents_are_not_the_reason(llama, byte_tokenizer):
    llm = ChatRagBias(model=llama, tokenizer=byte_tokenizer, max_tokens=2)
    texts = [f"[{number}] {each}" for number, each in enumerate(SENTENCES, 1)]
    scored = "\n".join(f"{each} (score 0.{number})" for number, each in enumerate(texts, 4))
    with pytest.warns(MissingDocumentsWarning, match="3 of 3 expected documents .*, but only the plain model can"):
        llm.invoke(f"Context:\n{scored}\n\nWho?", documents=SENTENCES)


def test_both_remedies_of_the_warning_of_footers_work(llama, byte_tokenizer):
    lm = DebiasedLM(llama, byte_tokenizer)
    with pytest.warns(
        MissingDocumentsWarning, match="Change the template, or pass a segmenter= that separates the documents"
    ):
        assert reports(ChatRagBias(lm=lm, max_tokens=2), chain, "footers")[0][0]["method_ran"] == "none"
    segmented = ChatRagBias(lm=lm, max_tokens=2, segmenter=SEGMENTERS["footers"])
    changed = ChatRagBias(lm=lm, max_tokens=2)
    FORMS["changed"] = lambda docs: "\n\n".join(
        f"By {each.metadata['title'][:2]}\n{each.page_content}" for each in docs
    )
    for llm, form in ((segmented, "footers"), (changed, "changed")):
        found, answers = reports(llm, chain, form)
        assert ({each["method_ran"] for each in found}, len(answers)) == ({"pine"}, 1)


@pytest.mark.parametrize("segmenter", [None, re.compile(r"{[^{}]*}")])
def test_the_remedy_for_numbered_json_works(llama, byte_tokenizer, segmenter):
    FORMS["json"] = lambda docs: json.dumps([{"id": i, "text": d.page_content} for i, d in enumerate(docs)], indent=2)
    lm = DebiasedLM(llama, byte_tokenizer)
    with pytest.warns(MissingDocumentsWarning, match="Pass strip_numbering=True, or change the template"):
        reports(ChatRagBias(lm=lm, max_tokens=2, segmenter=segmenter), chain, "json")
    stripping = ChatRagBias(model=llama, tokenizer=byte_tokenizer, max_tokens=2, strip_numbering=True)
    found, answers = reports(stripping, chain, "json")
    assert ({(each["method_ran"], each["numbering"]) for each in found}, len(answers)) == ({("pine", "stripped")}, 1)


def test_both_remedies_for_given_but_absent_documents_work(llama, byte_tokenizer):
    lm = DebiasedLM(llama, byte_tokenizer)
    docs = InOrder(order=ORDERS[0]).invoke("Who?")
    text = f"Context:\n{FORMS['upper'](docs)}\n\nWho?"
    llm = ChatRagBias(lm=lm, max_tokens=2)
    with pytest.warns(MissingDocumentsWarning, match="Pass documents= as they occur in the prompt, or a segmenter="):
        llm.invoke([HumanMessage(text)], documents=SENTENCES)
    as_they_occur = llm.invoke([HumanMessage(text)], documents=[each.upper() for each in SENTENCES])
    segmented = ChatRagBias(lm=lm, max_tokens=2, segmenter=SEGMENTERS["upper"]).invoke([HumanMessage(text)])
    for answer in (as_they_occur, segmented):
        assert answer.response_metadata["ragbias"]["method_ran"] == "pine"


def test_the_remedy_for_a_segmenter_that_misses_documents_works(llama, byte_tokenizer):
    lm = DebiasedLM(llama, byte_tokenizer)
    missing = ChatRagBias(lm=lm, max_tokens=2, segmenter=re.compile(r"^The.*\n\(by ..\)$", re.MULTILINE))
    with pytest.warns(MissingDocumentsWarning, match="Let the segmenter find all documents"):
        chain(missing, FORMS["footers"], ORDERS[0])
    whole = ChatRagBias(lm=lm, max_tokens=2, segmenter=SEGMENTERS["footers"])
    assert reports(whole, chain, "footers")[0][0]["n_found"] == 3


def test_the_remedy_for_a_chain_that_spreads_documents_works(llama, byte_tokenizer):
    llm = ChatRagBias(model=llama, tokenizer=byte_tokenizer, max_tokens=2)
    prompt = PromptTemplate.from_template("{summaries}\n\n{question}")

    def ask(kind, **prompts):
        retriever = InOrder(order=ORDERS[0])
        kwargs = {**prompts, "document_prompt": PromptTemplate.from_template("{page_content}")}
        by = RetrievalQAWithSourcesChain.from_chain_type(llm, kind, retriever=retriever, chain_type_kwargs=kwargs)
        by.invoke({"question": "Who?"})

    with pytest.warns(MissingDocumentsWarning, match="If the chain rewrites .* use chain_type='stuff' and print"):
        ask("map_reduce", combine_prompt=prompt, question_prompt=PromptTemplate.from_template("{context} {question}"))
    ask("stuff", prompt=prompt)
    assert llm.last_report["n_found"] == 3


def test_an_unseen_retrieval_is_treated_with_passed_documents(llama, byte_tokenizer):
    llm = ChatRagBias(model=llama, tokenizer=byte_tokenizer, max_tokens=2)
    with pytest.warns(MissingDocumentsWarning, match="pass documents= as they occur in the prompt, or retrieve"):
        chain(llm, FORMS["upper"], ORDERS[0])
    upper = [each.upper() for each in SENTENCES]
    assert chain(llm.bind(documents=upper), FORMS["upper"], ORDERS[0]).response_metadata["ragbias"]["n_found"] == 3
