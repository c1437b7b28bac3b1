"""Finding twenty documents costs less than a token does. The bounds are generous, for machines that do other things."""

import random
import statistics
import time

import pytest

from ragbias.boundaries import Registry, locate

BOUND = 0.003  # seconds of this thread's own time; on an idle machine all of these take less than 0.001
RANDOM = random.Random(0)
WORDS = ["".join(RANDOM.choices("abcdefghijklmnopqrstuvwxyz", k=RANDOM.randint(2, 9))) for _ in range(3000)]


def document() -> str:
    return " ".join(RANDOM.choices(WORDS, k=95))[:600]  # about 150 tokens


DOCUMENTS = [document() for _ in range(20)]
PLAIN = "Use the context.\n\n" + "\n\n".join(DOCUMENTS) + "\n\nQuestion: who?"
TITLED = "\n".join(f"Document [{number}](Title: T{number}) {text}" for number, text in enumerate(DOCUMENTS, 1))
TITLED = f"Use the context.\n\n{TITLED}\n\nQuestion: who?"
SEPARATED = "Use the context.\n---\n" + "\n---\n".join(DOCUMENTS) + "\n---\nQuestion: who?"


def registry_of(size: int) -> Registry:
    """2,048 texts in retrievals of this size, the documents last."""
    registry = Registry()
    texts = [document() for _ in range(2028)]
    for begin in range(0, len(texts), size):
        registry.add(texts[begin : begin + size])
    for begin in range(0, 20, size):
        registry.add(DOCUMENTS[begin : begin + size])
    return registry


CASES = {
    "documents": (PLAIN, dict(documents=DOCUMENTS)),
    "run": (PLAIN, dict(run=DOCUMENTS)),
    "titled run": (TITLED, dict(run=DOCUMENTS)),
    "registry of single texts": (PLAIN, dict(registry=registry_of(1))),
    "registry": (PLAIN, dict(registry=registry_of(20))),
    "titled registry": (TITLED, dict(registry=registry_of(20))),
    "separator": (SEPARATED, dict(segmenter="\n---\n")),
    "headers": (TITLED, {}),
}


@pytest.mark.parametrize("case", CASES)
def test_twenty_documents_are_found_in_no_time(case):
    text, sources = CASES[case]
    assert locate(text, **sources).n_found == 20
    times = []
    for _ in range(20):
        begin = time.thread_time()
        locate(text, **sources)
        times.append(time.thread_time() - begin)
    assert statistics.median(times) < BOUND


def test_the_same_documents_in_many_retrievals_cost_no_more():
    registry = Registry()
    for _ in range(100):
        registry.add(RANDOM.sample(DOCUMENTS, 20))
    begin = time.thread_time()
    assert locate(PLAIN, registry=registry).n_found == 20
    assert time.thread_time() - begin < 10 * BOUND
