"""Numbers in headers are detected and stripped, and other numbers are kept."""

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragbias import Prompt
from ragbias.boundaries import locate
from ragbias.boundaries.numbering import find_numbering
from ragbias.boundaries.sources import KnownText
from ragbias.generation.preparing import split_located, split_prompt

TEXTS = ["The falcon is red, see [2].", "2 owls sleep at 12 noon.", "Document 3 is about herons."]
STYLES = {
    "Document [{n}](Title: No. 5) ": "Document (Title: No. 5) ",
    "Document [{n}] ": "Document ",
    "[{n}] ": "",
    "({n}) ": "",
    "Source {n}:\n": "Source:\n",
    "### Chunk {n}\n": "### Chunk\n",
    "**Passage {n}:**\n": "**Passage:**\n",
    '<doc id="{n}">\n': "<doc>\n",
    "Document #{n}: ": "Document: ",
    "{n}. ": "",
}


def numbered(style, texts=TEXTS, numbers=(1, 2, 3, 4, 5), separator="\n\n"):
    text, bare, whole = "Read these 4:\n\n", [], []
    for index, (number, body) in enumerate(zip(numbers, texts, strict=False)):
        text += separator if index else ""
        begin = len(text)
        text += style.format(n=number)
        bare.append((len(text), len(text) + len(body)))
        whole.append((begin, len(text) + len(body)))
        text += body
    return text + "\n\nQuestion: which of [1]?", bare, whole


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("style", STYLES)
def test_the_number_is_taken_out_of_each_header(style, count):
    text, bare, _ = numbered(style, TEXTS[:count])
    expected, expected_spans, _ = numbered(STYLES[style], TEXTS[:count])
    assert find_numbering(text, bare).reveal_order
    assert find_numbering(text, bare).strip_from(text, bare) == (expected, expected_spans)
    assert not find_numbering(expected, expected_spans).reveal_order


@pytest.mark.parametrize("style", [style for style in STYLES if style[0] not in "(<{"])
def test_headers_inside_the_spans_are_stripped_too(style):
    text, _, whole = numbered(style)
    expected, _, expected_spans = numbered(STYLES[style])
    assert find_numbering(text, whole).strip_from(text, whole) == (expected, expected_spans)


@pytest.mark.parametrize("style", STYLES)
@given(order=st.permutations(range(3)))
def test_a_stripped_prompt_does_not_depend_on_the_order(style, order):
    plain = Prompt.from_text(*numbered(style)[:2], strip_numbering=True)
    again = numbered(style, [TEXTS[index] for index in order])
    moved = Prompt.from_text(again[0], again[1], strip_numbering=True)
    assert moved == plain.reordered(order)
    carried = numbered(style, [TEXTS[index] for index in order], [index + 1 for index in order])
    assert Prompt.from_text(carried[0], carried[1], strip_numbering=True) == plain.reordered(order)


@pytest.mark.parametrize("style", STYLES)
def test_without_it_the_prompt_keeps_its_numbers(style):
    text, bare, _ = numbered(style)
    assert Prompt.from_text(text, bare).text == text


@pytest.mark.parametrize(
    ("style", "numbers"),
    [
        ("Title: Apollo {n}\n", [11, 13, 12]),
        ("Document [{n}] ", [1, 1, 1]),
        ("Document [{n}] ", [4711, 17, 99]),
        ("Date: {n}-01-01\n", [2001, 2001, 2001]),
        ("v{n} ", [3, 1, 2]),
        ("Score 0.{n}: ", [9, 7, 6]),
        ("", [1, 2, 3]),
    ],
)
def test_other_numbers_are_left(style, numbers):
    text, bare, _ = numbered(style, numbers=numbers)
    assert not find_numbering(text, bare).reveal_order
    assert find_numbering(text, bare).strip_from(text, bare) == (text, bare)


@pytest.mark.parametrize(
    ("style", "numbers"), [("Title: Apollo {n}\n", [11, 12, 13]), ("v{n} ", [1, 2, 3]), ("Score 0.{n}: ", [1, 2, 3])]
)
def test_numbers_that_may_be_the_documents_are_seen_and_left(style, numbers):
    text, bare, _ = numbered(style, numbers=numbers)
    assert find_numbering(text, bare).reveal_order
    assert find_numbering(text, bare).strip_from(text, bare) == (text, bare)


@pytest.mark.parametrize("numbers", [[1, 3, 5], [5, 3, 1], [30, 20, 10], [0, -1, -2], [-1, 0, 1], [17, 20], [9, 2]])
def test_numbers_with_another_start_or_step_are_seen_and_left(numbers):
    text, bare, _ = numbered("Document [{n}] ", TEXTS[: len(numbers)], numbers)
    assert find_numbering(text, bare).reveal_order
    assert find_numbering(text, bare).strip_from(text, bare) == (text, bare)
    found = split_located(text, locate(text, documents=TEXTS[: len(numbers)]), strip_numbering=True).boundaries
    assert (found.numbering, "remove them from the template" in found.reason) == ("present", True)


