"""Documents are found with the header and footer that contain their metadata, in every order."""

import itertools
import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ragbias import Prompt
from ragbias.boundaries import Registry, locate
from ragbias.boundaries.numbering import find_numbering
from ragbias.boundaries.sources import KnownText
from ragbias.errors import AmbiguousSegmentsError
from ragbias.generation.preparing import split_located
from support.prompts import known_to

FORMATS = {  # from metadata and text to what is in the prompt, and the separator
    "title above": (lambda m, t: f"{m['title']}\n{t}", "\n\n"),
    "title in line": (lambda m, t: f"{m['title']}: {t}", "\n"),
    "labelled title": (lambda m, t: f"title: {m['title']}\n\n{t}", "\n\n"),
    "source below": (lambda m, t: f"Content: {t}\nSource: {m['source']}", "\n\n"),
    "source in brackets": (lambda m, t: f"{t} [{m['source']}, p. {m['page']}]", "\n"),
    "both": (lambda m, t: f"## {m['title']}\n{t}\n(from {m['source']})", "\n\n---\n\n"),
    "metadata": (lambda m, t: f"Source: {m}\nContent: {t}", "\n\n"),
    "json": (lambda m, t: f"{json.dumps(m)}\n{t}", "\n"),
    "attribute": (lambda m, t: f'<doc title="{m["title"]}">\n{t}\n</doc>', "\n"),
    "attribute, closed below": (lambda m, t: f'<doc title="{m["title"]}">\n{t}\n</doc>\n', ""),
    "repr": (lambda m, t: f"Document(metadata={m!r}, page_content={t!r})", ", "),
    "str": (lambda m, t: f"page_content={t!r} metadata={m!r}", "\n\n"),
    "nothing but the text": (lambda m, t: t, "\n\n"),
}
AROUND = [
    ("Context: ", "\n\nQuestion: which?\nAnswer:"),
    ("<|system|>\nUse this.\n\n", "\n<|user|>\nSource: which is it?\n"),
    ("[", "]\n\nWhich?"),
    ("Source: one.\n\n", "\n\nWhich?"),
]
WORDS = st.sampled_from(["red", "gate", "Oak", "it's", "7", "page", "of", "Source", "two", '"so"', "\u00e9t\u00e9"])
PHRASES = st.lists(WORDS, min_size=1, max_size=3).map(" ".join)
DOCUMENTS = st.lists(
    st.tuples(
        st.lists(WORDS, min_size=5, max_size=9).map(" ".join),  # the registry leaves out texts below 8 characters
        st.fixed_dictionaries(
            {"title": PHRASES, "source": st.sampled_from(["a.txt", "b.txt", "b.pdf"]), "page": st.integers(1, 12)}
        ),
    ),
    min_size=2,
    max_size=6,
    unique_by=lambda document: document[0],
)


def parts(form, separator, around, documents, source):
    text = around[0] + separator.join(form(metadata, text) for text, metadata in documents) + around[1]
    named = [KnownText.of(text, metadata) for text, metadata in sorted(documents, key=repr)]
    found = locate(text, **known_to(source, named))
    try:
        return text, found, Prompt.from_text(text, found.spans)
    except AmbiguousSegmentsError:
        return text, found, None


@pytest.mark.parametrize("name", FORMATS)
@given(DOCUMENTS, st.sampled_from(AROUND), st.sampled_from(["run", "documents", "registry"]), st.data())
@settings(max_examples=120, deadline=None)
def test_the_segments_do_not_depend_on_the_order(name, documents, around, source, data):
    form, separator = FORMATS[name]
    _, found, plain = parts(form, separator, around, documents, source)
    _, again, moved = parts(form, separator, around, data.draw(st.permutations(documents)), source)
    assert found.n_found == again.n_found
    assert found.n_found in (0, len(documents)) or source == "registry"
    assert (plain is None) == (moved is None)
    if plain and plain.documents and moved:
        assert (plain.prefix, plain.suffix) == (moved.prefix, moved.suffix)
        assert sorted(plain.documents) == sorted(moved.documents)


