"""Preselection of texts in the registry: complete, and with few false candidates."""

import json

from hypothesis import given
from hypothesis import strategies as st

from ragbias.boundaries import Registry
from ragbias.boundaries.matching import occurrences_of
from ragbias.boundaries.sources import PROBE
from support.prompts import registry_of

TEXTS = st.text(alphabet="ab \n'\"\\\u00e9", min_size=1, max_size=70).filter(str.strip)


def written(text):
    return st.sampled_from(
        [text, text.strip(), repr(text), json.dumps(text), json.dumps(text, ensure_ascii=False), f"x{text}x"]
    )


@given(st.data(), st.lists(TEXTS, min_size=1, max_size=6, unique=True), st.text(max_size=20))
def test_every_text_that_occurs_in_the_prompt_is_a_candidate(data, texts, before):
    registry = registry_of(texts)
    for text in texts:
        prompt = before + data.draw(written(text)) + "\nWho?"
        occurring = {each for each in texts if occurrences_of(prompt, each)}
        assert text in occurring <= registry.likely_in(prompt)


def test_a_text_at_any_offset_is_found_from_the_shortest_on():
    for length in (1, PROBE - 1, PROBE, PROBE + 1, 100):
        text = "".join(chr(97 + position * 7 % 26) for position in range(length))
        assert all(registry_of([text]).likely_in("." * offset + text) == {text} for offset in range(2 * PROBE))


def test_few_others_are_candidates():
    texts = [f"In front of all.\n\nThis is number {number * 7919} of all texts, then more." for number in range(500)]
    registry = Registry()
    registry.add(texts)
    prompt = "\n\n".join(texts[:3])
    assert set(texts[:3]) <= registry.likely_in(prompt)
    assert len(registry.likely_in(prompt)) < 20
