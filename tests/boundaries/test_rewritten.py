"""A run's documents are found in every order if a formatter rewrote all of them alike."""

import itertools
import textwrap

import pytest

from ragbias import Prompt
from ragbias.boundaries import Registry, locate

TEXTS = [
    "The Falcon Station opened in 1901.\nIt has four platforms, and a clock that the town paid for in May 1907.",
    "The Heron Bridge is 300 metres long.\n\nIt was painted green, as the council had asked for since the war.",
    "The Otter Library lends twelve thousand books,\nmost of them on rivers,  seas and what lives there in the winter.",
]
FORMATS = {
    "one line": lambda text: text.replace("\n", " "),
    "collapsed": lambda text: " ".join(text.split()),
    "cut": lambda text: text[:60],
    "cut, dots": lambda text: text[:60] + "...",
    "cut, ellipsis": lambda text: text[:61] + "\u2026",
}


OTHERS = {
    "wrapped": lambda text: textwrap.fill(text, 80),
    "indented": lambda text: textwrap.indent(text, "    "),
    "upper case": str.upper,
}


def prompts(write):
    for order in itertools.permutations(TEXTS):
        yield "Context:\n\n" + "\n\n".join(map(write, order)) + "\n\nQuestion: which?"


@pytest.mark.parametrize("source", ["documents", "run", "artifacts"])
@pytest.mark.parametrize("name", FORMATS)
def test_a_formatter_that_rewrites_all_documents_alike_is_read(name, source):
    outcomes = set()
    for text in prompts(FORMATS[name]):
        found = locate(text, **{source: TEXTS if source == "documents" else [TEXTS]})
        assert (found.n_found, found.reason) == (3, "")
        prompt = Prompt.from_text(text, found.spans)
        outcomes.add((prompt.prefix, frozenset(prompt.documents), prompt.suffix))
        assert prompt.text.split() == text.split()
    assert len(outcomes) == 1


@pytest.mark.parametrize("name", FORMATS)
def test_the_registry_finds_no_rewritten_texts(name):
    registry = Registry()
    registry.add(TEXTS)
    assert all(locate(text, registry=registry).n_found == 0 for text in prompts(FORMATS[name]))


def test_less_than_forty_characters_are_not_enough():
    assert all(locate(text, run=[TEXTS]).n_found == 0 for text in prompts(lambda text: text[:39]))


def test_one_beginning_beside_whole_documents_is_no_document():
    text = "Context: " + "\n\n".join(TEXTS[:2]) + f"\n\nQuestion: is it true that {TEXTS[2][:60]}?"
    found = locate(text, run=[TEXTS])
    assert [text[begin:end] for begin, end in found.spans] == TEXTS[:2]
    assert "do not appear" in found.reason


@pytest.mark.parametrize("name", OTHERS)
def test_rewritten_documents_are_missing_but_a_segmenter_works(name):
    outcomes = set()
    for text in prompts(OTHERS[name]):
        assert locate(text, run=[TEXTS]).spans == ()
        assert "none of the 3 documents" in locate(text, run=[TEXTS]).reason
        found = locate(text, run=[TEXTS], segmenter=lambda text: [OTHERS[name](each).strip() for each in TEXTS])
        prompt = Prompt.from_text(text, found.spans)
        outcomes.add((prompt.prefix.strip(), frozenset(map(str.strip, prompt.documents)), prompt.suffix.strip()))
    assert len(outcomes) == 1
