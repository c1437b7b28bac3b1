"""Finding twenty documents is faster than generating a token. Times are relative to a reference task."""

import random
import re
import time

import pytest

from ragbias.boundaries import Registry, locate
from ragbias.boundaries.numbering import find_numbering
from ragbias.boundaries.recognisers import find_below_headers
from ragbias.boundaries.sources import KnownText

pytestmark = pytest.mark.serial

BOUND = 4  # yardsticks
RANDOM = random.Random(0)
WORDS = ["".join(RANDOM.choices("abcdefghijklmnopqrstuvwxyz", k=RANDOM.randint(2, 9))) for _ in range(3000)]


def document() -> str:
    return " ".join(RANDOM.choices(WORDS, k=95))[:600]  # about 150 tokens


DOCUMENTS = [document() for _ in range(20)]
PLAIN = "Use the context.\n\n" + "\n\n".join(DOCUMENTS) + "\n\nQuestion: who?"
TITLED = "\n".join(f"Document [{number}](Title: T{number}) {text}" for number, text in enumerate(DOCUMENTS, 1))
TITLED = f"Use the context.\n\n<docs>{TITLED}</docs>\n\nQuestion: who?"
METADATA = [
    {"title": f"T{number} of {WORDS[number]}", "source": f"files/{number % 7}.pdf", "page": number % 5, "author": "A"}
    for number in range(20)
]
KNOWN = [
    KnownText.of(text, each, id=f"id-{number}")
    for number, (text, each) in enumerate(zip(DOCUMENTS, METADATA, strict=True))
]
FRAMED = "\n\n".join(
    f"Title: {each['title']} (p. {each['page']})\n{text}\nSource: {each['source']}"
    for text, each in zip(DOCUMENTS, METADATA, strict=True)
)
FRAMED = f"Use the context.\n\n{FRAMED}\n\nQuestion: who?"
MISFRAMED = FRAMED.replace("Title: T3 of", "T3, part of").replace("\nSource: files/5", "\nfiles/5")
SEPARATED = "Use the context.\n---\n" + "\n---\n".join(DOCUMENTS) + "\n---\nQuestion: who?"


def seconds_of_thread(action) -> float:
    """Return the thread's processor time for one call."""
    begin = time.thread_time()
    action()
    return time.thread_time() - begin


def yardstick() -> None:
    """A reference task. It takes about 2 ms on a machine where a token of a small model takes 30 ms."""
    for _ in range(6):
        sorted(re.findall(r"\w+", PLAIN))


def ratio(action, calls: int = 20) -> float:
    """Return the minimum time of an action relative to the reference task. Calls alternate."""
    pairs = [(seconds_of_thread(action), seconds_of_thread(yardstick)) for _ in range(calls)]
    return min(first for first, _ in pairs) / min(second for _, second in pairs)


HOSTILE = {
    "brackets": "(", "headers with brackets": "Document 1 (", "headers in one line": "[INST]Document 1 (",
    "numbers": "[1] ", "lines of numbers": "[1] a\n", "numbers in tags": "|>[1] ", "code blocks": "```\n[1] a\n",
    "elements": "<documents>\n[1] a\n[2] b\n</documents>\n", "spaces in elements": "<docs>   ",
    "messages": "<|user|>[1] a\n[2] b\n", "open tags": "<", "open borders": "<|", "borders with words": "<|a",
    "closing tags": "\n</a", "spaces": " ", "line breaks and spaces": "\n ", "stars": "*", "rules": "----x\n",
    "questions": "Question: a\n", "question labels": "question ", "examples": "[1] a\n[2] b\nQuestion: c\n",
    "words": "Aaaa ",
}  # fmt: skip


def registry_of(size: int, documents: list[str] = DOCUMENTS) -> Registry:
    """Return a registry with 2,048 texts in retrievals of this size. The documents come last."""
    registry = Registry()
    texts = [document() for _ in range(2028)]
    for begin in range(0, len(texts), size):
        registry.add(texts[begin : begin + size])
    for begin in range(0, 20, size):
        registry.add(documents[begin : begin + size])
    return registry


