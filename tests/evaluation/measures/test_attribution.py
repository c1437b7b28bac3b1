"""Attribution of an answer to a document."""

from ragbias.evaluation.measures.metrics import source


def test_source_is_the_only_document_that_may_be_it():
    documents = ["The owl is brass.", "The owl lives in Kiel.", "A tin whale, and more brass."]
    assert source(" The owl is brass. ", documents, "What is the owl?") == 0
    assert source("Tin whale", documents, "What?") == 2
    assert source("brass", documents, "What?") is None  # two hold it
    assert source("It is in the city of Kiel", documents, "Where is the owl?") is None  # fewer than half its words
    assert source("It lives near Kiel", documents, "Where is the owl?") == 1
    assert source("bras", documents, "What?") is None
    assert source(" .", documents, "What?") is None
