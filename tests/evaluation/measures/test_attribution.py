"""Attribution of an answer to a document."""

from ragbias_eval.metrics import find_source


def test_source_is_the_only_document_that_may_be_it():
    documents = ["The owl is brass.", "The owl lives in Kiel.", "A tin whale, and more brass."]
    assert find_source(" The owl is brass. ", documents, "What is the owl?") == 0
    assert find_source("Tin whale", documents, "What?") == 2
    assert find_source("brass", documents, "What?") is None  # two hold it
    assert find_source("It is in the city of Kiel", documents, "Where is the owl?") is None  # fewer than half its words
    assert find_source("It lives near Kiel", documents, "Where is the owl?") == 1
    assert find_source("bras", documents, "What?") is None
    assert find_source(" .", documents, "What?") is None
