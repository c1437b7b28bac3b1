"""Regressions: prompts whose segments depended on the document order, while the report was clean."""

from itertools import permutations

import pytest

from ragbias.boundaries import KnownText
from ragbias.errors import DocumentNotFoundError
from ragbias.generation.request import in_parts


def segments(documents, render, **settings):
    """Return the sorted documents of the split prompt for each order, or ``None`` if there is a reason."""
    found = []
    for order in permutations(documents):
        parts, _, reason, _ = in_parts(render(order), order, None, **settings)
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
        in_parts(prompt, documents, None)


def test_white_space_of_the_documents_is_no_separator():
    documents = ["walls apple Note report.\n", "big Note walls cloud 2024  "]

    def render(order):
        return "Use:\n\n" + "".join(f"#{index} {each}" for index, each in enumerate(order, 1)) + "\n\nQ: x"

    assert segments(documents, render, strip_numbering=True) == [None, None]