def test_one_document_or_none_has_no_numbering():
    text, bare, _ = numbered("[{n}] ")
    assert not find_numbering(text, bare[:1]).reveal_order
    assert not find_numbering(text, []).reveal_order
    assert Prompt.from_text(text, [], strip_numbering=True).text == text


def test_numbers_are_stripped_beside_the_documents_footers():
    text = "Context:\n[1] a b\n(from x)\n\n[2] c d\n(from y)\n\nWho?"
    spans = [(text.index(body), text.index(body) + 3) for body in ("a b", "c d")]
    assert find_numbering(text, spans).strip_from(text, spans)[0] == "Context:\na b\n(from x)\n\nc d\n(from y)\n\nWho?"


@given(st.lists(st.text(alphabet="ab 12[]:\n", min_size=1, max_size=12).filter(str.strip), min_size=2, max_size=5))
def test_the_documents_are_never_changed(texts):
    text, bare, _ = numbered("Document [{n}]: ", texts)
    remaining, spans = find_numbering(text, bare).strip_from(text, bare)
    assert [remaining[begin:end] for begin, end in spans] == texts


def test_documents_below_headers_can_be_stripped():
    text = (
        numbered("Source {n}:\n")[0]
        .replace("\n\nSource 1", "<docs>Source 1")
        .replace("\n\nQuestion", "</docs>Question")
    )
    spans = locate(text).spans
    assert find_numbering(text, spans).reveal_order
    prompt = Prompt.from_text(text, spans, strip_numbering=True)
    assert prompt.documents == tuple(f"\n\nSource:\n{body}" for body in TEXTS)


@pytest.mark.parametrize("counts", ["ABC", "abc", ["I", "II", "III"], ["One", "Two", "Three"]])
def test_letters_and_words_that_count_are_reported_and_left(counts):
    text, bare, _ = numbered("Source {n}:\n", numbers=counts)
    assert find_numbering(text, bare).reveal_order
    assert find_numbering(text, bare).strip_from(text, bare) == (text, bare)
    split = split_located(text, locate(text, documents=TEXTS), strip_numbering=True)
    parts, after, reason = split.parts, split.boundaries, split.why_unsplit
    assert (parts.text, after.numbering, reason) == (text, "present", "")
    assert "letters or words that follow the order of the documents remain" in after.reason


def paged(pages, label="Page", count=None):
    """Return a prompt with a page number above each text, and documents with that metadata."""
    blocks = [
        f"{label}: {page if count is None else count(index)}\n{body}"
        for index, (page, body) in enumerate(zip(pages, TEXTS, strict=False))
    ]
    documents = [KnownText.of(body, {"page": page}) for page, body in zip(pages, TEXTS, strict=False)]
    return "Context:\n" + "\n\n".join(blocks) + "\n\nQuestion: which?", documents


@pytest.mark.parametrize(
    "pages", [(3, 4), (4, 3), (17, 9), (5, 6, 7), (7, 6, 5), (9, 17, 1), (2, 1, 3), (0, 1), (1, 2, 3)]
)
def test_known_metadata_are_no_numbering(pages):
    text, documents = paged(pages)
    found = locate(text, run=[documents])
    for strip in (False, True):
        split = split_located(text, found, strip)
        parts, after, reason = split.parts, split.boundaries, split.why_unsplit
        assert (after.numbering, after.reason, reason) == ("", "", "")
        assert all(f"Page: {page}" in document for page, document in zip(pages, parts.documents, strict=True))


@pytest.mark.parametrize("pages", [(0, 1), (2, 1), (0, 1, 2)])
@pytest.mark.parametrize("write", [str, json.dumps])
def test_pages_in_printed_metadata_are_no_numbering(pages, write):
    metadata = [{"page": page, "source": "a.pdf", "page_label": str(page + 1)} for page in pages]
    blocks = [f"Source: {write(each)}\n{body}" for each, body in zip(metadata, TEXTS, strict=False)]
    known = [KnownText.of(body, each) for each, body in zip(metadata, TEXTS, strict=False)]
    text = "Context:\n" + "\n\n".join(blocks) + "\n\nQuestion: which?"
    split = split_located(text, locate(text, documents=known))
    parts, found = split.parts, split.boundaries
    assert (len(parts.documents), found.numbering) == (len(pages), "")


@pytest.mark.parametrize("pages", [(1, 2, 3), (0, 1), (1, 2)])
def test_metadata_that_count_by_accident_are_reported_and_left(pages):
    text, documents = paged(pages, label="Part")
    found = locate(text, run=[documents])
    assert split_located(text, found).boundaries.numbering == "present"
    split = split_located(text, found, strip_numbering=True)
    parts, after = split.parts, split.boundaries
    assert (after.numbering, "may belong to the documents" in after.reason) == ("present", True)
    assert parts.text == text


