"""Documents found by a user's separator, pattern or function."""

import itertools
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragbias.boundaries import Registry, locate
from ragbias.errors import RagBiasError, SegmenterError
from ragbias.generation.preparing import split_located
from support.prompts import found_texts, known_to

A, B, C = "The falcon is red.", "An owl\n\nsleeps at noon.", "Two herons stand."
TEXT = f"Context:\n---\n{A}\n---\n{B}\n---\n{C}\n---\nQuestion: who?"
TAGGED = f"Read.\n<doc>{A}</doc>\n<doc>{B}</doc>\n<doc>{C}</doc>\nWho?"


def test_a_string_is_a_separator_taken_literally():
    assert found_texts(TEXT, segmenter="\n---\n") == [A, B, C]
    assert found_texts("q .* a1 .* b1 .* who", segmenter=" .* ") == ["a1", "b1"]
    found = locate(TEXT, segmenter="\n---\n")
    assert (found.source, found.n_expected, found.n_found, found.reason) == ("segmenter", 3, 3, "")


def test_what_is_outside_of_the_separators_is_no_document():
    assert found_texts(f"Context: {A}\n---\n{B}\n---\n{C}\n\nQuestion: who?", segmenter="\n---\n") == [B]


def test_separators_of_two_messages_do_not_enclose_a_document():
    text = f"<|system|>a\n---\n<|end|><|user|>\n---\n{A}\n---\n{B}\n---\nWho?<|end|>"
    assert found_texts(text, segmenter="\n---\n") == [A, B]


@pytest.mark.parametrize(
    "pattern", [r"(?s)<doc>(.*?)</doc>", r"(?s)(?<=<doc>).*?(?=</doc>)", r"(?s)<doc>(.*?)(</doc>)"]
)
def test_a_pattern_matches_a_document_or_captures_it_first(pattern):
    assert found_texts(TAGGED, segmenter=re.compile(pattern)) == [A, B, C]


def test_a_match_without_its_group_names_no_document():
    assert found_texts(TAGGED, segmenter=re.compile(r"(?s)Read|<doc>(.*?)</doc>")) == [A, B, C]


@pytest.mark.parametrize("kind", [tuple, list])
def test_a_function_gives_spans_or_texts(kind):
    spans = [kind((TAGGED.index(each), TAGGED.index(each) + len(each))) for each in (A, B, C)]
    assert found_texts(TAGGED, segmenter=lambda text: spans) == [A, B, C]
    assert found_texts(TAGGED, segmenter=lambda text: iter([C, A, B])) == [A, B, C]


def test_a_text_of_the_function_that_does_not_occur_is_counted():
    found = locate(TAGGED, segmenter=lambda text: [A, "nowhere", C])
    assert (found.n_expected, found.n_found) == (3, 2)
    assert "1 of the 3 documents given by the segmenter" in found.reason
    assert "nowhere" not in found.reason


def test_nothing_found_goes_on_to_the_headers():
    text = f"<docs>[1] {A}\n[2] {C}</docs>\n\nQuestion: who?"
    found = locate(text, segmenter="\n===\n")
    assert (found.source, found.n_found) == ("headers", 2)
    assert "the segmenter found no documents" in found.reason
    assert locate(TAGGED, segmenter=lambda text: []).source == "none"


def test_what_was_retrieved_comes_first():
    registry = Registry()
    registry.add([A, B, C])
    assert locate(TEXT, registry=registry, segmenter="\n---\n").source == "registry"
    assert locate(TEXT, run=[[A, B]], segmenter="\n---\n").source == "run"


def test_documents_of_another_message_are_not_expected_here():
    text = f"<doc>{A}</doc><|end|><doc>{B}</doc><doc>{C}</doc>"
    found = locate(text, segmenter=re.compile(r"(?s)<doc>(.*?)</doc>"))
    assert (found.n_expected, found.n_found) == (2, 2)
    assert "1 documents are in another message" in found.reason


