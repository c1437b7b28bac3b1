"""Regressions: prompts whose segments depended on the document order, while the report was clean."""

import textwrap
from itertools import permutations

import pytest

from ragbias.boundaries import locate
from ragbias.boundaries.sources import KnownText
from ragbias.errors import DocumentNotFoundError
from ragbias.generation.preparing import split_located, split_prompt
from support.prompts import BRIDGE, LIBRARY, STATION, known_to, registry_of


def segments(documents, render, **settings):
    """Return the sorted documents of the split prompt for each order, or ``None`` if there is a reason."""
    found = []
    for order in permutations(documents):
        split = split_prompt(render(order), order, **settings)
        parts, reason = split.parts, split.why_unsplit
        found.append(None if reason else sorted(parts.documents))
    return found


@pytest.mark.parametrize("separator", ["", "\n\n"])
def test_a_number_in_metadata_is_never_cut_in_half(separator):
    documents = [
        KnownText.of("cloud emerald apple Copper", {"page": 11}, "1"),
        KnownText.of("big lantern emerald.", {"page": 2}, "2"),
    ]
    pages = {documents[0]: 11, documents[1]: 2}

    def render(order):
        return "Context:\n\n" + separator.join(f"{pages[each]}. {each}" for each in order) + "\n\nQ: x"

    one, other = segments(documents, render)
    assert one == other
    assert one is None or any("11. cloud" in each for each in one)


def test_a_short_document_is_never_taken_for_a_cut_one():
    documents = ["big report Note walls cloud Copper  ", "Hall"]
    prompt = "# D\n\n" + "\n\n---\n\n".join(documents) + "Question?"
    with pytest.raises(DocumentNotFoundError, match="1 of 2 documents found"):
        split_prompt(prompt, documents)


def test_white_space_of_the_documents_is_no_separator():
    documents = ["walls apple Note report.\n", "big Note walls cloud 2024  "]

    def render(order):
        return "Use:\n\n" + "".join(f"#{index} {each}" for index, each in enumerate(order, 1)) + "\n\nQ: x"

    assert segments(documents, render, strip_numbering=True) == [None, None]


@pytest.mark.parametrize("source", ["run", "registry"])
@pytest.mark.parametrize("item", ["{text}", "Source: {text}", "Title: {title}\n{text}", "<doc>{text}</doc>"])
@pytest.mark.parametrize("latest", [0, 1])
def test_a_short_document_of_an_earlier_retrieval_is_found(source, item, latest):
    titles = {STATION: "station", BRIDGE: "bridge", LIBRARY: "library", "No.": "short"}
    station, bridge, library, short = (KnownText.of(text, {"title": title}) for text, title in titles.items())
    retrievals = [[station, bridge], [library, short]]
    given = {"run": retrievals[::-1]} if latest else {"run": retrievals}
    if source == "registry":
        given = {"registry": registry_of(*given["run"][::-1])}
    outcomes = set()
    for order in permutations(titles):
        items = [item.format(text=text, title=titles[text]) for text in order]
        text = "Context:\n\n" + "\n\n".join(items) + "\n\nQuestion: Which is green?"
        found = locate(text, **given)
        assert (found.n_found, found.n_expected, found.reason) == (4, 4, "")
        split = split_located(text, found)
        parts, reason = split.parts, split.why_unsplit
        outcomes.add((reason, parts.prefix, frozenset(parts.documents), parts.suffix))
    assert len(outcomes) == 1


@pytest.mark.parametrize("item", ["{text} [{n}]", "{text} ({n}, p. {page})"])
@pytest.mark.parametrize("pages", ["12", "21"])
def test_a_number_that_equals_a_page_is_reported(item, pages):
    texts = [STATION + "\n", LIBRARY]
    page = dict(zip(texts, pages, strict=True))
    clean = set()
    for order in permutations(texts):
        items = [item.format(n=n, text=text, page=page[text]) for n, text in enumerate(order, 1)]
        prompt = "Context:\n\n" + "\n\n".join(items) + "\n\nWhich?"
        found = locate(prompt, run=[[KnownText.of(text, {"page_label": page[text]}) for text in texts]])
        split = split_located(prompt, found, strip_numbering=True)
        parts, boundaries, reason = split.parts, split.boundaries, split.why_unsplit
        assert (boundaries.n_found, reason) == (2, "")
        clean |= set() if boundaries.reason else {tuple(sorted(parts.documents))}
    assert len(clean) <= 1