@pytest.mark.parametrize("strip", [False, True])
@pytest.mark.parametrize("pages", list(itertools.permutations((1, 2, 3))))
def test_pages_below_numbered_documents_are_no_numbering(pages, strip):
    blocks = [f"{TEXTS[page - 1]}\nPage: {page}" for page in pages]
    known = [KnownText.of(TEXTS[page - 1], {"page": page}) for page in pages]
    text = "Answer from the 3 notes below.\n\n" + "\n\n".join(blocks) + "\n\nQuestion: which?"
    split = split_located(text, locate(text, run=[known]), strip_numbering=strip)
    parts, found, reason = split.parts, split.boundaries, split.why_unsplit
    assert (found.numbering, reason, parts.prefix) == ("", "", "Answer from the 3 notes below.\n\n")
    assert sorted(part.strip() for part in parts.documents) == sorted(blocks)


@pytest.mark.parametrize("pages", [(1, 3, 2), (2, 9, 1)])
def test_numbers_beside_metadata_of_other_values_are_stripped(pages):
    text, documents = paged(pages, label="Rank", count=lambda index: index + 1)
    split = split_located(text, locate(text, run=[documents]), strip_numbering=True)
    parts, after, reason = split.parts, split.boundaries, split.why_unsplit
    assert (after.numbering, after.reason, reason) == ("stripped", "", "")
    assert "Rank:\n" in parts.text


def test_a_prompt_in_parts_is_reported_and_left():
    prompt = Prompt("Context:\n", [f"[{n}] {body}\n" for n, body in enumerate(TEXTS, 1)], "Who?")
    assert split_prompt(prompt).boundaries.numbering == "present"
    split = split_prompt(prompt, strip_numbering=True)
    parts, after = split.parts, split.boundaries
    assert (parts, after.numbering, "passed in parts" in after.reason) == (prompt, "present", True)


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize(
    "item", ["Source: {n} \n {t}", "Filename: {m}\nSource: {n} \n {t}", "{{'index': {n}, 'title': '{m}'}}\n{t}"]
)
def test_metadata_that_numbers_the_documents_is_stripped(item, first):
    texts, titles = ["The falcon is red.", "Two herons stand.", "An owl is asleep."], ["Red", "Two", "Owls"]
    outcomes = set()
    for order in itertools.permutations(range(3)):
        numbered = list(enumerate(order, first))
        body = "\n\n".join(item.format(n=number, t=texts[index], m=titles[index]) for number, index in numbered)
        text = f"Context: \n{body}\n\nQuestion: which?"
        known = [KnownText.of(texts[index], {"index": number, "title": titles[index]}) for number, index in numbered]
        split = split_located(text, locate(text, run=[known]), strip_numbering=True)
        parts, boundaries, reason = split.parts, split.boundaries, split.why_unsplit
        assert (boundaries.numbering, boundaries.reason, reason) == ("stripped", "", "")
        outcomes.add((parts.prefix, frozenset(parts.documents), parts.suffix))
    assert len(outcomes) == 1


@pytest.mark.parametrize("lead", ["Answer in 1 sentence.\n\n", "1. Read.\n", "In 1 word, name it: \n\n"])
@pytest.mark.parametrize("count", [2, 3])
def test_a_number_of_the_text_before_unknown_titles_stays(lead, count):
    titles = ["Mill Lane", "Mill Lane 2", "Mill Lane 3"]
    blocks = [f"{title}\n{text}" for title, text in zip(titles, TEXTS, strict=True)][:count]
    text = lead + "\n\n".join(blocks) + "\n\nQuestion: which?"
    assert not find_numbering(text, locate(text, documents=TEXTS[:count]).spans).cuts


@pytest.mark.parametrize("lead", ["1. Read.\n2. Answer.\n\n", "Here are 3 documents.\n\n"])
def test_numbers_of_titles_and_of_the_text_before_them_stay(lead):
    titles = ("Mill Lane", "Glass Dome 1", "Salt Yard 2")
    for order in itertools.permutations(range(3)):
        blocks = [f"Title: {titles[index]}\n{TEXTS[index]}" for index in order]
        text = lead + "\n\n".join(blocks) + "\n\nQuestion: which?"
        documents = [KnownText.of(TEXTS[index], {"title": titles[index]}) for index in order]
        found = locate(text, documents=documents)
        numbers = find_numbering(text, found.spans, found.metadata)
        assert found.n_found == 3 and not numbers.cuts


@pytest.mark.parametrize(("heading", "reported"), [("Chapter {n}: ", True), ("Chapter {n}.txt ", False)])
def test_numbers_in_headings_that_a_segmenter_includes_are_reported(heading, reported):
    documents = [heading.format(n=n) + text for n, text in enumerate(TEXTS, 1)]
    text = "Use it.\n\n" + "\n\n".join(documents) + "\n\nQuestion: which?"
    numbers = find_numbering(text, locate(text, segmenter=lambda text: documents).spans)
    assert (numbers.cuts, numbers.doubtful) == ((), reported)
