"""Documents found only by numbered headers, and text that only resembles such headers."""

import re
from itertools import permutations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ragbias import Prompt
from ragbias.boundaries import Registry, locate
from ragbias.generation.preparing import split_located
from support.prompts import found_texts

A = "The Falcon Station opened in 1901. It has four platforms."
B = "The Heron Bridge is 300 metres long, see [2] and [3]."
C = "The Otter Library lends twelve thousand books."
STYLES = {
    "titled": "Document [{n}](Title: About {n} (a thing)) ",
    "square": "[{n}] ",
    "square with its own line": "Passage [{n}]:\n",
    "colon": "Document {n}: ",
    "source": "Source {n}:\n",
    "markdown": "### Document {n}\n",
    "bold": "**Chunk {n}:**\n",
    "capitals": "DOCUMENT #{n}: ",
}
ENDS = ["\n\nQuestion: who?\nAnswer:", "\n------\nQuery: who?", "\n\nWho is it?<|end|>\n<|assistant|>\n", ""]


def headed(texts, style="[{n}] ", separator="\n\n", prefix="Read.\n\n", suffix=ENDS[0], first=1, tag="documents"):
    blocks = [style.format(n=number) + text for number, text in enumerate(texts, first)]
    return f"{prefix}<{tag}>\n{separator.join(blocks)}\n</{tag}>{suffix}"


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("style", STYLES.values(), ids=STYLES.keys())
@pytest.mark.parametrize("separator", ["\n\n", "\n"])
def test_documents_below_numbered_headers_are_found(style, end, separator):
    text = headed([A, B, C], style, separator, suffix=end)
    found = locate(text)
    assert found_texts(text) == [A, B, C]
    assert (found.source, found.n_expected, found.n_found, found.reason) == ("headers", 3, 3, "")


@pytest.mark.parametrize("style", STYLES.values(), ids=STYLES.keys())
def test_spans_with_headers_give_the_same_prompt(style):
    text = headed([A, B, C], style, "\n")
    bare = locate(text).spans
    lengths = [len(style.format(n=number)) for number in (1, 2, 3)]
    whole = [(begin - length, end) for length, (begin, end) in zip(lengths, bare, strict=True)]
    assert Prompt.from_text(text, bare) == Prompt.from_text(text, whole)
    assert Prompt.from_text(text, bare).text == text


@given(order=st.permutations(range(3)), style=st.sampled_from(list(STYLES.values())), first=st.sampled_from([0, 1]))
def test_numbered_documents_in_any_order_are_found(order, style, first):
    texts = [[A, B, C][index] for index in order]
    assert found_texts(headed(texts, style, first=first)) == texts


@pytest.mark.parametrize("tag", ["documents", "context", "Sources", "search_results"])
@pytest.mark.parametrize("space", ["", "\n", "\n\n"])
def test_an_element_shows_where_the_last_document_ends(tag, space):
    text = f"Read.<{tag}>{space}[0] {A}\n\n[1] {B}{space}</{tag}>\nWho?"
    assert found_texts(text) == [A, B]


@pytest.mark.parametrize(
    "text",
    [
        headed([A, B]).replace("<documents>", "").replace("</documents>", ""),
        headed([A, B]).replace("</documents>", ""),
        headed([A, B], tag="notes"),
        headed([A, f"{B}</documents>"]),
        headed([A, B]).replace("<documents>", "<documents>\nThese:"),
        headed([A, B]).replace("\n</documents>", "\n\n</documents>"),
        headed([A, f"{B}\n\nUse only these."]),
        headed([A, B], separator="\nNext passage:\n"),
        headed([A, B, C], separator="\n---\n"),
        headed([f"{A}\nNext, 2:", f"{B}\nNext, 3:", C], separator="\n"),
        headed([A, B, C], separator=" |\n"),
        f"<context>(0) {A}\n\n[1] {B}\n\n[2] {C}\n</context>",
        f"<context>- [0] {A}\n\n[1] {B}\n\n[2] {C}\n</context>",
    ],
)
def test_where_documents_begin_and_end_is_not_guessed(text):
    found = locate(text)
    assert (found.spans, found.source) == ((), "none")
    assert "lines <documents> and </documents> enclose the documents and nothing else; pass documents=" in found.reason


def test_a_separator_is_not_taken_for_the_end_of_documents():
    paragraphs = ["First line.\n\nSecond paragraph.", "One.\nTwo.", f"{A}\n{B}"]
    assert found_texts(headed(paragraphs)) == paragraphs