@pytest.mark.parametrize(
    ("spans", "message"),
    [
        ([(0, 5), (3, 9)], r"span \(3, 9\) .* the previous span, \(0, 5\)"),
        ([(6, 9), (0, 5)], r"span \(0, 5\) .* the previous span, \(6, 9\)"),
        ([(0, 5), (7, 9999)], r"span \(7, 9999\) .* outside"),
        ([(-3, 5)], r"span \(-3, 5\) .* outside"),
        ([(5, 3)], r"span \(5, 3\) .* outside"),
        ([(4, 4)], r"span \(4, 4\) .* no text"),
        ([(5, 6)], r"span \(5, 6\) .* no text"),
        ([(0, 5), "text"], r"returned a str"),
        ([3], r"returned a int"),
        ([(0, 5.0)], r"segmenter=<lambda> returned the span \(0, 5.0\)"),
        ([(0, 1, 2)], r"returned the span \(0, 1, 2\)"),
        ([(0, True)], r"returned the span \(0, True\)"),
        ([(0, "and that")], r"returned a tuple"),
    ],
)
def test_spans_of_no_sense_are_an_error_that_names_them(spans, message):
    with pytest.raises(SegmenterError, match=message):
        locate("Read. \nthis and that", segmenter=lambda text: spans)


def test_a_pattern_that_matches_nothing_visible_is_an_error():
    with pytest.raises(SegmenterError, match=r"contains no text"):
        locate("a\nb", segmenter=re.compile(r"[^\n]*"))


def test_a_failing_function_raises_through_every_framework():
    def fails(text):
        raise ValueError(text)

    with pytest.raises(SegmenterError, match="fails failed with ValueError") as raised:
        locate("a secret", segmenter=fails)
    assert not isinstance(raised.value, (ValueError, TypeError))
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize("given", [None, "one text"])
def test_a_function_that_returns_no_list_is_an_error(given):
    with pytest.raises(
        SegmenterError, match=r"segmenter=<lambda> returned (None|one string); expected a list"
    ) as raised:
        locate("a", segmenter=lambda text: given)
    assert "one text" not in str(raised.value)


@pytest.mark.parametrize("kind", [np.int64, np.int32, lambda edge: np.array(edge)])
def test_whole_numbers_of_numpy_are_numbers(kind):
    found = locate("a b c", segmenter=lambda text: [(kind(0), kind(1)), (kind(2), kind(3))])
    assert found.spans == ((0, 1), (2, 3))
    assert all(type(edge) is int for span in found.spans for edge in span)
    assert locate("a b c", segmenter=lambda text: np.array([[0, 1], [2, 3]])).spans == ((0, 1), (2, 3))


@pytest.mark.parametrize("segmenter", [3, "", "  ", [r"\n"], re.compile(rb"x")])
def test_an_invalid_segmenter_is_refused_even_if_not_needed(segmenter):
    with pytest.raises(RagBiasError, match="segmenter="):
        locate(TEXT, run=[[A]], segmenter=segmenter)


@given(st.lists(st.tuples(st.integers(-2, 14), st.integers(-2, 14)), max_size=4))
def test_accepted_spans_are_exactly_the_sensible_ones(spans):
    text = "abc def ghi"
    sensible = all(0 <= b < e <= len(text) and text[b:e].strip() for b, e in spans)
    sensible = sensible and all(left[1] <= right[0] for left, right in itertools.pairwise(spans))
    try:
        found = locate(text, segmenter=lambda text: spans)
    except SegmenterError:
        assert not sensible
    else:
        assert sensible
        assert list(found.spans) == spans


LINES = [f"{A} (of Monday)", f"{B} then", f"{C} besides"]  # whose the words between are is unknown
NOTED = "Notes:\n" + "\n".join(LINES) + "\n\nWho?"


@pytest.mark.parametrize("source", ["documents", "artifacts", "run"])
def test_a_segmenter_that_misses_documents_is_noticed(source):
    known = known_to(source, [A, B, C])
    assert "is ambiguous" in split_located(NOTED, locate(NOTED, **known)).why_unsplit
    spans = [(NOTED.index(each), NOTED.index(each) + len(each)) for each in LINES]
    found = locate(NOTED, **known, segmenter=lambda text: spans[:2])
    assert (found.source, found.n_expected, found.n_found) == ("segmenter", 3, 2)
    assert "the segmenter found 2 of 3" in found.reason
    everything = locate(NOTED, **known, segmenter=lambda text: spans)
    assert (everything.n_expected, everything.n_found) == (3, 3)