TEXTS = ["The falcon is red.", 'An owl\n\nsleeps, it\'s "noon".', "Two herons stand.", "The otter lends books."]
METADATA = [
    {"title": "On falcons", "source": "birds.txt", "page": 3},
    {"title": "Owls", "source": "birds.txt", "page": 12},
    {"title": "The heron", "source": "b\u00e9ll.pdf", "page": 3},
    {"title": "O'Otter", "source": "mammals", "page": 4},
]


@pytest.mark.parametrize("source", ["run", "documents", "artifacts", "registry"])
@pytest.mark.parametrize("around", AROUND[:2])
@pytest.mark.parametrize("name", FORMATS)
def test_every_format_is_found_whole_in_every_order(name, around, source):
    form, separator = FORMATS[name]
    pairs = list(zip(TEXTS, METADATA, strict=True))
    for order in itertools.permutations(pairs):
        text, found, prompt = parts(form, separator, around, order, source)
        assert (found.n_found, found.reason) == (4, "")
        wanted = [form(metadata, document).strip() for document, metadata in order]
        assert [each.strip(" \n,-") for each in prompt.documents] == wanted
        assert prompt.prefix.rstrip() == around[0].rstrip()
        assert prompt.text.replace(separator, "") == text.replace(separator, "")


def test_numbers_beside_metadata_belong_to_documents_and_warn():
    blocks = [f"[{n}] {m['title']}\n{t}" for n, (m, t) in enumerate(zip(METADATA, TEXTS, strict=True), 1)]
    text = "Context: " + "\n\n".join(blocks) + "\n\nQuestion: which?"
    found = locate(text, run=[[KnownText.of(t, m) for m, t in zip(METADATA, TEXTS, strict=True)]])
    assert [text[begin:end] for begin, end in found.spans] == blocks
    assert find_numbering(text, found.spans).reveal_order


def located(text, texts=TEXTS, metadata=METADATA, **sources):
    named = [KnownText.of(each, about) for each, about in zip(texts, metadata, strict=True)]
    return locate(text, run=[named], **sources)


def test_unknown_titles_run_plain_and_are_the_reason():
    titles = ["On falcons", "On owls", "The heron", "Otters"]  # the first two look alike
    text = "Context: " + "\n\n".join(map("\n".join, zip(titles, TEXTS, strict=True))) + "\n\nQuestion: which?"
    registry = Registry()
    registry.add(TEXTS)
    for found in (locate(text, run=[TEXTS]), locate(text, registry=registry), locate(text, artifacts=[TEXTS])):
        prompt = split_located(text, found)
        split, reason = prompt.parts, prompt.why_unsplit
        assert (split.documents, found.n_found, found.n_expected) == ((), 4, 4)
        assert found.source in ("run", "registry", "artifact")
        assert "the first one cannot be distinguished from the text before it" in reason
        assert not any(word in reason for word in ("falcon", "heron"))


def test_the_users_segmenter_resolves_ambiguous_documents():
    titles = ["On falcons", "On owls", "The heron", "Otters"]
    blocks = [f"{title}\n{each}" for title, each in zip(titles, TEXTS, strict=True)]
    text = "Context: " + "\n\n".join(blocks) + "\n\nQuestion: which?"
    found = locate(text, run=[TEXTS], segmenter=lambda text: blocks)
    assert (found.source, [text[begin:end] for begin, end in found.spans]) == ("segmenter", blocks)
    assert found.reason == ""


@pytest.mark.parametrize(
    "broken",
    [
        lambda text: text.replace("Owls\n", "Eules\n"),  # not its title
        lambda text: text.replace("The heron\n", "\n"),  # no title
        lambda text: text.replace("The heron\n", "Owls\n"),  # another one's title
        lambda text: text.replace("On falcons\n", ""),  # the first one has none
        lambda text: text.replace('noon".\n\nThe heron', 'noon".\n\n\nThe heron'),  # another separator
    ],
)
def test_one_document_off_the_template_leaves_all_plain(broken):
    blocks = [f"{about['title']}\n{each}" for each, about in zip(TEXTS, METADATA, strict=True)]
    text = "Context: " + "\n\n".join(blocks) + "\n\nQuestion: which?"
    assert located(text).n_found == 4
    assert broken(text) != text
    prompt = split_located(broken(text), located(broken(text)))
    split, found, reason = prompt.parts, prompt.boundaries, prompt.why_unsplit
    assert (split.documents, found.n_expected, found.source) == ((), 4, "run")
    assert "cannot be distinguished" in reason or "different separators" in reason


