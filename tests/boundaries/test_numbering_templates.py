"""Numbering by any template is detected, and stripped prompts do not depend on the order."""

import json
import re
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ragbias.boundaries import Boundaries, locate
from ragbias.boundaries.numbering import WORDS as COUNTED
from ragbias.boundaries.sources import KnownText
from ragbias.generation.preparing import split_located

TEXTS = [
    "The falcon sleeps in the old barn, see [2].",
    "2 owls were counted at 12 noon in 1990.",
    "Document 3 is about herons, as is chapter 4.",
    "A crow counts: one, two, three; (a) and (b).",
    "Item 1. The otter library lends 7,000 books.",
]
CONTEXTS = [
    "Answer from these 2 sources.\n\nContext:\n{}\n\nQuestion: which of [1]?",
    "<|system|>1. Be brief.<|user|>Context: {}\n---\nQuestion: who was it in 1990?<|assistant|>",
]
CARDINALS = COUNTED["word"].split()
ROMAN = ["I", "II", "III", "IV", "V", "VI", "VII"]
COUNTS = {
    "from 1": lambda i, n: str(i + 1),
    "from 0": lambda i, n: str(i),
    "from -1": lambda i, n: str(i - 1),
    "down": lambda i, n: str(n - i),
    "tens": lambda i, n: str(10 * i + 10),
    "odd": lambda i, n: str(2 * i + 1),
    "from 17 by 3": lambda i, n: str(3 * i + 17),
    "padded": lambda i, n: f"{i + 1:03}",
    "letters": lambda i, n: "ABCDEFG"[i],
    "small letters": lambda i, n: "abcdefg"[i],
    "roman": lambda i, n: ROMAN[i],
    "small roman": lambda i, n: ROMAN[i].lower(),
    "words": lambda i, n: CARDINALS[i].capitalize(),
    "1st": lambda i, n: f"{i + 1}{['st', 'nd', 'rd', 'th', 'th', 'th', 'th'][i]}",
    "circled": lambda i, n: chr(0x2460 + i),
}
TEMPLATES = {
    "Source": "Source {n}:\n{text}\n",
    "Source ID": "Source ID: {n}\nContent: {text}\n",
    "Document, title": "Document [{n}](Title: {title}) {text}",
    "brackets": "[{n}] {text}",
    "round brackets": "({n}) {text}",
    "list": "{n}. {text}",
    "list in brackets": "{n}) {text}",
    "chunk number": "Context chunk number {n}: {text}",
    "total": "Result {n}/{total}\n{text}",
    "of": "Result {n} of {total}: {text}",
    "doc_id": "[doc_id={n} title={title}] {text}",
    "heading": "### {n}\n{text}",
    "title first": "{title} [{n}]: {text}",
    "rule": "--- Document {n} ---\n{text}",
    "label after": "Title: {title}\nRank: {n}\nText: {text}",
    "attribute": '<document index="{n}">\n{text}\n</document>',
    "attributes": "<document source='{title}' id='{n}'>{text}</document>",
    "element": "<document><index>{n}</index><text>{text}</text></document>",
    "both tags": "<doc{n}>{text}</doc{n}>",
    "both tags, hyphen": "<doc-{n}>\n{text}\n</doc-{n}>",
    "begin and end": "BEGIN {n}\n{text}\nEND {n}",
    "footer": "{text}\n(source {n})",
    "marker after": "{text} [{n}]",
    "bold": "**{n}.** {text}",
    "Doc glued": "Doc{n}: {text}",
}
GLUED = {"both tags", "both tags, hyphen", "Doc glued"}  # letters there make a word
FIGURES = {"from 1", "from 0", "down", "padded", "tens", "odd"}
TITLES = ["Zebra", "Apple", "Lemon", "Grape", "Melon"]


def written(template, count, order, context, separator="\n\n"):
    n = len(order)
    blocks = [
        template.format(n=count(position, n), total=n, text=TEXTS[index], title=TITLES[index])
        for position, index in enumerate(order)
    ]
    return context.format(separator.join(blocks))


def located(text, order, known=False):
    documents = [KnownText.of(TEXTS[i], {"title": TITLES[i]}) if known else TEXTS[i] for i in sorted(order)]
    return locate(text, documents=documents)


