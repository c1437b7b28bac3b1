import pytest

import ragbias.boundaries
from ragbias.boundaries import Registry, locate
from ragbias.errors import RagBiasError
from support.prompts import BRIDGE, LIBRARY, STATION, known_to, prompt, spans_of


def test_explicit_documents_are_found_in_the_prompts_order():
    text = prompt(BRIDGE, STATION, LIBRARY)
    found = locate(text, documents=[STATION, BRIDGE, LIBRARY])
    assert found.spans == spans_of(text, STATION, BRIDGE, LIBRARY)
    assert (found.source, found.n_expected, found.n_found, found.reason) == ("documents", 3, 3, "")


@pytest.mark.parametrize("source", ["documents", "artifacts", "run"])
def test_every_naming_source_finds_them(source):
    text = prompt(STATION, BRIDGE, LIBRARY)
    found = locate(text, **known_to(source, [STATION, BRIDGE, LIBRARY]))
    assert found.spans == spans_of(text, STATION, BRIDGE, LIBRARY)
    assert found.source == {"artifacts": "artifact"}.get(source, source)


def test_the_first_source_with_a_document_in_the_prompt_wins():
    text = prompt(STATION, BRIDGE)
    registry = Registry()
    registry.add([STATION, BRIDGE])
    found = locate(
        text, documents=["not there at all"], artifacts=[["neither this"]], run=[[STATION, BRIDGE]], registry=registry
    )
    assert found.source == "run"
    assert found.spans == spans_of(text, STATION, BRIDGE)
    assert "1 documents given explicitly" in found.reason


def test_nothing_found_is_reported_without_any_text():
    found = locate(prompt(STATION), documents=["a secret text"], run=[["another secret text"]], registry=Registry())
    assert (found.spans, found.source, found.n_expected, found.n_found) == ((), "none", 1, 0)
    assert found.reason
    assert "secret" not in found.reason


@pytest.mark.parametrize(
    ("retrieved", "reason"),
    [([], "none were retrieved recently"), ([BRIDGE], "no recent retrieval was recognised")],
)
def test_a_retrieval_outside_the_prompt_is_not_reported_missing(retrieved, reason):
    registry = Registry()
    registry.add(retrieved)
    found = locate(prompt(BRIDGE.upper()), registry=registry)
    assert (found.source, found.n_found, found.n_expected) == ("none", 0, 0)
    assert reason in found.reason


def test_an_empty_list_means_that_there_are_no_documents():
    registry = Registry()
    registry.add([STATION, BRIDGE])
    found = locate(prompt(STATION, BRIDGE), documents=[], registry=registry)
    assert (found.spans, found.source) == ((), "documents")
    assert found.reason


def test_a_missing_document_is_counted():
    found = locate(prompt(STATION, BRIDGE), documents=[STATION, LIBRARY, BRIDGE])
    assert (found.n_expected, found.n_found) == (3, 2)
    assert "1 of the 3" in found.reason


def test_empty_documents_are_counted_as_missing():
    found = locate(prompt(STATION, BRIDGE), documents=[STATION, "  \n", BRIDGE])
    assert (found.n_expected, found.n_found) == (3, 2)


@pytest.mark.parametrize("error", [TypeError, RagBiasError])
def test_arguments_of_the_wrong_type_are_errors_of_both_kinds(error):
    with pytest.raises(error, match="list"):
        locate(prompt(STATION), documents=STATION)
    with pytest.raises(error, match="int 3"):
        locate(prompt(STATION), documents=[3])
    with pytest.raises(error, match="NoneType"):
        locate(None)
    with pytest.raises(error, match="int 3"), ragbias.boundaries.documents(3):
        pass
