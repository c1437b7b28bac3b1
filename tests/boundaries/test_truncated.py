"""A document that is cut off at the edge of the context is missing, with a reason. A segmenter finds it."""

import pytest

from ragbias.boundaries import locate
from support.prompts import LIBRARY, LONG, STATION


@pytest.mark.parametrize("first", [True, False], ids=["at the beginning", "at the end"])
@pytest.mark.parametrize("source", ["documents", "run", "artifacts"])
def test_a_document_cut_off_is_missing_but_a_segmenter_works(source, first):
    texts = [LONG[200:].strip(), STATION, LIBRARY] if first else [STATION, LIBRARY, LONG[:200].strip()]
    text = "Context:\n\n" + "\n\n".join(texts) + "\n\nQuestion: which?"
    known = [STATION, LIBRARY, LONG]
    known = {source: known if source == "documents" else [known]}
    found = locate(text, **known)
    assert [text[begin:end] for begin, end in found.spans] == [STATION, LIBRARY]
    assert found.reason.startswith("1 of the 3 documents")
    found = locate(text, **known, segmenter=lambda text: texts)
    assert (found.source, [text[begin:end] for begin, end in found.spans]) == ("segmenter", texts)
