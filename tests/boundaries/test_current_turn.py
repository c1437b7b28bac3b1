"""The current turn's documents are the last occurrence of the latest retrieval, not quotes or earlier turns."""

import itertools

import pytest

from ragbias.boundaries import locate
from ragbias.boundaries.sources import KnownText
from support.prompts import BRIDGE, INVOICE_17, INVOICE_99, LIBRARY, STATION, TERMS, known_to, prompt

ASK, SAY, TOOL, END = "<|im_start|>user\n", "<|im_start|>assistant\n", "<|im_start|>tool\n", "<|im_end|>\n"
SOURCES = ["documents", "artifacts", "run", "registry"]


def joined(*documents):
    return "\n\n".join(documents)


def found_in(text, found):
    return [text[begin:end] for begin, end in found.spans]


def test_the_latest_of_two_tool_messages_is_treated():
    for border in (f"{END}{TOOL}", "</tool_response>\n<tool_response>\n"):
        text = f"{ASK}Which?{END}{SAY}Let me look.{END}{TOOL}<tool_response>\n{joined(STATION, BRIDGE)}\n{border}"
        text += f"{joined(LIBRARY, STATION)}\n</tool_response>{END}{SAY}"
        found = locate(text, artifacts=[[STATION, LIBRARY], [BRIDGE, STATION]])
        assert found.spans[0][0] > text.index(border)
        assert (found_in(text, found), found.n_left_plain, found.reason) == ([LIBRARY, STATION], 2, "")


def test_a_retrieval_outside_the_prompt_leaves_the_earlier_one():
    text = prompt(STATION, BRIDGE)
    found = locate(text, run=[[LIBRARY, TERMS], [BRIDGE, STATION]])
    assert (found_in(text, found), found.n_expected, found.reason) == ([STATION, BRIDGE], 2, "")


@pytest.mark.parametrize("order", [*itertools.permutations([STATION, BRIDGE, LIBRARY, TERMS])])
def test_retrievals_that_share_one_context_belong_together(order):
    text = prompt(*order)
    for run in ([[STATION, BRIDGE], [LIBRARY, TERMS]], [[LIBRARY], [TERMS, STATION], [BRIDGE, STATION, INVOICE_17]]):
        found = locate(text, run=run)
        assert found_in(text, found) == list(order)
        assert found.n_left_plain == 0


@pytest.mark.parametrize("order", [*itertools.permutations(range(3))])
def test_retrievals_with_titled_documents_belong_together(order):
    known = [KnownText.of(each, {"title": f"On {each[4:10]}"}) for each in (STATION, BRIDGE, LIBRARY)]
    text = f"Context:\n{joined(*(f'{known[i].fields[2][1]}: {known[i]}' for i in order))}\n\nQuestion: which?"
    found = locate(text, run=[known[:1], known[1:]])
    assert found.n_found == 3


def test_a_graph_that_grades_each_document_alone_and_keeps_some():
    run = [[STATION], [LIBRARY], [STATION, BRIDGE, LIBRARY, TERMS]]
    graded = locate(f"{ASK}Is this relevant?\n\n{LIBRARY}\n\nAnswer yes or no.{END}{SAY}", run=run)
    assert graded.n_found == 1
    text = f"{ASK}Context: {joined(LIBRARY, STATION)}\n\nWhich?{END}{SAY}"
    assert found_in(text, locate(text, run=run)) == [LIBRARY, STATION]
    assert found_in(text, locate(text, run=run[2:])) == [LIBRARY, STATION]


