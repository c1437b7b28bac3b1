from random import Random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ragbias.boundaries import Registry, locate

VOCABULARY = ["alpha", "beta", "gamma", "delta", "a", "b", "1", "17", "99", "it's", "\u00e9t\u00e9", "x\\y", '"q"']
WORDS = st.lists(st.sampled_from(VOCABULARY), min_size=1, max_size=12)
SENTENCES = WORDS.map(" ".join)
SEPARATORS = st.sampled_from(["\n\n", "\n", "\n---\n", "\n\n\n", "\n* ", "\t|\t"])
ANYTHING = st.text(min_size=1, max_size=40).filter(lambda text: text.strip() == text and "\u241e" not in text)


def joined(documents: list[str], separator: str, prefix: str, suffix: str) -> tuple[str, tuple[tuple[int, int], ...]]:
    text, spans = prefix, []
    for index, document in enumerate(documents):
        text += separator if index else ""
        spans.append((len(text), len(text) + len(document)))
        text += document
    return text + suffix, tuple(spans)


@given(st.lists(SENTENCES, min_size=1, max_size=8), SEPARATORS, st.randoms(use_true_random=False))
@settings(max_examples=150, deadline=None)
@example(["alpha alpha", "alpha alpha alpha", "alpha 17"], "\n\n", Random(0))  # the question quotes one inside another
@example(["alpha 17", "alpha alpha 17"], "\t|\t", Random(0))
@example(["alpha", "17"], "\n\n", Random(0))  # the question quotes all, but only as words of a sentence
def test_sentences_joined_in_any_order_are_found_exactly(documents, separator, random):
    text, spans = joined(documents, separator, "Use it.\n\nContext: ", "\n\nQuestion: what is alpha 17?\nAnswer:")
    named = random.sample(documents, len(documents))
    found = locate(text, documents=named)
    assert [text[begin:end] for begin, end in found.spans] == documents
    if len(set(documents)) > 1:
        assert found.spans == spans
    assert (found.n_expected, found.n_found, found.reason) == (len(documents), len(documents), "")


@given(st.lists(ANYTHING, min_size=2, max_size=6, unique=True), st.randoms(use_true_random=False))
@settings(max_examples=150, deadline=None)
def test_texts_joined_by_a_distinct_separator_are_found_exactly(documents, random):
    text, spans = joined(documents, "\u241e", "\u241eContext\u241e\u241e", "\u241eQuestion\u241e")
    assert locate(text, documents=random.sample(documents, len(documents))).spans == spans


@given(st.lists(SENTENCES.filter(lambda text: len(text) > 20), min_size=2, max_size=8, unique=True), SEPARATORS)
@settings(max_examples=100, deadline=None)
def test_the_registry_finds_what_was_retrieved_together(documents, separator):
    text, spans = joined(documents, separator, "Context: ", "\n\nQuestion: what?\nAnswer:")
    registry = Registry()
    registry.add(list(reversed(documents)))
    assert locate(text, registry=registry).spans == spans


@given(st.text(max_size=200), st.lists(st.text(max_size=20), max_size=8))
@settings(max_examples=150, deadline=None)
def test_spans_are_ascending_disjoint_and_hold_only_documents(text, documents):
    registry = Registry()
    registry.add(documents)
    for found in (locate(text, run=[documents]), locate(text, registry=registry)):
        edges = [edge for span in found.spans for edge in span]
        assert edges == sorted(edges)
        assert all(text[begin:end].strip() for begin, end in found.spans)
        assert found.n_found == len(found.spans)
        assert found.n_found <= max(found.n_expected, len(documents)) or found.source == "registry"
        stripped = {document.strip() for document in documents}
        assert all(text[begin:end].strip() in stripped for begin, end in found.spans if "\\" not in text)


@pytest.mark.parametrize("source", ["documents", "run"])
@pytest.mark.parametrize(
    ("documents", "separator", "before", "question"),
    [
        (["alpha beta", "alpha beta gamma"], "\n\n", "Context:\n\nalpha beta gamma", ""),
        (["alpha beta", "gamma alpha beta"], "\n\n", "Context:", "alpha beta"),
        (["alpha beta", "alpha beta gamma"], ", ", "Context:", "Question: what is alpha beta?"),
        (["alpha", "17"], ", ", "Context: 1. alpha. 2. 17.", "Which?"),
        (["alpha", "17"], "\n\n", "Context:", "Question: which of these?\nalpha\n17"),
    ],
)
def test_a_copy_that_may_be_the_context_is_refused(documents, separator, before, question, source):
    for order in (documents, documents[::-1]):
        text = f"{before}\n\n{separator.join(order)}\n\n{question}"
        found = locate(text, **{source: documents if source == "documents" else [documents]})
        assert (found.spans, "pass a segmenter=" in found.reason) == ((), True)
