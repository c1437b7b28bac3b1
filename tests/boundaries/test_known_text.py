"""Texts with metadata: equality with plain strings, bounds, and robustness against odd values."""

import pickle

import pytest

from ragbias.boundaries import Registry, locate
from ragbias.boundaries.sources import MAX_FIELDS, MAX_VALUE, KnownText, merge_fields


def test_a_known_text_is_its_text_and_bounded():
    known = KnownText.of("text", {f"field {n}": "x" * n * 10 for n in range(200)} | {"list": list(range(1000))}, id="i")
    assert known == "text" and hash(known) == hash("text") and len(known.fields) <= MAX_FIELDS
    assert all(len(value) <= MAX_VALUE for _, value in known.fields)
    assert pickle.loads(pickle.dumps(known)).fields == known.fields
    assert merge_fields(known, KnownText.of("text", {"a": 1})).fields[:1] == (("metadata", "{'a': 1}"),)
    assert merge_fields(KnownText.of("text", {"a": 1}), "text").fields == KnownText.of("text", {"a": 1}).fields
    assert len(merge_fields(known, KnownText.of("text", {"a": 1})).fields) <= MAX_FIELDS
    assert KnownText.of("text", {"secret": ["not", "kept"], "blank": " "}).fields == (("blank!r", "' '"),)


class Unprintable:
    def __str__(self):
        raise ValueError("no")

    __repr__ = __str__


@pytest.mark.parametrize(
    "odd", [{(1, 2): "a"}, {"x": Unprintable()}, {None: 1, 3: 2}, {Unprintable(): 1}, {"n": 1e400}]
)
def test_odd_metadata_breaks_nothing_and_printable_is_known(odd):
    known = KnownText.of("text", {**odd, "title": "Owls"})
    assert ("title", "Owls") in known.fields
    registry = Registry()
    registry.add([known])
    assert locate("a\n\ntext\n\nb", documents=[known]).n_found == 1
