"""Documents that were not retrieved: segmenters, numbered headers, and stripped numbers."""

import re

import pytest
from llama_index.core.llms import ChatMessage
from llama_index.llms.ragbias import RagBiasLLM

from ragbias import DebiasedLM
from ragbias.errors import (
    DocumentNotFoundError,
    MethodError,
    NoDocumentsError,
    RagBiasError,
    SegmenterError,
    WrongTypeError,
)
from support.integrations import assert_warned_at_their_lines, assert_warned_once_in_threads
from support.prompts import SENTENCES, TAGGED, numbered


def test_a_segmenter_finds_documents_that_nothing_retrieved(lm):
    llm = RagBiasLLM(lm=lm, segmenter=re.compile(r"<doc>(.*?)</doc>"))
    report = llm.complete(TAGGED, max_tokens=2).additional_kwargs["ragbias"]
    assert (report["source"], report["n_found"], report["method_ran"]) == ("segmenter", 3, "pine")


def test_a_senseless_segmenter_is_refused_when_the_llm_is_made(lm):
    with pytest.raises(SegmenterError, match="segmenter=3"):
        RagBiasLLM(lm=lm, segmenter=3)


def test_numbers_warn_once_per_line_of_the_user(llama, byte_tokenizer):
    llm = RagBiasLLM(model=llama, tokenizer=byte_tokenizer)
    places = [
        lambda: llm.complete(numbered([0, 1, 2]), max_tokens=2).additional_kwargs["ragbias"],
        lambda: list(llm.stream_complete(numbered([0, 1, 2]), max_tokens=2))[-1].additional_kwargs["ragbias"],
        lambda: llm.chat([ChatMessage(numbered([0, 1, 2]))], max_tokens=2).additional_kwargs["ragbias"],
    ]
    assert_warned_at_their_lines(places)


def test_numbers_warn_once_in_a_thread_without_user_code(llama, byte_tokenizer):
    llm = RagBiasLLM(model=llama, tokenizer=byte_tokenizer)
    assert_warned_once_in_threads(llm.complete, numbered([0, 1, 2]), max_tokens=2)


@pytest.mark.parametrize(("strip", "answers"), [(True, 1), (False, 3)])
def test_only_stripped_numbers_give_one_answer_for_every_order(llama, byte_tokenizer, strip, answers):
    llm = RagBiasLLM(model=llama, tokenizer=byte_tokenizer, strip_numbering=strip, on_missing="ignore")
    orders = ([0, 1, 2], [2, 0, 1], [1, 2, 0])
    assert len({llm.complete(numbered(order), max_tokens=6).text for order in orders}) == answers


@pytest.mark.parametrize("setting", [{"strip_numbering": True}, {"backend": "torch"}])
def test_what_a_given_lm_was_not_made_with_is_refused(lm, setting):
    with pytest.raises(RagBiasError, match=f"{next(iter(setting))}=.* contradicts the existing model"):
        RagBiasLLM(lm=lm, **setting)


def test_a_backend_reaches_the_report(llama, byte_tokenizer):
    llm = RagBiasLLM(model=llama, tokenizer=byte_tokenizer, backend="torch")
    assert llm.lm.backend == "torch"
    response = llm.complete("Context: one gate. two gates. Which?", documents=["one gate.", "two gates."], max_tokens=1)
    assert response.additional_kwargs["ragbias"]["backend"] == "torch"
    with pytest.raises(RagBiasError, match="unknown backend 'numpy'"):
        RagBiasLLM(model=llama, tokenizer=byte_tokenizer, backend="numpy")


def test_a_given_lm_brings_its_name_method_and_numbering(llama, byte_tokenizer):
    lm = DebiasedLM(llama, byte_tokenizer, "rotor", name="mistralai/Mistral-7B-Instruct-v0.2", strip_numbering=True)
    llm = RagBiasLLM(lm=lm)
    assert (llm.method.name, llm.model_name, llm.options.strip_numbering) == ("rotor", lm.name, True)
    with pytest.raises(MethodError, match="32 layers"):  # the profile of that name, not tiny's
        llm.complete(numbered([0, 1]), method="channel-scaling")


@pytest.mark.parametrize("documents", ["one string", [3], 5])
def test_documents_of_a_wrong_type_are_refused(lm, documents):
    with pytest.raises(WrongTypeError, match="document"):
        RagBiasLLM(lm=lm).complete(TAGGED, documents=documents)


def test_raise_covers_final_documents_and_incomplete_prompts(lm):
    llm = RagBiasLLM(lm=lm, on_missing="raise")
    with pytest.raises(NoDocumentsError, match="ends with the documents"):
        llm.complete("Context:\n" + "\n\n".join(SENTENCES), documents=SENTENCES, formatted=True)
    with pytest.raises(DocumentNotFoundError, match="3 of 4"):
        llm.complete("\n\n".join(SENTENCES) + "\n\nQuestion: who?", documents=[*SENTENCES, "A crow counts."])
