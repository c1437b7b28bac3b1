"""The set of document segments does not depend on the documents' order."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragbias import DebiasedLM, Prompt
from ragbias.errors import (
    AmbiguousSegmentsError,
    ArgumentError,
    EmptyDocumentError,
    RagBiasError,
    SpanError,
    WrongTypeError,
)
from ragbias.generation.preparing import split_prompt
from ragbias.prompt import FlatText, tokenise, tokenise_whole

TEXTS = ["alpha beta", "gamma\n\ndelta", "epsilon"]
TEMPLATES = [
    ("Context:\n\n", "\n\n", "\n\nQuestion: q"),
    ("Context: ", "\n\n", "\nQuestion: q"),
    ("---\n", "\n\n", "\n---\nQuestion: q"),
    ("", "\n", "\nQ"),
    ("Docs\n\n", "\n\n", ""),
    ("Docs:", " | ", " end"),
    ("Docs: ['", r"\n", "'] end"),
]


def located(prefix, separator, suffix, texts):
    spans, text = [], prefix
    for index, body in enumerate(texts):
        text += separator if index else ""
        spans.append((len(text), len(text) + len(body)))
        text += body
    return text + suffix, spans


@pytest.mark.parametrize("template", TEMPLATES)
@given(order=st.permutations(range(3)))
def test_segments_do_not_depend_on_the_order(template, order):
    prefix, separator, suffix = template
    plain = Prompt.from_text(*located(prefix, separator, suffix, TEXTS))
    moved = Prompt.from_text(*located(prefix, separator, suffix, [TEXTS[index] for index in order]))
    assert (moved.prefix, moved.suffix) == (plain.prefix, plain.suffix)
    assert sorted(moved.documents) == sorted(plain.documents)
    assert moved == plain.reordered(order)
    assert tuple(plain.text[begin:end] for begin, end in plain.spans) == plain.documents


@pytest.mark.parametrize("template", TEMPLATES)
def test_at_most_one_separator_is_added(template):
    prefix, separator, suffix = template
    text, spans = located(prefix, separator, suffix, TEXTS)
    prompt = Prompt.from_text(text, spans)
    given_one = prefix.endswith(separator) or suffix.startswith(separator)
    assert prompt.text == (text if given_one else prefix + separator + text[len(prefix) :])


def test_headers_belong_to_their_document():
    headers = [f"Document [{index}](Title: t) " for index in (1, 2, 3)]
    text = "Read.\n\n" + "\n".join(map("".join, zip(headers, TEXTS, strict=True))) + "\n\nQuestion"
    spans = [(text.index(body), text.index(body) + len(body)) for body in TEXTS]
    prompt = Prompt.from_text(text, spans)
    assert prompt.text == text
    assert prompt.documents == tuple(f"{header}{body}\n" for header, body in zip(headers, TEXTS, strict=True))
    assert (prompt.prefix, prompt.suffix) == ("Read.\n\n", "\nQuestion")


@given(order=st.permutations(range(3)))
def test_headers_of_several_lines_belong_to_their_document(order):
    def prompt(indices):
        blocks = [f"<doc>\nTitle: T{index}\n{TEXTS[index]}" for index in indices]
        text = "Read these.\n\n" + "\n\n".join(blocks) + "\nQuestion"
        spans = [(text.index(TEXTS[index]), text.index(TEXTS[index]) + len(TEXTS[index])) for index in indices]
        return text, Prompt.from_text(text, spans)

    (text, plain), (_, moved) = prompt(range(3)), prompt(order)
    assert plain.text == text
    assert moved == plain.reordered(order)


@pytest.mark.parametrize("footer", ["\nSource: {}", " [Source: {}]"])
@pytest.mark.parametrize("count", [2, 3])
def test_footers_are_refused_as_the_last_one_is_ambiguous(footer, count):
    text = "Context:\n" + "\n\n".join(TEXTS[i] + footer.format(f"S{i}") for i in range(count)) + "\n\nQuestion"
    spans = [(text.index(body), text.index(body) + len(body)) for body in TEXTS[:count]]
    with pytest.raises(AmbiguousSegmentsError, match="footer"):
        Prompt.from_text(text, spans)


@pytest.mark.parametrize(
    ("spans", "error", "words"),
    [
        ([(0, 4), (3, 6)], SpanError, r"spans \(0, 4\) and \(3, 6\) overlap"),
        ([(0, 4), (5, 90)], SpanError, r"span \(5, 90\) lies outside the prompt of length 14"),
        ([(3, 3)], EmptyDocumentError, r"span \(3, 3\) is empty"),
    ],
)
def test_spans_that_make_no_sense(spans, error, words):
    with pytest.raises(error, match=words):
        Prompt.from_text("some text here", spans)


@pytest.mark.parametrize("error", [TypeError, RagBiasError])
def test_parts_must_be_strings(error):
    with pytest.raises(error, match="documents='not a list'; expected a list of strings"):
        Prompt("a", "not a list", "b")
    with pytest.raises(error, match="document 0 of 1 is 1; expected a string"):
        Prompt("a", [1], "b")
    with pytest.raises(error, match="documents=None; expected a list of strings"):
        Prompt("a", None, "b")
    with pytest.raises(error, match="the prompt is None; expected a string"):
        Prompt.from_text(None, [])


def test_only_strings_have_tokens(lm):
    for wrong in (None, 5, b"x"):
        with pytest.raises(WrongTypeError, match=f"the text is {wrong!r}; expected a string"):
            lm.token_ids(wrong)


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("prefix", ["Read.\n", "Read: "])
def test_tags_around_each_document_stay_with_it(prefix, count):
    text = prefix + "\n".join(f"<doc>\n{body}\n</doc>" for body in TEXTS[:count]) + "\nQuestion"
    spans = [(text.index(body), text.index(body) + len(body)) for body in TEXTS[:count]]
    prompt = Prompt.from_text(text, spans)
    assert prompt.text == text
    assert all(
        document.strip() == f"<doc>\n{body}\n</doc>"
        for document, body in zip(prompt.documents, TEXTS[:count], strict=True)
    )
    assert (
        len({document.replace(body, "") for document, body in zip(prompt.documents, TEXTS[:count], strict=True)}) == 1
    )


@pytest.mark.parametrize("prefix", ["Read.\n\n", "Context: "])
@pytest.mark.parametrize("header", ["[{}] ", "({}) ", "Document [{}](Title: T{}) "])
def test_numbered_headers_may_begin_within_a_line(prefix, header):
    blocks = [header.format(number, number) + body for number, body in enumerate(TEXTS, 1)]
    text = prefix + "\n\n".join(blocks) + "\n\nQuestion"
    spans = [(text.index(body), text.index(body) + len(body)) for body in TEXTS]
    prompt = Prompt.from_text(text, spans)
    assert (prompt.text, prompt.prefix) == (text, prefix)
    assert prompt.documents == tuple(f"{block}\n\n" for block in blocks)


def test_tokens_do_not_depend_on_the_position_and_have_one_bos(byte_tokenizer):
    prompt = Prompt("Context:", [" aé", " bb\n", "cc "], "Q")
    tokens, moved = (tokenise(each, byte_tokenizer) for each in (prompt, prompt.reordered([2, 0, 1])))
    assert moved.documents == [tokens.documents[2], tokens.documents[0], tokens.documents[1]]
    assert tokens.ids.count(1) == moved.ids.count(1) == 1
    assert tokens.ids[0] == 1
    assert [tokens.ids[slice(*span)] for span in tokens.spans] == tokens.documents
    with_bos = tokenise(Prompt("<s>Context:", ["x", "y"], "Q"), byte_tokenizer)
    assert with_bos.ids.count(1) == 1


def test_a_whole_text_keeps_its_tokens_each_in_one_part():
    tokenizer = DebiasedLM.from_pretrained("tiny").tokenizer
    text, spans = "Context: The gate is red. The wall is tall which?", [(9, 25), (26, 42)]
    for prompt, moved in ((text, 0), ("<s>" + text, 3)):
        whole = tokenise_whole(FlatText(prompt, [(begin + moved, end + moved) for begin, end in spans]), tokenizer)
        assert whole.ids == tokenizer(text)["input_ids"]
        assert [tokenizer.decode(ids) for ids in whole.documents] == ["The gate is red. ", "The wall is tall "]
        assert tokenizer.decode(whole.suffix) == "which?"
    assert tokenise_whole(FlatText(text, []), tokenizer).ids == whole.ids


@pytest.mark.parametrize("order", [[0, 0], [0], [1, 2], 1])
def test_an_order_without_each_document_once_is_refused(order):
    with pytest.raises(ArgumentError, match="expected each index below 2 once"):
        Prompt("", ["a", "b"], "").reordered(order)


def test_boundaries_of_another_type_are_refused():
    with pytest.raises(WrongTypeError, match=r"boundaries=5; expected the result of ragbias.boundaries.locate"):
        split_prompt("a b", None, 5)


def test_half_a_surrogate_pair_is_refused(lm):
    one, two, half = "one text\n", "two texts\n", "ab\udc80"
    refusals = {
        "the prompt": lambda: lm.generate(half),
        "the prefix": lambda: Prompt(half, [one, two], "Q"),
        "document 1 of 2": lambda: lm.stream(f"{one}\n{half}\n\nQ", documents=[one.strip(), half]),
        "the suffix": lambda: lm.batch([Prompt("", [one, two], half)]),
        "the continuation": lambda: lm.score("Q", half),
        "the text": lambda: lm.token_ids(half),
    }
    for name, call in refusals.items():
        with pytest.raises(ArgumentError, match=rf"^{name} contains '\\udc80', half .* at character 2; expected text"):
            call()
