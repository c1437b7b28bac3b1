"""A document that the edge of the context cut off is accepted if it was named and half of it is left."""

from ragbias.boundaries import Registry, locate
from support.flat_prompts import LIBRARY, LONG, STATION


def test_a_document_cut_at_the_end_is_accepted_from_a_run():
    context = "\n\n".join([STATION, LIBRARY, LONG])[: len(STATION) + len(LIBRARY) + 4 + int(0.7 * len(LONG))]
    text = f"Context: {context}\n\nQuestion: which?"
    found = locate(text, run=[[STATION, LIBRARY, LONG]])
    assert found.n_found == 3
    assert text[found.spans[2][0] : found.spans[2][1]] == context[len(STATION) + len(LIBRARY) + 4 :].strip()
    assert "cut off" in found.reason
    registry = Registry()
    registry.add([STATION, LIBRARY, LONG])
    assert locate(text, registry=registry).n_found == 2


def test_a_document_cut_at_the_beginning_is_accepted():
    text = f"Context: {LONG[200:]}\n\n{STATION}\n\n{LIBRARY}\n\nQuestion: which?"
    found = locate(text, artifacts=[[LONG, STATION, LIBRARY]])
    assert [text[begin:end] for begin, end in found.spans] == [LONG[200:].strip(), STATION, LIBRARY]


def test_less_than_half_of_a_document_is_not_accepted():
    text = f"Context: {STATION}\n\n{LIBRARY}\n\n{LONG[: len(LONG) // 3]}\n\nQuestion: which?"
    assert locate(text, run=[[STATION, LIBRARY, LONG]]).n_found == 2