CROWDED = registry_of(20)
CROWDED.everywhere = registry_of(20)
CASES = {
    "documents": (PLAIN, dict(documents=DOCUMENTS)),
    "run": (PLAIN, dict(run=[DOCUMENTS])),
    "titled run": (TITLED, dict(run=[DOCUMENTS])),
    "registry of single texts": (PLAIN, dict(registry=registry_of(1))),
    "registry": (PLAIN, dict(registry=registry_of(20))),
    "titled registry": (TITLED, dict(registry=registry_of(20))),
    "registry of one of many contexts": (PLAIN, dict(registry=CROWDED)),
    "separator": (SEPARATED, dict(segmenter="\n---\n")),
    "headers": (TITLED, {}),
    "metadata, run": (FRAMED, dict(run=[KNOWN])),
    "metadata, registry": (FRAMED, dict(registry=registry_of(20, KNOWN))),
}


@pytest.mark.parametrize("case", CASES)
def test_twenty_documents_are_found_in_no_time(case):
    text, sources = CASES[case]
    assert locate(text, **sources).n_found == 20
    assert ratio(lambda: locate(text, **sources)) < BOUND


def test_documents_of_repeated_characters_cost_little():
    documents = [f"{'-' * 2000} note {number}" for number in range(10)]
    assert ratio(lambda: locate("-" * 20_000 + " Who?", documents=documents), 5) < 20 * BOUND


def test_metadata_that_fits_no_template_costs_little_more():
    found = locate(MISFRAMED, run=[KNOWN])
    assert found.spans == () or found.n_found == 20
    assert ratio(lambda: locate(MISFRAMED, run=[KNOWN])) < 3 * BOUND


def test_the_same_documents_in_many_retrievals_cost_no_more():
    registry = Registry()
    for _ in range(100):
        registry.add(RANDOM.sample(DOCUMENTS, 20))
    assert locate(PLAIN, registry=registry).n_found == 20
    assert ratio(lambda: locate(PLAIN, registry=registry)) < 10 * BOUND


def seconds_of(text: str, texts: list[str], size: int) -> float:
    registry = Registry()
    for begin in range(0, len(texts), size):
        registry.add(texts[begin : begin + size])
    begin = time.thread_time()
    locate(text, registry=registry)
    return time.thread_time() - begin


@pytest.mark.parametrize("size", [1, 2048], ids=["single", "together"])
@pytest.mark.parametrize("separator", ["\n\n", " "], ids=["lines", "words"])
def test_many_short_texts_take_linear_time(separator, size):
    texts = [f"text {number}" for number in range(2048)]
    words = [text for _ in range(12) for text in RANDOM.sample(texts, len(texts))]
    text = separator.join(words)[:200_000]
    short, long = (min(seconds_of(text[:length], texts, size) for _ in range(2)) for length in (25_000, 200_000))
    assert long < 5 * 8 * short


def test_noting_the_metadata_of_twenty_documents_costs_little():
    def note():
        for text, metadata in zip(DOCUMENTS, METADATA, strict=True):
            KnownText.of(text, metadata, id="an id")

    assert ratio(note) < BOUND


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize(
    "around", [("", ""), ("<docs>[1] a\n[2] b\n", "x</docs>"), ("```\n", "\n[1] a\n[2] b\n\n"), ("Context:", "x")]
)
def test_looking_for_headers_takes_linear_time(name, around):
    def seconds(length: int) -> float:
        text = around[0] + HOSTILE[name] * (length // len(HOSTILE[name])) + around[1]
        times = []
        for _ in range(3):
            begin = time.thread_time()
            find_below_headers(text)
            times.append(time.thread_time() - begin)
        return min(times)

    assert seconds(120_000) < max(2.5**2 * seconds(30_000), 0.5)  # quadratic: 16 times


def test_thousands_of_numbered_documents_take_subquadratic_time():
    documents = [f"Document number {number} is here." for number in range(2000)]
    text = "Context:\n\n" + "\n\n".join(documents) + "\n\nWhat?"
    begin = time.thread_time()
    find_numbering(text, locate(text, documents=documents).spans)
    assert time.thread_time() - begin < 5  # 0.5 on an idle machine; with the square of their number, 20