def segments(text, found: Boundaries, strip):
    split = split_located(text, found, strip)
    parts, boundaries, reason = split.parts, split.boundaries, split.why_unsplit
    return (parts.prefix, tuple(sorted(parts.documents)), parts.suffix), boundaries, reason


def orders(n):
    return [tuple(range(n)), tuple(range(n))[::-1], (*range(1, n), 0)]


@pytest.mark.parametrize("n", [2, 3])
@pytest.mark.parametrize("template", TEMPLATES)
def test_numbering_is_seen_and_clean_reports_have_one_split(template, n):
    for name, context, known in product(COUNTS, CONTEXTS, (False, True)):
        if template in GLUED and name not in FIGURES:
            continue
        clean = set()
        for order in orders(n):
            text = written(TEMPLATES[template], COUNTS[name], order, context)
            found = located(text, order, known)
            if found.n_found < n:
                assert found.reason, name
                continue
            assert segments(text, found, False)[1].numbering == "present", name
            parts, boundaries, reason = segments(text, found, True)
            assert boundaries.numbering == "stripped" or boundaries.reason or reason, name
            if boundaries.numbering == "stripped":
                clean.add(parts)
        assert len(clean) < 2, name


@pytest.mark.parametrize("n", [2, 4])
@pytest.mark.parametrize("count", ["from 0", "from 1"])
@pytest.mark.parametrize("template", TEMPLATES)
def test_figures_are_taken_out(template, count, n):
    stripped = set()
    for order in orders(n):
        text = written(TEMPLATES[template], COUNTS[count], order, CONTEXTS[0])
        parts, boundaries, reason = segments(text, located(text, order, known=True), True)
        assert (boundaries.n_found, boundaries.numbering, boundaries.reason, reason) == (n, "stripped", "", "")
        stripped.add(parts)
    assert len(stripped) == 1


@pytest.mark.parametrize("n", [2, 4])
@pytest.mark.parametrize(
    "form", [json.dumps, str, lambda rows: json.dumps(rows, indent=2)], ids=["json", "str", "lines"]
)
@pytest.mark.parametrize("key", ["id", "rank", "position in the list"])
@pytest.mark.parametrize("first", [True, False], ids=["before", "after"])
def test_a_field_of_json_is_taken_out(first, key, form, n):
    stripped = set()
    for order in orders(n):
        rows = [
            {key: i, "text": TEXTS[index]} if first else {"text": TEXTS[index], key: i} for i, index in enumerate(order)
        ]
        text = CONTEXTS[0].format(form(rows))
        found = located(text, order)
        assert segments(text, found, False)[1].numbering == "present"
        parts, boundaries, reason = segments(text, found, True)
        assert (boundaries.numbering, boundaries.reason, reason) == ("stripped", "", "")
        assert key not in "".join(parts[1])
        stripped.add(parts)
    assert len(stripped) == 1


@given(
    before=st.text("[]()#<>/=\"':.- docIDpage\n", max_size=10),
    after=st.text("[]()#<>/=\"':.- end\n", max_size=6),
    behind=st.sampled_from(["", " [{n}]", "</doc{n}>", "\n({n}, {title})", "{title}"]),
    separator=st.sampled_from(["\n\n", "\n", "\n---\n", " "]),
    count=st.sampled_from(sorted(COUNTS)),
    n=st.integers(2, 5),
    known=st.booleans(),
    strip=st.booleans(),
    data=st.data(),
)
@settings(max_examples=400, deadline=None)
def test_clean_reports_of_any_template_have_one_split(before, after, behind, separator, count, n, known, strip, data):
    if count not in FIGURES:  # letters beside letters make another word
        before, after = before + " " * before[-1:].isalpha(), " " * after[:1].isalpha() + after
    if count == "from -1" and re.search(r"[\w)\]}.-]\Z", before):  # a hyphen is no sign there: Doc-1 counts as 1
        before += " "
    if count == "from 17 by 3":  # any two numbers are a step apart: those of two documents may be their own
        n = max(n, 3)
    template = before + "{n}" + after + "{text}" + behind
    clean = set()
    for order in (range(n), data.draw(st.permutations(range(n)))):
        text = written(template, COUNTS[count], order, CONTEXTS[0], separator)
        found = located(text, order, known)
        if found.n_found < n or found.reason:
            continue
        parts, boundaries, reason = segments(text, found, strip)
        if boundaries.numbering != "present" and not boundaries.reason and not reason:
            clean.add(parts)
    assert len(clean) < 2
