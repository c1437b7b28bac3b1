"""Unknown headers and separators are split in the same way in every order."""

import itertools
import os
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ragbias import Prompt
from ragbias.boundaries import locate
from ragbias.boundaries.numbering import find_numbering
from ragbias.boundaries.sources import KnownText
from ragbias.errors import AmbiguousSegmentsError

HEADERS = ["", "", "Source: {}\n", "{}\n", "{}: ", "## {}\n", "[page {} of 10]\n", "page_label: {}\n\n", "Next:\n"]
HEADERS += ["<doc src='{}'>\n", "<doc>\n", "Question: {}\nAnswer: ", "Title: {}\nText: ", "Document [{}](Title: x) "]
FOOTERS = ["", "", "\nSource: {}", " ({})", "\n{}", "\n</doc>", "\nEnd.", "\n\nSource: {}", " [{}]\n"]
SEPARATORS = ["\n\n", "\n", " ", "\n\n---\n\n", "\n---\nNext passage:\n", ", "]
PREFIXES = [
    "", "Context:\n\n", "Context: ", "Sources:\n\n", "Use the docs\n", "<|user|>\n", "[",
    "C:\n---\nNext passage:\n",
]  # fmt: skip
SUFFIXES = ["\n\nQuestion: which?", "\nSource: which?", "", "]\n\nWhich?", "\n---\nNext passage:\nWhich?", " of it\n"]
VALUES = st.sampled_from(
    ["a.txt", "b.txt", "Hall", "Hall of", "Red Hall", "3", "12", "About Owls", "About Otters", "**"]
)
WORDED = st.tuples(VALUES, VALUES)  # of the header, of the footer
TEXTS = ["red rose", "blue iris", "green fern", "Source"]


def outcome(text, spans):
    try:
        prompt = Prompt.from_text(text, spans)
    except AmbiguousSegmentsError:
        return "plain"
    if find_numbering(text, spans).reveal_order:
        return "plain"  # or as good as: its report tells that the order counts
    return prompt.prefix, tuple(sorted(prompt.documents)), prompt.suffix


@given(
    st.sampled_from(HEADERS),
    st.sampled_from(FOOTERS),
    st.sampled_from(SEPARATORS),
    st.sampled_from(PREFIXES),
    st.sampled_from(SUFFIXES),
    st.lists(st.tuples(st.sampled_from(TEXTS), WORDED), min_size=2, max_size=4),
)
@settings(max_examples=1500, deadline=None)
@example("Source: {}\n", "", "\n\n", "Context:\n\n", SUFFIXES[0], [("x", ("b.txt",) * 2), *[("y", ("a.txt",) * 2)] * 2])
@example("## {}\n", "", "\n\n", "", SUFFIXES[0], [("red rose", ("a.txt",) * 2), ("red rose", ("**",) * 2)])
@example("{}\n", "\n</doc>", " ", "", SUFFIXES[0], [("red rose", ("a.txt", "a")), ("red rose", ("b.txt", "a"))])
@example("", "\nSource: {}", "\n\n", "Context:\n\n", SUFFIXES[0], [*[("y", ("a", "a"))] * 2, ("x", ("b", "b"))])
def test_the_segments_are_the_same_in_every_order(header, footer, separator, prefix, suffix, documents):
    outcomes = {}
    for order in set(itertools.permutations(documents)):
        text, spans = prefix, []
        for index, (body, (above, below)) in enumerate(order):
            text += (separator if index else "") + header.format(above)
            spans.append((len(text), len(text) + len(body)))
            text += body + footer.format(below)
        outcomes[outcome(text + suffix, spans)] = text
    assert len(outcomes.keys() - {"plain"}) <= 1, outcomes


@pytest.mark.parametrize("suffix", ["\n\nQuestion", "\nQuestion"])
def test_words_before_every_document_are_a_header_of_all(suffix):
    gap = "\n---\nNext passage:\n"
    text = "Read." + gap + gap.join(["red rose", "blue iris", "green fern"]) + suffix
    spans = [(text.index(body), text.index(body) + len(body)) for body in ("red rose", "blue iris", "green fern")]
    prompt = Prompt.from_text(text, spans)
    assert [document.strip("\n") for document in prompt.documents] == [
        f"---\nNext passage:\n{body}" for body in ("red rose", "blue iris", "green fern")
    ]
    assert (prompt.text, prompt.prefix.strip()) == (text, "Read.")


@pytest.mark.parametrize("form", ["{t}\nSource: {name}", "{name}\n{t}"])
def test_ambiguity_is_refused_in_every_order_with_the_reason(form):
    documents = [("red rose, red gate", "/a/hall.txt"), ("blue iris", "/a/hall.txt"), ("green fern", "/a/tower.txt")]
    for order in itertools.permutations(documents):
        blocks = [form.format(t=body, name=source[-8:-4].upper()) for body, source in order]
        text = "Context:\n\n" + "\n\n".join(blocks) + "\n\nQuestion: which?\nAnswer:"
        found = locate(text, run=[[KnownText.of(body, {"source": source}) for body, source in documents]])
        reason = found.reason
        if not reason:
            with pytest.raises(AmbiguousSegmentsError) as error:
                Prompt.from_text(text, found.spans)
            reason = str(error.value)
        assert "footer" in reason or "cannot be distinguished" in reason


@pytest.mark.parametrize("name", [os.path.basename, lambda source: Path(source).stem], ids=["name", "stem"])
@pytest.mark.parametrize("form", ["{t}\n(Source: {name})", "{t}\nSource: {name}", "{name}\n{t}", "[{name}] {t}"])
def test_a_bare_file_name_goes_with_its_document_in_every_order(form, name):
    documents = [("red rose, red gate", "/a/hall.txt"), ("blue iris", "/b/wall.md"), ("green fern", "/a/tower.txt")]
    known = [KnownText.of(body, {"source": source}) for body, source in documents]
    seen = set()
    for order in itertools.permutations(documents):
        blocks = [form.format(t=body, name=name(source)) for body, source in order]
        text = "Context:\n\n" + "\n\n".join(blocks) + "\n\nQuestion: which?\nAnswer:"
        found = locate(text, run=[known])
        assert (found.n_found, found.reason) == (3, "")
        prompt = Prompt.from_text(text, found.spans)
        assert sorted(map(str.strip, prompt.documents)) == sorted(blocks)
        seen.add((prompt.prefix, frozenset(prompt.documents), prompt.suffix))
    assert len(seen) == 1


@pytest.mark.parametrize(
    "opening",
    [
        "<|im_start|>tool\n",
        "<|im_start|>user\n",
        "<start_of_turn>user\n",
        "<|start_header_id|>ipython<|end_header_id|>\n\n",
        "<tool_response>\n",
        "[TOOL_RESULTS] ",
        '[TOOL_RESULTS] {"content": "',
    ],
)
def test_a_header_shared_by_all_chunks_may_open_a_message(opening):
    texts = ["The falcon is red.", "Two herons stand.", "An owl is asleep."]
    outcomes = set()
    for order in itertools.permutations(texts):
        body = "\n\n".join(f"Source: nike.pdf\nContent: {each}" for each in order)
        body = body.replace("\n", "\\n") if opening.endswith('"') else body
        text = "<|im_start|>system\nAnswer.<|im_end|>\n" + opening + body + "<|im_end|>\n<|im_start|>assistant\n"
        prompt = Prompt.from_text(text, locate(text, run=[texts]).spans)
        outcomes.add((prompt.prefix, frozenset(prompt.documents), prompt.suffix))
    ((_, documents, _),) = outcomes
    assert all("Source: nike.pdf" in each for each in documents)
