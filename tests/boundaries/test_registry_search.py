"""The registry finds whole documents of recent retrievals in a prompt, and no chance matches."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragbias.boundaries import locate
from ragbias.boundaries.locating import WITHIN_TEXT
from ragbias.boundaries.sources import KnownText
from ragbias.generation.preparing import split_located
from support.prompts import INVOICE_17, INVOICE_99, TERMS, found_texts, prompt, registry_of
from support.random_templates import outcome


def test_a_retrieval_is_found_in_the_prompt():
    text = prompt(INVOICE_17, TERMS)
    found = locate(text, registry=registry_of([TERMS, INVOICE_17]))
    assert [text[begin:end] for begin, end in found.spans] == [INVOICE_17, TERMS]
    assert (found.source, found.n_expected, found.n_found, found.reason) == ("registry", 2, 2, "")


def test_no_fragment_is_ever_found():
    registry = registry_of([INVOICE_99, INVOICE_99 + " Signed.", "Invoice 99", "Invoice 1", "250 euros"])
    assert found_texts(prompt(INVOICE_17, TERMS, question="What about Invoice 99?"), registry=registry) == []


@given(st.lists(st.integers(0, 20), min_size=2, max_size=4, unique=True), st.integers(0, 20), st.data())
def test_only_whole_remembered_texts_are_found(numbers, other, data):
    texts = [f"Invoice {number}: the total is {number * 7} euros, due on day {number} of May." for number in range(21)]
    registry = registry_of(texts[:10], texts[10:])
    cut = data.draw(st.integers(1, len(texts[other]) - 1))
    fragment = data.draw(st.sampled_from([texts[other][:cut], texts[other][cut:]]))
    text = prompt(*(texts[number] for number in numbers), fragment, question=f"Is it {fragment}?")
    assert all(found in texts for found in found_texts(text, registry=registry))
    assert found_texts(prompt(fragment, fragment), registry=registry) == []


def test_a_text_that_ends_within_a_number_is_not_found():
    registry = registry_of(["See the invoice 1", "ayment terms"])
    assert found_texts(f"See the invoice 17\n\n{TERMS}\n\nWhat?", registry=registry) == []


def test_unrelated_earlier_retrievals_do_not_disturb():
    registry = registry_of([f"An unrelated text, number {number}." for number in range(40)], [INVOICE_17, TERMS])
    registry.add([INVOICE_99, "Another unrelated text."])
    assert found_texts(prompt(INVOICE_17, TERMS), registry=registry) == [INVOICE_17, TERMS]


@pytest.mark.parametrize("question", [f"Is this right: {INVOICE_99}", INVOICE_99])
@pytest.mark.parametrize(
    "retrievals", [[[INVOICE_99, "Not here."], [INVOICE_17, TERMS]], [[INVOICE_17, TERMS, INVOICE_99]]]
)
def test_a_question_quoting_another_document_is_refused(question, retrievals):
    text = prompt(INVOICE_17, TERMS, question=question)
    split = split_located(text, locate(text, registry=registry_of(*retrievals)))
    parts, reason = split.parts, split.why_unsplit
    assert (parts.documents, "cannot be distinguished" in reason) == ((), True)
    named = locate(text, registry=registry_of(*retrievals), segmenter=lambda text: [INVOICE_17, TERMS])
    assert len(split_located(text, named).parts.documents) == 2


def test_a_lone_text_inside_the_question_is_not_taken():
    assert (
        found_texts(prompt(question=f"Is this right: {INVOICE_99}?"), registry=registry_of([INVOICE_99, TERMS])) == []
    )


LABELS = [
    "Document: {}", "Retrieved doc:\n{}", "**Context:** {}", "<document>{}</document>",
    '<doc source="a.txt">{}</doc>', "Set of facts: \n\n {} ", "- {}", "* {}\n", "Passage (1 of 4): {}",
    "Document (wifi.txt): {}", "**Source 1 (a.txt):** {}", "1. {}", "[1] {}",
]  # fmt: skip


@pytest.mark.parametrize("label", LABELS)
def test_one_document_after_a_label_or_in_a_tag_is_found(label):
    text = f"Is it relevant?\n{label.format(INVOICE_17)}\nQuestion: Which total?"
    found = locate(text, registry=registry_of([INVOICE_17, TERMS, INVOICE_99]))
    assert (found.source, found.n_found, found.n_expected, found.reason) == ("registry", 1, 1, "")


@pytest.mark.parametrize("label", ["{}", *LABELS])
@pytest.mark.parametrize(
    "other", [f"{TERMS[:40]}...", TERMS.upper(), TERMS.replace(" ", "  "), TERMS.replace(" ", "\n")]
)
def test_one_whole_document_beside_rewritten_ones_is_not_taken(label, other):
    context = label.format(f"{INVOICE_17}\n\n{other}")
    text = f"Is it relevant?\n{context}\nQuestion: Which total?"
    assert found_texts(text, registry=registry_of([INVOICE_17, TERMS, INVOICE_99])) == []


@pytest.mark.parametrize("source", ["registry", "run", "artifacts"])
@pytest.mark.parametrize("known", [[INVOICE_17], [INVOICE_17, TERMS]])
@pytest.mark.parametrize(
    "label",
    ["Document: {}", "Doc:\n{}", "<doc>{}</doc>", "- {}", "Passage ({n} of 4): {}", "[{n}] Text: {}", "{n}. {}"],
)
def test_unknown_documents_with_the_same_label_are_refused(label, known, source):
    for order in itertools.permutations([*known, "Pay in time.", "Or later."]):
        context = "\n".join(label.format(text, n=n) for n, text in enumerate(order, 1))
        given = {"registry": registry_of(known)} if source == "registry" else {source: [known]}
        found = locate(f"Is it relevant?\n{context}\nQuestion: Which total?", **given)
        assert (found.source, found.spans, found.n_expected) == ("none", (), len(known) + 1)
        assert "the label of the known documents also precedes other text" in found.reason


@pytest.mark.parametrize("texts", [["a", "b"], [" ", "\n\n"], ["is", "the"], ["What", "Context"]])
def test_short_or_empty_texts_are_never_found(texts):
    assert found_texts(prompt(INVOICE_17, TERMS), registry=registry_of(texts, *[[text] for text in texts])) == []


def test_short_texts_are_found_beside_long_ones_in_any_order():
    for order in itertools.permutations([INVOICE_17, "Paid.", TERMS, "Yes"]):
        text = prompt(*order, question="Paid? Yes or no?")
        found = locate(text, registry=registry_of([INVOICE_17, "Paid.", TERMS, "Yes"]))
        assert [text[begin:end] for begin, end in found.spans] == list(order)
        assert (found.n_expected, found.n_found) == (4, 4)


def test_a_short_text_that_only_the_question_holds_is_not_taken():
    text = prompt(INVOICE_17, TERMS, question="Is 250 due?")
    assert found_texts(text, registry=registry_of([INVOICE_17, "due", TERMS, "Is"])) == [INVOICE_17, TERMS]


def test_merged_results_of_two_retrievers_are_found_together():
    registry = registry_of([INVOICE_17, TERMS, "A third text, not used."], [INVOICE_99, "A fourth one, not used."])
    texts = [INVOICE_17, INVOICE_99, TERMS]
    assert found_texts(prompt(*texts), registry=registry) == texts


def test_texts_registered_one_by_one_are_found_together():
    registry = registry_of([INVOICE_17], [TERMS], [INVOICE_99])
    assert found_texts(prompt(INVOICE_17, INVOICE_99, TERMS), registry=registry) == [INVOICE_17, INVOICE_99, TERMS]


def test_parents_win_over_the_parts_that_were_searched():
    parts = [INVOICE_17[:24], INVOICE_17[24:], TERMS[:20], TERMS[20:]]
    assert found_texts(prompt(INVOICE_17, TERMS), registry=registry_of(parts, [INVOICE_17, TERMS])) == [
        INVOICE_17,
        TERMS,
    ]


def test_a_text_retrieved_twice_is_found_twice():
    text = prompt(TERMS, INVOICE_17, TERMS)
    assert found_texts(text, registry=registry_of([TERMS, INVOICE_17, TERMS])) == [TERMS, INVOICE_17, TERMS]
    found = locate(text, registry=registry_of([TERMS, INVOICE_17]))
    assert (found.spans, "pass a segmenter=" in found.reason) == ((), True)


@pytest.mark.parametrize(
    ("item", "suffix", "texts"),
    [
        ("{} [{}]", "\n\nWhich?", ["* bullet one", "The sun rose.", 'It\'s "quoted".', 'It\'s "quoted".']),
        ("{}\n({})", "\n\nWhich?", ["The contract ends in May.", "Owls hunt at night.", "Note: see above.", "2"]),
        ("- {}", "``` and which?", ["The gate of the mill is red.", "The wall is blue.", "-"]),
        (
            "{}",
            "\u554f\u3044",
            [
                "\u6771\u4eac\u306f\u65e5\u672c\u306e\u9996\u90fd",
                "\u4eba\u53e3\u306f\u7d041400\u4e07\u4eba",
                "\u5317\u4eac\u306f\u4e2d\u56fd\u306e\u9996\u90fd",
            ],
        ),
    ],
    ids=["equal texts", "short", "a sign", "beside other letters"],
)
def test_documents_that_some_orders_hide_are_reported(item, suffix, texts):
    named = list(zip(texts, ["a.txt", "docs/b.md", "https://x.org/1", "c.txt"], strict=False))
    prompts = [
        "Context:\n" + "\n\n".join(item.format(*each) for each in order) + suffix
        for order in itertools.permutations(named)
    ]
    known = [KnownText.of(text, {"source": source}) for text, source in named]
    assert len({outcome(text, known, "registry") for text in prompts} - {None}) <= 1


def test_a_text_that_only_another_document_holds_is_not_missing():
    texts = ["The gate is red. Owls hunt.", "Owls hunt.", "The wall is blue."]
    text = f"Context:\n{texts[0]}\n\n{texts[2]}\n\nQuestion: which?"
    found = locate(text, registry=registry_of(texts))
    assert (found.n_found, found.n_expected, found.reason) == (2, 2, "")


@pytest.mark.parametrize("known", [[INVOICE_17], [INVOICE_17, TERMS]])
def test_documents_beside_those_of_other_contexts_are_refused(known):
    everywhere = registry_of([KnownText(INVOICE_17), KnownText(TERMS), KnownText(INVOICE_99)])
    for order in itertools.permutations([INVOICE_17, TERMS, INVOICE_99]):
        registry = registry_of(known)
        registry.everywhere = everywhere
        found = locate(prompt(*order), registry=registry)
        assert (found.source, found.n_found, found.n_expected) == ("none", 0, 3)
        assert "another thread or task" in found.reason
        assert locate(prompt(*order), documents=order, registry=registry).n_found == 3
        assert locate(prompt(*known), registry=registry).n_found == len(known)
        alone = prompt(*known, question=f"It is.<|im_end|>\n<|im_start|>user\n{INVOICE_99}")
        assert locate(alone, registry=registry).n_found == len(known)


def test_a_list_partly_in_another_message_is_not_recognised():
    text = f"<|im_start|>user\n{INVOICE_99}\n\n{TERMS}<|im_end|>\n<|im_start|>user\n{INVOICE_17}<|im_end|>\n"
    found = locate(text, registry=registry_of([KnownText.of(TERMS, {"title": "Terms"})], [INVOICE_17, INVOICE_99]))
    assert (found.source, found.spans, found.n_left_plain, found.reason) == ("none", (), 3, WITHIN_TEXT)


@pytest.mark.parametrize("sep", ["\n", "\n\n"])
@pytest.mark.parametrize("item", ["{} (source: a.pdf)", "{} (score: 0.9)", "**{}**", "- _{}_ "])
def test_documents_whose_lines_end_alike_are_found(item, sep):
    for order in itertools.permutations([INVOICE_17, TERMS, INVOICE_99]):
        text = f"Context:\n{sep.join(map(item.format, order))}\n\nQuestion: Which total?"
        known = [KnownText.of(each, {"source": "a.pdf"}) for each in order]
        split = split_located(text, locate(text, registry=registry_of(known)))
        parts, found, reason = split.parts, split.boundaries, split.why_unsplit
        assert (found.source, found.n_found, len(parts.documents), reason) == ("registry", 3, 3, "")


def test_documents_with_different_scores_are_refused():
    text = f"Context:\n{INVOICE_17} (score: 0.9)\n{TERMS} (score: 0.85)\n\nQuestion: Which total?"
    found = locate(text, registry=registry_of([INVOICE_17, TERMS]))
    assert "put this text before or inside each document" in split_located(text, found).why_unsplit


@pytest.mark.parametrize(
    "text",
    [
        f"Use {INVOICE_17} {TERMS} to answer: Which total?",
        f"Use {INVOICE_17}; {TERMS} to answer: Which total?",
        f"Is it true that {INVOICE_17} and that {TERMS}?",
        f"Is it true that {INVOICE_17}?",
    ],
)
def test_texts_within_other_text_are_reported(text):
    found = locate(text, registry=registry_of([INVOICE_17, TERMS]))
    assert (found.source, found.spans, found.reason) == ("none", (), WITHIN_TEXT)


def test_a_cut_document_beside_a_whole_one_is_reported():
    found = locate(prompt(INVOICE_17, TERMS[:-1]), registry=registry_of([INVOICE_17, TERMS]))
    assert (found.source, found.spans) == ("none", ())
    assert found.reason == "1 of the retrieved documents are in the prompt, but cut or changed"


@pytest.mark.parametrize("sep", ["\n", ", "])
def test_short_texts_of_a_later_message_are_refused(sep):
    first = (
        f"<|im_start|>user\nContext:\n{INVOICE_17}\n{TERMS}\n\nWhich?<|im_end|>\n<|im_start|>assistant\nNo.<|im_end|>\n"
    )
    registry = registry_of([INVOICE_17, TERMS], ["Paid.", "Due."])
    for later in ("", "<|im_start|>user\nIs it Paid. or what?<|im_end|>\n"):
        assert locate(first + later, registry=registry).n_found == 2
    found = locate(f"{first}<|im_start|>user\nContext: Due.{sep}Paid.\n\nWhich?<|im_end|>\n", registry=registry)
    assert (found.source, found.spans, found.n_expected) == ("none", (), 2)
    assert found.reason == "a later message contains retrieved texts that are too short to be recognised"
