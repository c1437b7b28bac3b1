"""The registry of retrievals is bounded in texts, characters and time, and thread-safe."""

import pickle
import threading
from types import SimpleNamespace

from ragbias.boundaries import Registry, sources
from ragbias.boundaries.sources import KnownText
from support.concurrency import side_by_side
from support.prompts import INVOICE_17, INVOICE_99, TERMS, found_texts, prompt


def size(registry: Registry) -> int:
    """Return the bytes of everything in the registry."""
    fields = {name: value for name, value in vars(registry).items() if name != "_lock"}
    return len(pickle.dumps(fields))


def test_the_number_of_texts_is_bounded(monkeypatch):
    monkeypatch.setattr(sources, "MAX_TEXTS", 50)
    registry = Registry()
    for number in range(10_000):
        registry.add([f"document {number} {part}" for part in range(7)])
    assert len(registry) <= 50
    assert registry.candidates()[0][0] == "document 9999 0"
    registry.add([f"text {number}" for number in range(80)])
    assert len(registry) == 50


def test_the_number_of_characters_is_bounded(monkeypatch):
    monkeypatch.setattr(sources, "MAX_CHARACTERS", 100_000)
    registry = Registry()
    for number in range(300):
        registry.add([f"document {number} " + "x" * 2_000 for _ in range(3)])
    assert len(registry) <= 48
    assert size(registry) < 400_000
    assert registry.candidates()[0][0].startswith("document 299 ")
    registry.add(["y" * 100_001, INVOICE_17, TERMS])
    assert registry.candidates()[0] == (INVOICE_17, TERMS)
    assert found_texts(prompt(INVOICE_17, TERMS), registry=registry) == [INVOICE_17, TERMS]
    registry.add(["z" * 60_000, "w" * 60_000])
    assert sum(len(text) for retrieval in registry.candidates() for text in retrieval) <= 100_000


def test_memory_does_not_grow_over_a_hundred_thousand_runs(monkeypatch):
    monkeypatch.setattr(sources, "MAX_TEXTS", 200)
    registry = Registry()
    text = prompt(INVOICE_17, TERMS)

    def run(number: int) -> None:
        registry.add(
            [f"Run {number:06} found the text with the number {number:06}.", f'"Run {number:06}"\nfound another one.']
        )
        if number % 1000 == 0:
            registry.add([INVOICE_17, TERMS])
            assert found_texts(text, registry=registry) == [INVOICE_17, TERMS]

    for number in range(2000):
        run(number)
    before = size(registry)
    for number in range(2000, 102_000):
        run(number)
    assert len(registry) <= 200
    assert size(registry) < 1.1 * before


def test_forgotten_texts_leave_nothing_behind(monkeypatch):
    now = 0.0
    monkeypatch.setattr(sources, "time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(sources, "MAX_AGE", 10)
    registry = Registry()
    registry.add([INVOICE_17, TERMS, TERMS])
    registry.add([TERMS, INVOICE_99])
    now = 11.0
    assert registry.likely_in(prompt(INVOICE_17, TERMS)) == set()
    assert (len(registry), registry.candidates()) == (0, [])


def test_a_repeated_retrieval_takes_no_entry_and_is_recent(monkeypatch):
    monkeypatch.setattr(sources, "MAX_TEXTS", 4)
    registry = Registry()
    for _ in range(100):
        registry.add([INVOICE_17, TERMS])
    assert len(registry) == 2
    registry.add([INVOICE_99, "other text"])
    registry.add([INVOICE_17, TERMS])
    registry.add(["new text", "newer text"])
    assert [retrieval[0] for retrieval in registry.candidates()] == ["new text", INVOICE_17]


def test_old_retrievals_are_forgotten(monkeypatch):
    now = 0.0
    monkeypatch.setattr(sources, "time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(sources, "MAX_AGE", 10)
    registry = Registry()
    registry.add([INVOICE_17])
    now = 9.0
    registry.add([TERMS])
    now = 11.0
    assert registry.candidates() == [(TERMS,)]


def test_threads_may_add_and_search_at_once(monkeypatch):
    monkeypatch.setattr(sources, "MAX_TEXTS", 1000)
    registry, wrong = Registry(), []

    def work(worker: int) -> None:
        for number in range(60):
            documents = [f"Worker {worker} wrote line {number}, part {part}." for part in range(4)]
            registry.add(documents)
            if found_texts(prompt(*documents), registry=registry) != documents:
                wrong.append((worker, number))

    side_by_side([threading.Thread(target=work, args=(worker,)) for worker in range(8)])
    assert not wrong
    assert len(registry) <= 1000


def test_the_registry_keeps_the_latest_metadata_of_a_retrieval():
    registry = Registry()
    for number in range(3):
        registry.add(
            [KnownText.of(text, {"page": number * 10 + i}) for i, text in enumerate([INVOICE_17, TERMS, INVOICE_99])]
        )
    assert len(registry) == 3
    assert dict(registry.candidates()[0][1].fields)["page"] == "21"
