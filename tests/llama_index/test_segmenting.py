"""Documents that nothing retrieved: a segmenter of the user's, numbered headers, and their numbers taken out."""

import re
import warnings

import pytest
from llama_index.llms.ragbias import RagBiasLLM

from ragbias.errors import RagBiasError, SegmenterError

TEXTS = ["The falcon is red.", "An owl sleeps in the barn.", "Two herons fly south."]
TAGGED = "Context:\n" + "\n".join(f"<doc>{text}</doc>" for text in TEXTS) + "\nQuestion: who sleeps?"


def numbered(order):
    blocks = [f"Document [{number}] {TEXTS[index]}" for number, index in enumerate(order, 1)]
    return "Context:\n" + "\n".join(blocks) + "\n\nQuestion: who sleeps?"


def test_a_segmenter_finds_documents_that_nothing_retrieved(lm):
    llm = RagBiasLLM(lm=lm, segmenter=re.compile(r"<doc>(.*?)</doc>"))
    report = llm.complete(TAGGED, max_tokens=2).additional_kwargs["ragbias"]
    assert (report["source"], report["n_found"], report["method_ran"]) == ("segmenter", 3, "pine")


def test_a_senseless_segmenter_is_refused_when_the_llm_is_made(lm):
    with pytest.raises(SegmenterError, match="segmenter=3"):
        RagBiasLLM(lm=lm, segmenter=3)


def test_numbered_headers_are_found_and_warned_of_once(lm):
    llm = RagBiasLLM(lm=lm)
    with pytest.warns(UserWarning, match="strip_numbering=True"):
        report = llm.complete(numbered([0, 1, 2]), max_tokens=2).additional_kwargs["ragbias"]
    assert (report["source"], report["n_found"]) == ("headers", 3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        llm.complete(numbered([0, 1, 2]), max_tokens=2)


def test_stripped_numbers_give_one_answer_for_every_order(llama, byte_tokenizer):
    llm = RagBiasLLM(model=llama, tokenizer=byte_tokenizer, strip_numbering=True)
    orders = ([0, 1, 2], [2, 0, 1], [1, 2, 0])
    assert len({llm.complete(numbered(order), max_tokens=6).text for order in orders}) == 1


def test_strip_numbering_that_a_given_lm_does_not_do_is_refused(lm):
    with pytest.raises(RagBiasError, match="strip_numbering"):
        RagBiasLLM(lm=lm, strip_numbering=True)
