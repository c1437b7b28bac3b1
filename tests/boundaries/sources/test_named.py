"""Documents that are named for all prompts of a block."""

import ragbias.boundaries
from ragbias.boundaries import locate
from support.flat_prompts import BRIDGE, LIBRARY, STATION, prompt


def test_the_block_names_the_documents_of_plain_code():
    text = prompt(STATION, BRIDGE)
    assert locate(text).source == "none"
    with ragbias.boundaries.documents([STATION, BRIDGE]):
        assert locate(text).source == "documents"
        assert locate(text).n_found == 2
        with ragbias.boundaries.documents([LIBRARY]):
            assert ragbias.boundaries.current_documents() == (LIBRARY,)
            assert locate(text, documents=[STATION]).n_expected == 1
        assert ragbias.boundaries.current_documents() == (STATION, BRIDGE)
    assert ragbias.boundaries.current_documents() is None
