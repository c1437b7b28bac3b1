import pytest

import ragbias.boundaries
from ragbias import Prompt
from ragbias.boundaries import Registry, locate
from ragbias.errors import RagBiasError

A = "The Falcon Station opened in 1901. It has four platforms."
B = "The Heron Bridge is 300 metres long.\n\nIt was painted green."
C = "The Otter Library lends twelve thousand books."
LONG = "Chapter one. " + " ".join(f"sentence {number}" for number in range(60))


def spans_of(text: str, *documents: str) -> tuple[tuple[int, int], ...]:
    return tuple(sorted((text.index(document), text.index(document) + len(document)) for document in documents))


def prompt(*documents: str, separator: str = "\n\n", question: str = "Which is green?") -> str:
    return f"Use the context.\n\nContext: {separator.join(documents)}\n\nQuestion: {question}\nAnswer:"


def test_explicit_documents_are_found_in_the_order_of_the_prompt():
    text = prompt(B, A, C)
    found = locate(text, documents=[A, B, C])
    assert found.spans == spans_of(text, A, B, C)
    assert (found.source, found.n_expected, found.n_found, found.reason) == ("documents", 3, 3, "")


@pytest.mark.parametrize("source", ["documents", "artifacts", "run"])
def test_every_naming_source_finds_them(source):
    text = prompt(A, B, C)
    found = locate(text, **{source: [A, B, C]})
    assert found.spans == spans_of(text, A, B, C)
    assert found.source == {"artifacts": "artifact"}.get(source, source)


def test_the_first_source_that_stands_in_the_prompt_wins():
    text = prompt(A, B)
    registry = Registry()
    registry.add([A, B])
    found = locate(text, documents=["not there at all"], artifacts=["neither this"], run=[A, B], registry=registry)
    assert found.source == "run"
    assert found.spans == spans_of(text, A, B)
    assert "1 documents given explicitly" in found.reason


def test_nothing_found_says_so_without_any_text():
    found = locate(prompt(A), documents=["a secret text"], run=["another secret text"], registry=Registry())
    assert (found.spans, found.source, found.n_expected, found.n_found) == ((), "none", 1, 0)
    assert found.reason
    assert "secret" not in found.reason


def test_an_empty_list_says_that_there_are_no_documents():
    registry = Registry()
    registry.add([A, B])
    found = locate(prompt(A, B), documents=[], registry=registry)
    assert (found.spans, found.source) == ((), "documents")
    assert found.reason


def test_a_missing_document_is_counted():
    found = locate(prompt(A, B), documents=[A, C, B])
    assert (found.n_expected, found.n_found) == (3, 2)
    assert "1 of the 3" in found.reason


def test_a_text_retrieved_twice_gives_two_spans():
    text = prompt(A, C, A)
    found = locate(text, documents=[A, A, C])
    assert [text[begin:end] for begin, end in found.spans] == [A, C, A]


def test_a_document_inside_another_is_not_found_there():
    inner = "It has four platforms."
    text = prompt(A, inner, C)
    found = locate(text, documents=[inner, A, C])
    assert [text[begin:end] for begin, end in found.spans] == [A, inner, C]
    alone = locate(prompt(A, C), documents=[inner, A, C])
    assert alone.n_found == 2


def test_a_document_that_the_question_quotes_is_found_in_its_row():
    text = prompt(A, C, B, question=f"Is it true that {C}")
    found = locate(text, documents=[A, B, C])
    assert [text[begin:end] for begin, end in found.spans] == [A, C, B]
    assert found.spans[-1][1] < text.index("Question")


def test_a_document_that_only_the_question_quotes_is_not_taken():
    text = prompt(A, B, question=f"Is it true that {C}?")
    assert locate(text, run=[A, B, C]).spans == spans_of(text, A, B)
    assert locate(text, documents=[A, B, C]).spans == spans_of(text, A, B)


def test_documents_of_another_message_are_not_joined_across_the_border():
    text = (
        f"<|tool|>\n{A}\n\n{B}<|end|>\n<|assistant|>\nSearching again.<|end|>\n<|tool|>\n{C}\n\n{LONG}\n\n{LONG[:90]}"
    )
    text += "<|end|>\n<|user|>\nWell?"
    found = locate(text, artifacts=[A, B, C, LONG, LONG[:90]])
    assert found.spans == (*spans_of(text, C, LONG), (text.rindex(LONG[:90]), text.rindex(LONG[:90]) + 90))
    assert "are apart" in found.reason


def test_titles_between_the_documents_do_not_part_them():
    text = "Results:\n\n" + "\n".join(
        f"Document [{number}](Title: {title}) {document}"
        for number, (title, document) in enumerate([("Station", A), ("Bridge", B), ("Library", C)], 1)
    )
    text += "\n\nQuestion: which?"
    assert locate(text, run=[A, B, C]).spans == spans_of(text, A, B, C)


def test_tags_around_the_documents_do_not_part_them():
    text = "".join(f'<doc id="{number}">\n{document}\n</doc>\n' for number, document in enumerate([A, B, C]))
    assert locate(text + "Which?", run=[A, B]).spans == spans_of(text, A, B)


