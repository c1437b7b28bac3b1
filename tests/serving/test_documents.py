"""Documents that are put in front of a message are where they were put."""

import pytest

from ragbias.serving.prompts import SEPARATOR, prompt_with
from ragbias.serving.schemas import Document


def render(talk, more):
    return "".join(f"<|im_start|>{turn['role']}\n{turn['content']}<|im_end|>\n" for turn in talk)


@pytest.mark.parametrize(
    "texts",
    [
        ["The mascot", "The mascot of Heron"],  # one begins like the other, and like the question's
        ["Same.", "Same."],
        ["a", "b", "a b"],
        ["What is", "What is the mascot"],
        ["one\n\ntwo", "two"],
        ["\U0001f600 \u2028", "e\u0301\u200b"],
    ],
)
def test_each_document_is_found_where_it_was_put(texts):
    talk = [{"role": "user", "content": "What is the mascot of Heron Mill?"}]
    text, found = prompt_with([Document(text=each) for each in texts], talk, render)
    assert found.n_found == len(texts) and found.source == "documents"
    assert [text[begin:end].strip("\n") for begin, end in found.texts or found.spans] == texts
    begin, end = found.spans[0][0], found.spans[-1][1]
    assert text[begin:end].rstrip("\n") == SEPARATOR.join(texts)
