"""Documents in tags, or in a printed list of LangChain documents, are separated without an argument."""

import itertools
import random
import re
import time

import pytest
from langchain_core.documents import Document

from ragbias import Prompt
from ragbias.boundaries import locate
from ragbias.boundaries.sources import KnownText, document_texts
from ragbias.errors import AmbiguousSegmentsError

TEXTS = ["The falcon is red and old.", "Two herons stand on a bridge.\n\nIt is of stone.", "An owl's asleep."]
TITLES = ["On owls", "Gates > walls", "a.txt"]
TEMPLATES = {  # what precedes the documents, a document, the separator, and what follows them
    "documents": ("<documents>\n", "<document>\n{t}\n</document>", "\n", "\n</documents>\n\nWhich?"),
    "context": ("<context>\n", "<doc>{t}</doc>", "\n", "\n</context>\nWhich?"),
    "one line": ("Context: <docs>", "<doc>{t}</doc>", "", "</docs>\nWhich?"),
    "attribute": ("Use it. ", '<document title="{m}">{t}</document>', "", "\n\nWhich?"),
    "anthropic": (
        "<documents>\n",
        "<document>\n<source>{m}</source>\n<document_content>\n{t}\n</document_content>\n</document>",
        "\n",
        "\n</documents>\n\nWhich?",
    ),
    "source below": ("<docs>\n", "<doc>\n{t}\n<source>{m}</source>\n</doc>", "\n\n", "\n</docs>\n\nWhich?"),
    "other tags": ("Use <b> tags.\n", "<doc>\n{t}\n</doc>", "\n", "\nAnswer in <answer> tags."),
}


def split(text: str, **given: object) -> tuple[str, tuple[str, ...], str]:
    found = locate(text, **given)
    assert (found.n_found, found.reason) == (3, "")
    prompt = Prompt.from_text(text, found.spans)
    return prompt.prefix, tuple(sorted(prompt.documents)), prompt.suffix


@pytest.mark.parametrize("source", ["texts", "texts with metadata", "segmenter"])
@pytest.mark.parametrize("name", TEMPLATES)
def test_documents_in_tags_are_split_alike_in_every_order(name, source):
    prefix, item, separator, suffix = TEMPLATES[name]
    outcomes = set()
    for order in itertools.permutations(range(3)):
        items = [item.format(t=TEXTS[index], m=TITLES[index]) for index in order]
        known = [KnownText.of(TEXTS[i], {"title": TITLES[i]} if source.endswith("metadata") else {}) for i in range(3)]
        segmenter = re.compile(r"<(?:doc|document)(?: [^<]*\")?>(.*?)</(?:doc|document)>", re.S)
        given = {"segmenter": segmenter} if source == "segmenter" else {"run": [known]}
        outcomes.add(split(prefix + separator.join(items) + suffix, **given))
    ((_, documents, _),) = outcomes
    assert all(document.strip().startswith("<doc") and document.strip().endswith(">") for document in documents)


def test_a_mentioned_tag_is_no_document_and_no_segmenter_match():
    text = "Cite a <doc>.\n" + "\n".join(f"<doc>{each}</doc>" for each in TEXTS) + "\nWhich?"
    assert split(text, run=[TEXTS])[0] == "Cite a <doc>.\n"
    found = locate(text, segmenter=re.compile(r"<doc>(.*?)</doc>", re.S))
    with pytest.raises(AmbiguousSegmentsError, match="tags around the documents also occur inside or between them"):
        Prompt.from_text(text, found.spans)


def test_a_document_without_metadata_in_a_printed_list_is_found():
    documents = [
        Document(TEXTS[0], id="a1", metadata={"source": "a.txt"}),
        Document(TEXTS[1], id="b2", metadata={"source": "b.txt"}),
        Document(TEXTS[2]),
    ]
    orders = list(itertools.permutations(documents))
    outcomes = {split(f"Context: {list(order)}\n\nWhich?", run=[document_texts(order)]) for order in orders}
    ((prefix, segments, suffix),) = outcomes
    assert (prefix, suffix) == ("Context: [", "]\n\nWhich?")
    assert segments[2] == ', Document(metadata={}, page_content="An owl\'s asleep.")'


def test_tags_in_metadata_never_open_a_dependence_on_the_order():
    pieces = ["<doc>", "</doc>", "<source>", "</source>", "<doc a='1'>", "owls", " ", "\n", "Document(", "')", ", "]
    for seed in range(60):
        rng = random.Random(seed)
        prefix, item, separator, suffix = TEMPLATES[rng.choice(list(TEMPLATES))]
        titles = ["".join(rng.choices(pieces, k=rng.randint(0, 4))) for _ in TEXTS]
        outcomes = set()
        for order in itertools.permutations(range(3)):
            text = prefix + separator.join(item.format(t=TEXTS[i], m=titles[i]) for i in order) + suffix
            found = locate(text, run=[[KnownText.of(TEXTS[i], {"title": titles[i]}) for i in range(3)]])
            try:
                prompt = Prompt.from_text(text, found.spans)
            except AmbiguousSegmentsError:
                continue
            if not found.reason:
                outcomes.add((prompt.prefix, tuple(sorted(prompt.documents)), prompt.suffix))
        assert len(outcomes) < 2, (seed, titles)


def test_many_tags_between_documents_take_linear_time():
    texts = ["The gate is red.", "The wall is blue."]
    begin = time.perf_counter()
    for tags in ("</doc>" * 40_000, "".join(f"</doc{'x' * (n % 50)}>" for n in range(40_000))):
        text = f"{texts[0]}{tags}{texts[1]}\nWhich?"
        with pytest.raises(AmbiguousSegmentsError):
            Prompt.from_text(text, locate(text, documents=texts).spans)
    assert time.perf_counter() - begin < 5