def test_a_document_quoted_in_a_question_makes_the_prompt_plain():
    blocks = [f"{about['title']}\n{each}" for each, about in zip(TEXTS[:3], METADATA, strict=False)]
    text = "Context: " + "\n\n".join(blocks) + f"\n\nQuestion: is it true that {TEXTS[3]}\nAnswer:"
    prompt = split_located(text, located(text))
    split, reason = prompt.parts, prompt.why_unsplit
    assert (split.documents, bool(reason)) == ((), True)
    assert [text[begin:end] for begin, end in located(text, TEXTS[:3], METADATA[:3]).spans] == blocks


def test_metadata_that_is_the_same_for_all_is_a_constant():
    metadata = [{**about, "source": "x.pdf"} for about in METADATA]
    blocks = [f"{each}\n[{about['source']}: {about['title']}]" for each, about in zip(TEXTS, metadata, strict=True)]
    text = "Context: " + "\n\n".join(blocks) + "\n\n[x.pdf: which?]"
    found = located(text, metadata=metadata)
    assert [text[begin:end] for begin, end in found.spans] == blocks


def test_equal_texts_with_metadata_of_their_own_keep_both():
    texts, metadata = [TEXTS[0], TEXTS[0], TEXTS[2]], METADATA[:3]
    blocks = [f"{each}\nSource: {about['title']}" for each, about in zip(texts, metadata, strict=True)]
    for order in itertools.permutations(blocks):
        text = "Context: " + "\n\n".join(order) + "\n\nWhich?"
        found = located(text, texts, metadata)
        assert [text[begin:end] for begin, end in found.spans] == list(order)


@pytest.mark.parametrize("source", ["run", "documents", "registry"])
@pytest.mark.parametrize(
    ("form", "separator"),
    [("{t}\nSource: {s}", "\n\n"), ("Source: {s}\n{t}", "\n\n"), ("Content: {t}\nSource: {s}", "\n")],
)
def test_a_repeated_document_has_its_own_values_or_is_refused(form, separator, source):
    documents = [(TEXTS[0], {"s": "Source"}), (TEXTS[0], {"s": "Source"}), (TEXTS[2], {"s": "Text"})]
    for order in itertools.permutations(documents):
        _, found, prompt = parts(lambda m, t: form.format(t=t, **m), separator, AROUND[0], order, source)
        assert (found.n_found, found.reason) == (3, "")
        whole = [form.format(t=t, **m) for t, m in order]
        assert prompt is None or [each.strip() for each in prompt.documents] == whole


def test_longer_conversations_leave_earlier_documents_alone():
    rng = random.Random(0)
    order = rng.sample(range(4), 4)
    block = "\n\n".join(f"{METADATA[i]['title']}\n{TEXTS[i]}" for i in order)
    text = f"<|user|>\n{TEXTS[0]}\n{TEXTS[1]}<|end|><|user|>\nContext: {block}\n\nWhich?<|end|>"
    found = located(text)
    assert found.n_found == 4
    assert found.spans[0][0] > text.index("Context")


@pytest.mark.parametrize("form", ["Title: {m}\n{t}", "{t}\n\nSource: {m}"])
@pytest.mark.parametrize("separator", ["\n\n", "\n"])
def test_a_template_may_strip_white_space_that_only_some_texts_have(form, separator):
    titles = {"The falcon is red.\n": "On owls", "Two herons stand.": "On otters", "An owl is asleep.\n\n": "Gates"}
    known, splits = [KnownText.of(text, {"title": title}) for text, title in titles.items()], set()
    for order in itertools.permutations(titles):
        items = [form.format(t=text.strip(), m=titles[text]) for text in order]
        text = "Context:\n\n" + separator.join(items) + "\n\nWhich?"
        prompt = Prompt.from_text(text, locate(text, run=[known]).spans)
        assert sorted(map(str.strip, prompt.documents)) == sorted(items)
        splits.add((prompt.prefix, frozenset(prompt.documents), prompt.suffix))
    assert len(splits) == 1
