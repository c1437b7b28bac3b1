"""The index never misses a text that occurs in the prompt, and forgets what is removed."""

import json

from hypothesis import given
from hypothesis import strategies as st

from ragbias.boundaries.matching.occurrences import occurrences_of
from ragbias.boundaries.matching.prefilter import LENGTH, STRIDE, NgramIndex

LEAST = LENGTH + STRIDE - 1
TEXTS = st.text(alphabet="ab \n'\"\\\u00e9", min_size=1, max_size=70).filter(str.strip)


def index_of(texts):
    index = NgramIndex()
    for text in dict.fromkeys(texts):
        index.add(text)
    return index


def written(text):
    return st.sampled_from(
        [text, text.strip(), repr(text), json.dumps(text), json.dumps(text, ensure_ascii=False), f"x{text}x"]
    )


@given(st.data(), st.lists(TEXTS, min_size=1, max_size=6, unique=True), st.text(max_size=20))
def test_every_text_that_occurs_in_the_prompt_is_a_candidate(data, texts, before):
    index = index_of(texts)
    for text in texts:
        prompt = before + data.draw(written(text)) + "\nWho?"
        occurring = {each for each in texts if occurrences_of(prompt, each)}
        assert text in occurring <= index.candidates(prompt)


def test_a_text_at_any_offset_is_found_from_the_shortest_on():
    for length in (LEAST - 1, LEAST, LEAST + 1, 100):
        text = "".join(chr(97 + position * 7 % 26) for position in range(length))
        index = index_of([text])
        assert all(index.candidates("." * offset + text) == {text} for offset in range(2 * STRIDE))


def test_few_others_are_candidates():
    texts = [
        f"In front of all.\n\nThis is sentence {number} of the text with number {number}." for number in range(500)
    ]
    index = index_of(texts)
    prompt = "\n\n".join(texts[:3])
    assert set(texts[:3]) <= index.candidates(prompt)
    assert len(index.candidates(prompt)) < 20


@given(st.lists(TEXTS, max_size=8, unique=True), st.randoms(use_true_random=False))
def test_nothing_is_left_of_removed_texts(texts, random):
    index = index_of(texts)
    for text in random.sample(texts, len(texts)):
        index.remove(text)
    assert len(index) == 0
    assert index.candidates(" ".join(texts)) == set()
