"""Documents that are named for a block of code."""

import threading
from contextvars import copy_context

import pytest

import ragbias.boundaries
from ragbias.boundaries import locate
from ragbias.errors import WrongTypeError
from support.prompts import BRIDGE, LIBRARY, STATION, prompt


def test_the_block_names_the_documents_of_plain_code():
    text = prompt(STATION, BRIDGE)
    assert locate(text).source == "none"
    with ragbias.boundaries.documents([STATION, BRIDGE]):
        assert locate(text).source == "documents"
        assert locate(text).n_found == 2
        with ragbias.boundaries.documents([LIBRARY]):
            assert ragbias.boundaries.sources.current_documents() == (LIBRARY,)
            assert locate(text, documents=[STATION]).n_expected == 1
        assert ragbias.boundaries.sources.current_documents() == (STATION, BRIDGE)
    assert ragbias.boundaries.sources.current_documents() is None


def test_a_block_that_is_left_in_another_context_is_over():
    def pieces():
        with ragbias.boundaries.documents([LIBRARY]):
            yield ragbias.boundaries.sources.current_documents()

    with ragbias.boundaries.documents([STATION]):
        reading = pieces()
        assert next(reading) == (LIBRARY,)
        thread = threading.Thread(target=reading.close)
        thread.start()
        thread.join()
        assert ragbias.boundaries.sources.current_documents() == (STATION,)
    assert ragbias.boundaries.sources.current_documents() is None


def test_what_began_in_a_block_keeps_its_documents():
    with ragbias.boundaries.documents([STATION]):
        begun = copy_context()
    assert begun.run(ragbias.boundaries.sources.current_documents) == (STATION,)


@pytest.mark.parametrize(
    ("documents", "named"),
    [
        (5, "got int 5;"),
        (True, "got bool True;"),
        (None, "got NoneType;"),
        ("text", "got str;"),
        ({"a": "text"}, "got dict;"),
    ],
)
def test_documents_that_are_no_list_are_refused_by_name(documents, named):
    with pytest.raises(WrongTypeError, match=named), ragbias.boundaries.documents(documents):
        pass


@pytest.mark.parametrize(("document", "named"), [(5, "got int 5$"), (None, "got NoneType$"), (b"text", "got bytes$")])
def test_a_document_without_a_text_is_refused_by_name(document, named):
    with pytest.raises(WrongTypeError, match=named), ragbias.boundaries.documents([document]):
        pass
