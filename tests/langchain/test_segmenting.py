"""Documents that were not retrieved: segmenters, numbered headers, and stripped numbers."""

import re

import pytest
from langchain_core.messages import HumanMessage

from langchain_ragbias import ChatRagBias
from ragbias.errors import ArgumentError, SegmenterError
from support.integrations import assert_warned_at_their_lines, assert_warned_once_in_threads
from support.prompts import SENTENCES, TAGGED, numbered


def ask(llm, text):
    return llm.invoke([HumanMessage(text)], max_tokens=2).response_metadata["ragbias"]


@pytest.mark.parametrize(
    "segmenter", [re.compile(r"<doc>(.*?)</doc>"), lambda text: SENTENCES], ids=["pattern", "function"]
)
def test_a_segmenter_finds_documents_that_nothing_retrieved(lm, segmenter):
    report = ask(ChatRagBias(lm=lm, segmenter=segmenter), TAGGED)
    assert (report["source"], report["n_found"], report["method_ran"]) == ("segmenter", 3, "pine")


def test_without_one_the_same_prompt_runs_plain(lm):
    assert ask(ChatRagBias(lm=lm, on_missing="ignore"), TAGGED)["method_ran"] == "none"


def test_a_senseless_segmenter_is_refused_by_the_constructor(lm):
    with pytest.raises(SegmenterError, match="segmenter=3"):
        ChatRagBias(lm=lm, segmenter=3)


def test_numbers_warn_once_per_line_of_the_user(llama, byte_tokenizer):
    llm = ChatRagBias(model=llama, tokenizer=byte_tokenizer)
    places = [
        lambda: llm.invoke([HumanMessage(numbered([0, 1, 2]))], max_tokens=2).response_metadata["ragbias"],
        lambda: list(llm.stream(numbered([0, 1, 2]), max_tokens=2))[-1].response_metadata["ragbias"],
        lambda: (llm | (lambda message: message.response_metadata["ragbias"])).invoke(numbered([0, 1, 2])),
    ]
    assert_warned_at_their_lines(places)


def test_numbers_warn_once_in_a_thread_without_user_code(llama, byte_tokenizer):
    llm = ChatRagBias(model=llama, tokenizer=byte_tokenizer)
    assert_warned_once_in_threads(llm.invoke, numbered([0, 1, 2]), max_tokens=2)


@pytest.mark.parametrize(("strip", "answers"), [(True, 1), (False, 3)])
def test_only_stripped_numbers_give_one_answer_for_every_order(llama, byte_tokenizer, strip, answers):
    llm = ChatRagBias(model=llama, tokenizer=byte_tokenizer, strip_numbering=strip, on_missing="ignore")
    orders = ([0, 1, 2], [2, 0, 1], [1, 2, 0])
    assert len({llm.invoke(numbered(order), max_tokens=6).content for order in orders}) == answers


def test_a_cache_distinguishes_segmenters(lm):
    keys = {ChatRagBias(lm=lm, segmenter=each)._get_llm_string() for each in (None, "---", "===", re.compile("---"))}
    assert len(keys) == 4


def test_a_backend_reaches_the_report_and_the_key_of_caches(llama, byte_tokenizer):
    llm = ChatRagBias(model=llama, tokenizer=byte_tokenizer, backend="torch")
    assert ask(llm, numbered([0, 1, 2]))["backend"] == "torch"
    assert llm._get_llm_string() != ChatRagBias(model=llama, tokenizer=byte_tokenizer)._get_llm_string()
    with pytest.raises(ArgumentError, match="backend=.* contradicts the existing model"):
        ChatRagBias(lm=llm.lm, backend="auto")
