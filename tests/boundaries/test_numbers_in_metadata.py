"""Metadata that equals a document's number stays, or is stripped, in every order of the documents."""

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ragbias.boundaries import locate
from ragbias.boundaries.sources import KnownText
from ragbias.generation.preparing import split_located

TEXTS = ["The falcon is red.", "Two herons stand here.", "An owl is asleep.\nIt snores."]
HEADERS = ["{n}. ", "[{n}] ", "Document {n}:\n", "Title: {title}\n", "{title}\n", "page: {page}\n", "{page}. "]
HEADERS += ["Document {n} (page {page}): ", "{title}: ", "[{title}] ", "<doc id={page}>", "Part: {page}\n", "", ""]
HEADERS += ["{n}/{title}: ", "id: {title}, page: {page}\n", "{title} {n}\n", "{{'title': '{title}', 'page': {page}}}\n"]
FOOTERS = ["", "", "", "\npage: {page}", " ({page})", " [{n}]", "\nTitle: {title}", "\n[{page}]", "\nNote {n}"]
PREFIXES = ["Context:\n\n", "1. Read.\n2. Answer.\n\n", "", "Context: ", "Read 3 notes.\n\n", "<context>\n"]
SUFFIXES = ["\n\nQuestion: which?", "\n\n2. Which?", "\n\n---\nWhich of [1]?", "", "\n</context>", "\n\npage: 2?"]
TITLES = ["2", "1", "3", "Owls", "On 2 owls", "Owls 1", "Part 2", "page 3", "0", "7", "1. One"]


def clean_outcomes(prefix, item, separator, suffix, metadata, names=("title", "page")):
    """Return the different segments of all orders whose report is clean. The listener knows the fields ``names``."""
    known = [
        KnownText.of(text, {name: values[name] for name in names})
        for text, values in zip(TEXTS, metadata, strict=False)
    ]
    clean = set()
    for order in itertools.permutations(range(len(known))):
        items = [item.format(n=n, text=TEXTS[index], **metadata[index]) for n, index in enumerate(order, 1)]
        prompt = prefix + separator.join(items) + suffix
        found = locate(prompt, run=[known])
        split = split_located(prompt, found, strip_numbering=True)
        parts, boundaries = split.parts, split.boundaries
        if found.n_found == len(known) and not (boundaries.reason or split.why_unsplit):
            clean.add((parts.prefix, frozenset(parts.documents), parts.suffix))
    return clean


@given(st.integers(0, 10**9))
@settings(max_examples=500, deadline=None)
def test_clean_reports_have_one_split(seed):
    rng = random.Random(seed)
    prefix, header, footer, suffix = map(rng.choice, (PREFIXES, HEADERS, FOOTERS, SUFFIXES))
    header += rng.choice(HEADERS) if rng.random() < 0.3 else ""
    separator = rng.choice(["\n\n", "\n", "\n---\n", " | "])
    metadata = [{"title": rng.choice(TITLES), "page": rng.randint(0, 4)} for _ in range(rng.randint(2, 3))]
    names = rng.choice([["title", "page"], ["title"], ["page"], []])
    assert len(clean_outcomes(prefix, header + "{text}" + footer, separator, suffix, metadata, names)) < 2


@pytest.mark.parametrize(
    ("prefix", "item", "suffix", "titles", "pages", "names"),
    [
        ("Context: ", "{text} [{n}]", "\n\nWhich?", ["1", "On 2 owls", "2"], [1, 4, 17], ["title", "page"]),
        ("Read.\n\n", "{page}. {text} [{n}]", "\n\n2. Which?", ["a", "b", "c"], [2, 1, 3], ["title", "page"]),
        ("Read 3.\n\n", "{page}. {text}\nTitle: {title}", "\n\nWhich?", ["1", "Part 2", "3"], [2, 3, 1], ["title"]),
        ("", "{title} {n}\n{text}", "\n\nWhich?", ["2", "Owls"], [2, 4], ["title", "page"]),
        ("Read.\n", "{n}/{title}: {page}. {text} ({page})", "\n\nWhich?", ["3", "page 3"], [1, 2], ["title"]),
        ("1. Read.\n\n", "{n}. {page}. {text}", "", ["a", "b", "c"], [1, 2, 3], []),
    ],
)  # fmt: skip
def test_metadata_like_a_number_is_kept_in_every_order(prefix, item, suffix, titles, pages, names):
    metadata = [{"title": title, "page": page} for title, page in zip(titles, pages, strict=True)]
    assert len(clean_outcomes(prefix, item, "\n\n", suffix, metadata, names)) < 2