LINES = st.sampled_from(["red rose", "- a gate", "# Owls", "Question: who?", "Answer:", "---", "", "a. ", " b"])
TEMPLATES = {
    "before": ["", "Read.\n\n", "Context:\n", "<docs>\n", "<docs>", "<|user|>\n", "Who?\n<context>\n"],
    "header": ["[{n}] ", "Document [{n}](Title: x) ", "Source {n}:\n", "({n}) ", "- [{n}] ", "Document {n}: "],
    "separator": ["\n\n", "\n", "\n---\n", " ", "\nNext:\n", ";\n"],
    "after": ["", "\n</docs>\nWho?", "</docs>", "\n\nQuestion: who?\nAnswer:", "\n---\nWho?", " Who?", "\n</context>"],
}


@given(
    st.lists(st.lists(LINES, min_size=1, max_size=4).map("\n".join).filter(str.strip), min_size=2, max_size=4),
    st.fixed_dictionaries({name: st.sampled_from(choices) for name, choices in TEMPLATES.items()}),
    st.sampled_from([0, 1]),
)
@settings(max_examples=500, deadline=None)
@example(["a", "b\n\nQuestion: who?"], {name: choices[0] for name, choices in TEMPLATES.items()}, 1)
def test_documents_are_found_exactly_or_refused_with_a_reason(texts, template, first):
    whole = set()
    for order in permutations(texts):
        blocks = [template["header"].format(n=n) + text for n, text in enumerate(order, first)]
        text = template["before"] + template["separator"].join(blocks) + template["after"]
        found = locate(text)
        assert found.reason or [text[slice(*span)] for span in found.spans] == [each.strip() for each in order]
        split = split_located(text, found, strip_numbering=True)
        parts, found, reason = split.parts, split.boundaries, split.why_unsplit
        if parts.documents and found.numbering == "stripped" and not (found.reason or reason):
            whole.add((parts.prefix, tuple(sorted(parts.documents)), parts.suffix))
    assert len(whole) < 2


def test_one_header_alone_is_none():
    assert locate(headed([A])).source == "none"


@pytest.mark.parametrize("numbers", [(1, 3), (2, 1), (2, 3), (1, 1), (1, 2, 2), (1, 2, 4)])
def test_numbers_must_run_on_from_the_first(numbers):
    text = "Read.\n\n" + "\n\n".join(f"[{number}] {A}" for number in numbers) + "\n\nQuestion: who?"
    assert locate(text).source == "none"


def test_headers_in_different_messages_are_not_joined():
    text = f"<|user|>\n[1] {A}\n\nWho?<|end|>\n<|user|>\n[2] {B}\n\nWho?<|end|>"
    assert locate(text).source == "none"


def test_of_several_messages_the_last_one_counts():
    first = headed([A, B, C], prefix="<|user|>\n", suffix="\n\nWho?<|end|>\n")
    second = headed([B, C], prefix="<|user|>\n", suffix="\n\nWho?<|end|>\n")
    assert found_texts(first + second) == [B, C]
    assert locate(first + second).spans[0][0] > len(first)
    assert "unclear" in locate(first + second.replace("</documents>", "")).reason


@pytest.mark.parametrize("header", ["Document [{n}](Title: x) ", "Source {n}:\n", "Doc ({n}): "])
def test_a_last_header_within_a_line_is_refused(header):
    one, two, three = (header.format(n=number) for number in (1, 2, 3))
    text = f"<documents>\n{one}{A}\n{two}{B} {three}{C}\n</documents>\nQuery: q"
    assert "one of them is within a line; pass documents=" in locate(text).reason
    assert found_texts(text.replace(f" {three}", "")) == [A, f"{B}{C}"]


def test_a_worked_example_beside_the_context_is_refused():
    example = (
        "For example:\nSource 1:\nThe sky is red.\nSource 2:\nWater is wet.\nQuery: When?\nAnswer: At night [1].\n"
    )
    text = headed(
        [A, B, C], "Source {n}:\n", prefix=example + "Now it's your turn.\n------\n", suffix="\n------\nQuery: q"
    )
    found = locate(text)
    assert (found.spans, found.source) == ((), "none")
    assert "their numbers are not consecutive; pass documents= or segmenter=" in found.reason
    assert found_texts(text, documents=[A, B, C]) == [A, B, C]