def test_stripped_documents_are_found():
    text = prompt(A, B, C)
    assert locate(text, documents=[f"\n  {A} \n", f"{B}\n\n\t", C]).n_found == 3


@pytest.mark.parametrize("write", [repr, lambda docs: __import__("json").dumps(docs)], ids=["python", "json"])
def test_documents_in_a_printed_list_are_found(write):
    documents = [B, 'She said "it\'s here"\nand left.', "caf\u00e9\nau lait"]
    text = f"Context: {write(documents)}\nQuestion: who?"
    found = locate(text, documents=documents)
    assert found.n_found == 3
    assert all(text[begin - 1] in "'\"" and text[end] in "'\"" for begin, end in found.spans)


def test_a_document_cut_at_the_end_of_the_context_is_accepted_from_named_sources():
    context = "\n\n".join([A, C, LONG])[: len(A) + len(C) + 4 + int(0.7 * len(LONG))]
    text = f"Context: {context}\n\nQuestion: which?"
    found = locate(text, run=[A, C, LONG])
    assert found.n_found == 3
    assert text[found.spans[2][0] : found.spans[2][1]] == context[len(A) + len(C) + 4 :].strip()
    assert "cut off" in found.reason
    registry = Registry()
    registry.add([A, C, LONG])
    assert locate(text, registry=registry).n_found == 2


def test_a_document_cut_at_the_beginning_of_the_context_is_accepted():
    text = f"Context: {LONG[200:]}\n\n{A}\n\n{C}\n\nQuestion: which?"
    found = locate(text, artifacts=[LONG, A, C])
    assert [text[begin:end] for begin, end in found.spans] == [LONG[200:].strip(), A, C]


def test_less_than_half_of_a_document_is_not_accepted():
    text = f"Context: {A}\n\n{C}\n\n{LONG[: len(LONG) // 3]}\n\nQuestion: which?"
    assert locate(text, run=[A, C, LONG]).n_found == 2


def test_empty_documents_are_counted_as_missing():
    found = locate(prompt(A, B), documents=[A, "  \n", B])
    assert (found.n_expected, found.n_found) == (3, 2)


@pytest.mark.parametrize("error", [TypeError, RagBiasError])
def test_arguments_of_the_wrong_type_are_errors_of_both_kinds(error):
    with pytest.raises(error, match="list"):
        locate(prompt(A), documents=A)
    with pytest.raises(error, match="int"):
        locate(prompt(A), documents=[3])
    with pytest.raises(error, match="NoneType"):
        locate(None)
    with pytest.raises(error, match="int"), ragbias.boundaries.documents(3):
        pass


HEADERS = {
    "number": "[{n}] ",
    "title": "Title: On {n}\n",
    "metadata": "file: {n}.txt\npage: 7\n\n",
    "tag": "<doc>\n",
    "label": "Source:\n",
}


@pytest.mark.parametrize("source", ["documents", "artifacts", "run", "registry", "segmenter"])
@pytest.mark.parametrize("header", HEADERS)
def test_headers_belong_to_the_spans_if_wanted_whatever_found_the_documents(source, header):
    style, footer = HEADERS[header], "\n</doc>" if header == "tag" else ""
    separator = "\n\n\n" if header == "metadata" else "\n\n"
    whole = [style.format(n=number) + text for number, text in enumerate([A, C, A + C], 1)]
    text = "Read.\n\n" + "".join(each + footer + separator for each in whole) + "Question: who?"
    named = [A, C, A + C]
    registry = Registry()
    registry.add(named)
    value = {"registry": registry, "segmenter": lambda text: named}.get(source, named)
    bare = locate(text, **{source: value})
    found = locate(text, **{source: value}, include_headers=True)
    assert [text[begin:end] for begin, end in bare.spans] == named
    assert [text[begin:end] for begin, end in found.spans] == whole
    assert (found.source, found.n_found, found.reason) == (bare.source, 3, "")
    assert Prompt.from_text(text, found.spans) == Prompt.from_text(text, bare.spans)


def test_a_bare_separator_is_no_header():
    for separator in ("\n\n", "\n* ", "\n---\n"):
        text = prompt(A, B, C, separator=separator)
        assert locate(text, run=[A, B, C], include_headers=True).spans == spans_of(text, A, B, C)


def test_where_the_first_header_cannot_be_told_spans_stay_bare_and_the_reason_says_so():
    text = f"Read.\n\n{A}\n\nSee also page two.\n{B}\n\nElsewhere we read:\n{C}\n\nQuestion: who?"
    found = locate(text, documents=[A, B, C], include_headers=True)
    assert found.spans == spans_of(text, A, B, C)
    assert "headers were left out" in found.reason


def test_the_block_names_the_documents_of_plain_code():
    text = prompt(A, B)
    assert locate(text).source == "none"
    with ragbias.boundaries.documents([A, B]):
        assert locate(text).source == "documents"
        assert locate(text).n_found == 2
        with ragbias.boundaries.documents([C]):
            assert ragbias.boundaries.current_documents() == (C,)
            assert locate(text, documents=[A]).n_expected == 1
        assert ragbias.boundaries.current_documents() == (A, B)
    assert ragbias.boundaries.current_documents() is None