@pytest.mark.parametrize("source", SOURCES)
def test_system_context_wins_over_turns_that_repeat_it(source):
    text = f"<|im_start|>system\nContext: {joined(STATION, BRIDGE, LIBRARY)}{END}{ASK}Which?{END}{SAY}{BRIDGE}{END}"
    asking = f"{text}{ASK}Why?{END}{SAY}"
    found = locate(asking, **known_to(source, [LIBRARY, STATION, BRIDGE]))
    assert (found_in(asking, found), found.reason) == ([STATION, BRIDGE, LIBRARY], "")


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("question", [LIBRARY, f"Is it true that {STATION} and that {LIBRARY}?"])
def test_a_later_turn_that_quotes_documents_needs_a_segmenter(source, question):
    text = f"<|im_start|>system\nContext: {joined(STATION, BRIDGE, LIBRARY)}{END}{ASK}{question}{END}{SAY}"
    found = locate(text, **known_to(source, [LIBRARY, STATION, BRIDGE]))
    assert (found.spans, "pass a segmenter=" in found.reason) == ((), True)
    spans = [(text.index(each), text.index(each) + len(each)) for each in (STATION, BRIDGE, LIBRARY)]
    found = locate(text, **known_to(source, [LIBRARY, STATION, BRIDGE]), segmenter=lambda text: spans)
    assert (list(found.spans), found.reason) == (spans, "")


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("question", ["Is it {} or {}?", "Which of these holds?\n{}\n{}", 'Compare "{}" with "{}".'])
def test_a_question_quoting_all_documents_needs_a_segmenter(source, question):
    for first, second in itertools.permutations([STATION, LIBRARY]):
        text = prompt(first, second, question=question.format(second, first))
        found = locate(text, **known_to(source, [STATION, LIBRARY]))
        assert (found.spans, found.n_left_plain, "pass a segmenter=" in found.reason) == ((), 4, True)
        spans = [(text.index(each), text.index(each) + len(each)) for each in (first, second)]
        found = locate(text, **known_to(source, [STATION, LIBRARY]), segmenter=lambda text: spans)  # noqa: B023
        assert (list(found.spans), found.n_left_plain, found.reason) == (spans, 2, "")


TWICE = f"Read this.\n\n{joined(STATION, BRIDGE)}\n\nWhich is green, of these two?\n\n{joined(STATION, BRIDGE)}\n"


@pytest.mark.parametrize("source", SOURCES)
def test_documents_that_occur_twice_without_a_sign_are_refused(source):
    found = locate(TWICE, **known_to(source, [BRIDGE, STATION]))
    assert (found.spans, found.n_left_plain) == ((), 4)
    assert "cannot be distinguished" in found.reason
    assert STATION not in found.reason


def test_a_segmenter_runs_where_the_turn_is_ambiguous():
    begins = [TWICE.rindex(each) for each in (STATION, BRIDGE)]
    spans = [(begin, begin + len(each)) for begin, each in zip(begins, (STATION, BRIDGE), strict=True)]
    found = locate(TWICE, run=[[STATION, BRIDGE]], segmenter=lambda text: spans)
    assert (found.source, list(found.spans), found.n_left_plain) == ("segmenter", spans, 2)


def test_a_document_in_an_old_turn_does_not_hide_this_turn():
    text = f"{ASK}Context: {joined(STATION, TERMS)}\n\nWhich?{END}{SAY}So.{END}"
    text += f"{ASK}Context: {joined(BRIDGE, LIBRARY)}\n\nWhy?{END}{SAY}"
    left_out = [STATION, INVOICE_17, INVOICE_99]  # of which only an old turn holds any
    found = locate(text, run=[left_out, [LIBRARY, BRIDGE], [STATION, TERMS]])
    assert found_in(text, found) == [BRIDGE, LIBRARY]


def test_questions_and_answers_around_documents_are_no_turns():
    text = "Context:\n\n" + joined(*(f"Question: who?\nAnswer: {each}" for each in (STATION, BRIDGE, LIBRARY)))
    assert locate(text + "\n\nWhich?", run=[[STATION, BRIDGE, LIBRARY]]).n_found == 3
    for label in ("User", "Human"):
        text = "Context:\n\n" + joined(*(f"{label}: {each}" for each in (STATION, BRIDGE, LIBRARY)))
        assert locate(text + "\n\nWhich?", run=[[STATION, BRIDGE, LIBRARY]]).n_found == 3
