"""Texts are found verbatim, stripped, and escaped as in a printed list."""

import json

import pytest

from ragbias.boundaries import locate
from support.prompts import BRIDGE, LIBRARY, STATION, prompt


def test_stripped_documents_are_found():
    text = prompt(STATION, BRIDGE, LIBRARY)
    assert locate(text, documents=[f"\n  {STATION} \n", f"{BRIDGE}\n\n\t", LIBRARY]).n_found == 3


@pytest.mark.parametrize("write", [repr, json.dumps], ids=["python", "json"])
def test_documents_in_a_printed_list_are_found(write):
    documents = [BRIDGE, 'She said "it\'s here"\nand left.', "caf\u00e9\nau lait"]
    text = f"Context: {write(documents)}\nQuestion: who?"
    found = locate(text, documents=documents)
    assert found.n_found == 3
    assert all(text[begin - 1] in "'\"" and text[end] in "'\"" for begin, end in found.spans)