@pytest.mark.parametrize(
    "text",
    [
        "As shown in [1] and [2], birds fly.\nSee also [2] for more.\n\nQuestion: do they?",
        "Birds fly, as in\n[1], and swim, as in\n[2].\n\nQuestion: do they?",
        "```python\nx = [\n[1] ,\n[2] ,\n]\n```\nWhat does it print?",
        "~~~\n[1] a list\n[2] another\n~~~\n\nQuestion: what?",
        "[1](http://one) first\n[2](http://two) second\n\nQuestion: which?",
        "[1]: http://one\n[2]: http://two\n\nQuestion: which?",
        "a = b[1] + c[2]\n[1][2]\n[2][3]\n\nQuestion: which?",
        "A long paper about birds.\n\nReferences\n[1] Smith, 1999.\n[2] Jones, 2001.\n\nQuestion: who?",
        "1. Do this.\n2. Do that.\n\nQuestion: who?",
        "Document 1 says so.\nDocument 2 does not.\n\nQuestion: who?",
        "Step 1: begin.\nStep 2: go on.\n\nQuestion: who?",
        "[1] \n[2] \n\nQuestion: who?",
    ],
)
def test_brackets_in_prose_code_and_citations_are_no_headers(text):
    found = locate(text)
    assert (found.spans, found.source) == ((), "none")


def test_a_document_with_a_number_of_its_own_is_found_whole():
    cites = "As the next one [2] says, and [3] too.\nSee [2]."
    assert found_texts(headed([cites, A, B])) == [cites, A, B]
    text = headed([A, f"{B}\n[2] is what this line begins with.", C])
    assert locate(text).source == "none"  # which of both is the header cannot be told
    inner = f"{A}\n[1] Smith\n[2] Jones"
    assert found_texts(headed([inner, B, C], "Document {n}:\n")) == [inner, B, C]


def test_lists_inside_documents_do_not_win():
    lists = "\n".join(f"[{number}] Reference {number}" for number in range(1, 9))
    text = headed([A, f"{B}\n{lists}", C], "Document {n}:\n")
    assert found_texts(text) == [A, f"{B}\n{lists}", C]
    both = headed([headed([A, B], "Source {n}: ", "\n", "", ""), C], "Document {n}:\n")
    assert "several forms" in locate(both).reason


def test_documents_at_the_end_of_a_message_omit_its_border():
    text = headed([A, B], prefix="<|tool|>\n", suffix="<|end|>\n<|assistant|>\n")
    assert found_texts(text) == [A, B]


def test_code_blocks_belong_to_documents():
    halves = [f"{A}\n```\nx", f"{B}\n```\ny", C]
    assert found_texts(headed(halves)) == halves
    numbered = headed([f"{A}\n```\n[1] x\n[2] y\n```", B, C])
    assert "numbers are not consecutive; pass documents= or segmenter=" in locate(numbered).reason
    assert locate(numbered, segmenter=re.compile(r"\[\d\] (The .*?)\n\n", re.S)).n_found == 3


def test_named_documents_win_over_headers():
    text = headed([A, B, C])
    assert locate(text, run=[[A, B, C]]).source == "run"
    missing = locate(text, documents=["not there"])
    assert (missing.source, missing.n_found) == ("headers", 3)
    assert "none of the 1 documents given explicitly" in missing.reason
    assert locate(text, documents=[]).spans == ()


@given(st.text(alphabet="[]12 \n:aD", max_size=60))
def test_spans_are_ascending_apart_and_not_empty(noise):
    text = f"[1] {noise}\n[2] {A}{noise}\n\nQuestion: {noise}"
    edges = [edge for span in locate(text).spans for edge in span]
    assert edges == sorted(set(edges))


@pytest.mark.parametrize("separator", ["\n\n", "\n", "\n---\n", "\n\n===\n\n"])
@pytest.mark.parametrize("header", ["[{n}] ", "Document [{n}](Title: {title}) ", "Source {n}:\n"])
@pytest.mark.parametrize("texts", [["red", "blue", "a b"], ["Zebra", "A wall is blue.", "owl"]], ids=["short", "mixed"])
@pytest.mark.parametrize("known", [True, False])
def test_short_documents_below_headers_split_alike_in_any_order(texts, header, separator, known):
    clean = set()
    for order in permutations(range(3)):
        blocks = [header.format(n=n, title="ABC"[i]) + texts[i] for n, i in enumerate(order, 1)]
        text = f"Use it.\n\nContext:\n{separator.join(blocks)}\n\nQuestion: which?"
        registry = Registry()
        registry.add(texts)
        found = locate(text, registry=registry if known else None)
        split = split_located(text, found, strip_numbering=True)
        parts, found, reason = split.parts, split.boundaries, split.why_unsplit
        if found.numbering == "stripped" and not found.reason and not reason:
            clean.add((parts.prefix, tuple(sorted(parts.documents)), parts.suffix))
    assert len(clean) < 2
