"""Documents are found in the context, not in other documents or in the question."""

from ragbias.boundaries import locate
from support.prompts import BRIDGE, LIBRARY, STATION, prompt


def test_a_text_retrieved_twice_gives_two_spans():
    text = prompt(STATION, LIBRARY, STATION)
    found = locate(text, documents=[STATION, STATION, LIBRARY])
    assert [text[begin:end] for begin, end in found.spans] == [STATION, LIBRARY, STATION]


def test_a_document_inside_another_is_not_found_there():
    inner = "It has four platforms."
    text = prompt(STATION, inner, LIBRARY)
    found = locate(text, documents=[inner, STATION, LIBRARY])
    assert [text[begin:end] for begin, end in found.spans] == [STATION, inner, LIBRARY]
    alone = locate(prompt(STATION, LIBRARY), documents=[inner, STATION, LIBRARY])
    assert alone.n_found == 2


def test_a_document_quoted_in_the_question_is_found_in_context():
    text = prompt(STATION, LIBRARY, BRIDGE, question=f"Is it true that {LIBRARY}")
    found = locate(text, documents=[STATION, BRIDGE, LIBRARY])
    assert [text[begin:end] for begin, end in found.spans] == [STATION, LIBRARY, BRIDGE]
    assert found.spans[-1][1] < text.index("Question")
