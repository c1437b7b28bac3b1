"""Documents that share text are found in the same way in every order, or not at all."""

import inspect
import itertools
import random
import sys

import pytest

from ragbias import Prompt
from ragbias.boundaries import locate
from ragbias.errors import AmbiguousSegmentsError

PARTS = ["The falcon is red.", "Two herons stand.", "An owl is asleep.", "The mill burns."]
FRAMES = [
    ("Context:\n\n", "\n\nQuestion: which?"),
    ("<context>\n", "\n</context>\nWhich?"),
    ("", "\n\nQ"),
    ("Read: ", " Which?"),
    ("Context:\n\nTwo herons stand.\n\n", "\n\nAn owl is asleep."),
    ("Context:\n\n", "\n\nIs it true that The falcon is red.?"),
]


def outcomes(documents: list[str], separator: str, frame: tuple[str, str], source: str) -> set[object]:
    """Return the splits of all orders, without those that are refused."""
    splits: set[object] = set()
    for order in itertools.permutations(documents):
        text = frame[0] + separator.join(order) + frame[1]
        found = locate(text, **{source: documents if source == "documents" else [documents]})
        try:
            prompt = Prompt.from_text(text, found.spans)
        except AmbiguousSegmentsError:
            continue
        if len(prompt.documents) > 1:
            splits.add((prompt.prefix, tuple(sorted(prompt.documents)), prompt.suffix))
    return splits


@pytest.mark.parametrize("source", ["documents", "run"])
def test_documents_of_the_same_parts_are_found_in_every_order(source):
    s, t, u = PARTS[:3]
    documents = [t, "\n\n".join([t, u, s]), "\n\n".join([u, s, t])]
    for frame in FRAMES[:3]:
        ((_, found, _),) = outcomes(documents, "\n\n", frame, source)
        assert sorted(each.strip() for each in found) == sorted(documents)


@pytest.mark.parametrize("seeds", [range(12), (367, 396, 1156, 1825, 2113, 2303, 2322, 2496, 2566, 2658, 2736)])
def test_random_joined_documents_have_one_split(seeds):
    for seed in seeds:
        rng = random.Random(seed)
        joint = rng.choice(["\n\n", "\n", " ", "\n---\n"])
        count = rng.randint(3, 4)
        documents: list[str] = []
        while len(documents) < count:
            parts = rng.randint(1, 3)
            text = joint.join(rng.choice(PARTS[: rng.randint(2, 4)]) for _ in range(parts))
            if text not in documents or rng.random() < 0.1:
                documents.append(text)
        separator = joint if rng.random() < 0.8 else rng.choice(["\n\n", "\n"])
        frame, source = rng.choice(FRAMES), rng.choice(["run", "documents"])
        assert len(outcomes(documents, separator, frame, source)) < 2, seed


def test_nested_documents_are_found_without_recursion():
    documents = ["The gate of the mill is red." + " It is." * count for count in range(120)]
    text = "Context:\n\n" + "\n\n".join(documents) + "\n\nWhich?"
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack()) + 60)
    try:
        found = locate(text, documents=documents)
    finally:
        sys.setrecursionlimit(limit)
    assert found.n_found == 120


def test_repeated_parts_that_fit_in_too_many_ways_are_refused():
    documents = ["\n\n".join([PARTS[0]] * count) for count in range(1, 40)]
    text = "Context:\n\n" + "\n\n".join(documents) + "\n\nWhich?"
    found = locate(text, documents=documents)
    assert (found.spans, "occur several times" in found.reason) == ((), True)
