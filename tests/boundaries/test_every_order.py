"""The segments are the same in every order, or the report gives a reason."""

import itertools
import json
import random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ragbias import Prompt
from ragbias.boundaries import locate
from ragbias.boundaries.sources import KnownText
from ragbias.errors import AmbiguousSegmentsError
from support.random_templates import LONGER, documents, named, outcome, template

SEEDS = st.integers(0, 10**9)


def clean_outcomes(seed: int) -> set:
    rng = random.Random(seed)
    printed, texts, source = template(rng), documents(rng), rng.choice(["run", "documents"])
    names = named(texts, rng.random() < 0.6)
    orders = itertools.permutations(texts)
    return {outcome(printed.prompt(order), rng.sample(names, len(names)), source) for order in orders} - {None}


@given(SEEDS)
@settings(max_examples=400, deadline=None)
@example(311)
@example(359)
@example(4323)
@example(13522)
@example(42115713)
@example(141056709)
@example(295344267)
def test_segments_of_a_clean_report_are_equal_in_every_order(seed):
    assert len(clean_outcomes(seed)) <= 1


def test_most_prompts_have_a_clean_report():
    assert sum(bool(clean_outcomes(seed)) for seed in range(200)) > 140


def segments(text, texts):
    found = locate(text, run=[texts])
    assert (found.n_found, found.reason) == (len(texts), "")
    prompt = Prompt.from_text(text, found.spans)
    return prompt.prefix, frozenset(prompt.documents), prompt.suffix


@pytest.mark.parametrize("write", [json.dumps, str], ids=["json", "python"])
@pytest.mark.parametrize("ending", ["\n", "\r\n", "\u00a0", " "], ids=["line", "crlf", "no-break", "blank"])
@pytest.mark.parametrize("beginning", ["", "\n", "  "], ids=["bare", "line", "blanks"])
def test_a_printed_list_is_split_alike_for_any_documents(write, ending, beginning):
    texts = ["The falcon is red." + ending, beginning + "Two herons stand.", "An owl's asleep."]
    prompts = [f"Context: {write(list(order))}\n\nWhich?" for order in itertools.permutations(texts)]
    assert len({segments(text, texts) for text in prompts}) == 1


@pytest.mark.parametrize("header", ["### {}\n", "### {}\n\n", "--- {}\n", "### {}\nSource: a.txt\n"])
@pytest.mark.parametrize("separator", ["\n\n", "\n", "\n---\n", "\n\n---\n\n"])
@pytest.mark.parametrize("titles", [["Owls", ""], ["Owls", "Gates", ""], ["Owls", "", ""]])
@pytest.mark.parametrize("known", [True, False])
def test_a_heading_with_an_empty_title_stays_a_heading(header, separator, titles, known):
    texts = dict(zip(LONGER, titles, strict=False))
    named = [KnownText.of(text, {"title": title}) if known else text for text, title in texts.items()]
    blocks = [header.format(title) + text for text, title in texts.items()]
    outcomes = {
        outcome("Context:\n\n" + separator.join(order) + "\n\nQuestion: which?", named, "run")
        for order in itertools.permutations(blocks)
    }
    (split,) = outcomes
    if "\n\n" in header and "\n\n" not in separator:
        assert split is None
    else:
        assert all(any(block in document for document in split[1]) for block in blocks)


@pytest.mark.parametrize("separator", ["\n\n", "\n", "\n---\n", "\n\n---\n\n"])
@pytest.mark.parametrize("ending", ["\n", "\r\n", "\n\n"], ids=["line", "crlf", "lines"])
def test_segments_exclude_a_line_break_only_some_documents_have(separator, ending):
    texts = ["The falcon is red." + ending, "Two herons stand.", "An owl is asleep."]
    for write in (str, str.strip):
        prompts = [
            "Context: " + separator.join(map(write, order)) + "\n\nQuestion: which?"
            for order in itertools.permutations(texts)
        ]
        ((prefix, found, suffix),) = {segments(text, texts) for text in prompts}
        assert {document.strip("\n-") for document in found} == {text.strip() for text in texts}
        assert (prefix, suffix.strip()) == ("Context: ", "Question: which?")


def test_what_every_document_ends_with_stays():
    texts = ["The falcon is red.\n", "Two herons stand.\n", "An owl is asleep.\n"]
    text = "Context: " + "\n".join(texts) + "\nQuestion: which?"
    prompt = Prompt.from_text(text, locate(text, run=[texts]).spans)
    assert (prompt.text, prompt.documents[0]) == (text, texts[0] + "\n")


def test_ambiguous_white_space_is_refused_with_a_remedy():
    texts = ["The falcon is red.\n", "Two herons stand."]
    text = "Context: " + " ".join(texts) + " Which?"
    with pytest.raises(AmbiguousSegmentsError, match="strip the documents"):
        Prompt.from_text(text, locate(text, run=[texts]).spans)


def test_a_short_document_that_may_be_elsewhere_is_refused():
    texts = ["7", "The falcon is red."]
    text = "Read:\n\nTitle: 7\nThe falcon is red.\n\nTitle: Owls\n7\n\nWhich?"
    found = locate(text, run=[texts])
    assert found.spans == ()
    assert "cannot be distinguished" in found.reason


@pytest.mark.parametrize("source", ["run", "documents", "registry"])
@pytest.mark.parametrize("write", [json.dumps, lambda text: json.dumps({"context": text})], ids=["text", "record"])
@pytest.mark.parametrize("separator", ["\n\n", "\n", "\r\n\r\n"], ids=["blank line", "line", "crlf"])
@pytest.mark.parametrize("count", [2, 3])
def test_joined_documents_are_found_in_a_context_in_json(source, write, separator, count):
    texts = ["The falcon is red.", "Two herons stand.", "- an owl\n- a rook"][-count:]
    outcomes = {
        outcome(f"Result: {write(separator.join(order))}\n\nWhich?", texts, source)
        for order in itertools.permutations(texts)
    }
    (found,) = outcomes
    assert len(found[1]) == count