@pytest.mark.parametrize("separator", ["|", ";"])
@pytest.mark.parametrize(
    "item", ["{n}. {text}", "{n}) {text}", "[{n}] {text}", "{n}. {text} ({title})", "({n}) {text}"]
)
@pytest.mark.parametrize("lead", ["Context:\n\n", "Context: "])
def test_a_number_right_after_a_mark_is_seen_and_stripped(lead, item, separator):
    documents = [KnownText.of(STATION, {"source": "a.txt"}), KnownText.of(LIBRARY, {"source": "b.txt"})]
    outcomes = set()
    for order in permutations([(STATION, "a.txt"), (LIBRARY, "b.txt")]):
        items = [item.format(n=n, text=text, title=title) for n, (text, title) in enumerate(order, 1)]
        text = lead + separator.join(items) + "\n\nWhich is green?"
        found = locate(text, run=[documents])
        assert split_located(text, found).boundaries.numbering == "present"
        split = split_located(text, found, strip_numbering=True)
        parts, boundaries, reason = split.parts, split.boundaries, split.why_unsplit
        assert (boundaries.numbering, reason) == ("stripped", "")
        outcomes.add((parts.prefix, frozenset(parts.documents), parts.suffix))
    assert len(outcomes) == 1


@pytest.mark.parametrize("mark", ["...", " [...]", "\u2026", " \u2026", ""])
@pytest.mark.parametrize("separator", ["\n\n", " | ", " "])
def test_documents_shortened_to_words_do_not_count_as_cut(mark, separator):
    titles = ["falcon", "heron and the", "otter or"]
    texts = [f"The station of the {title} opened in May of the year 1901, and is open on Sundays." for title in titles]
    for width in range(46, 80):
        outcomes = set()
        for order in permutations(texts):
            shortened = separator.join(textwrap.shorten(each, width, placeholder=mark) for each in order)
            text = f"Context:\n{shortened}\n\nQuestion: Which is green?"
            found = locate(text, run=[texts])
            split = split_located(text, found)
            parts, boundaries, reason = split.parts, split.boundaries, split.why_unsplit
            outcomes |= (
                set() if reason or boundaries.reason else {(parts.prefix, (*sorted(parts.documents),), parts.suffix)}
            )
        assert len(outcomes) < 2


HEADERS = {
    "llama 3": "<|start_header_id|>user<|end_header_id|>\n\n",
    "mistral": "<s>[INST] ",
    "zephyr": "<|user|>\n",
    "granite": "<|start_of_role|>user<|end_of_role|>",
    "chatml": "<|im_start|>user\n",
    "gemma": "<start_of_turn>user\n",
}


@pytest.mark.parametrize("source", ["run", "documents", "registry"])
@pytest.mark.parametrize("header", HEADERS.values(), ids=HEADERS)
@pytest.mark.parametrize("role", ["user", "tool", "model"])
def test_a_document_that_equals_a_role_is_found_below_a_header(role, header, source):
    texts = [role, STATION, LIBRARY]
    for order in permutations(texts):
        text = header + "\n\n".join(order) + "\n\nQuestion: Which is green?"
        found = locate(text, **known_to(source, texts))
        assert (found.n_found, found.n_expected, found.reason) == (3, 3, "")


@pytest.mark.parametrize("separator", [" | ", "; ", ";", "|"])
@pytest.mark.parametrize("lead", ["Context:\n", "Context: "])
@pytest.mark.parametrize("together", [True, False])
def test_a_short_registered_document_is_found_beside_a_mark(lead, separator, together):
    texts = ["No.", STATION, LIBRARY]
    registry = registry_of(texts) if together else registry_of(texts[:2], texts[2:])
    for order in permutations(texts):
        text = lead + separator.join(order) + "\n\nQuestion: Which is green? Is it No. 5?"
        found = locate(text, registry=registry)
        assert (found.n_found, found.n_expected, found.reason) == (3, 3, "")
