import itertools
import pickle
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragbias.boundaries import Registry, locate

INVOICE_17 = "Invoice 17: the total is 250 euros, due on the first of May."
INVOICE_99 = "Invoice 99: the total is 930 euros, due on the last of June."
TERMS = "Payment terms: thirty days after delivery, by bank transfer."


def prompt(*documents: str, question: str = "What is due?") -> str:
    context = "\n\n".join(documents)
    return f"Context: {context}\n\nQuestion: {question}\nAnswer:"


def found_texts(text: str, registry: Registry) -> list[str]:
    return [text[begin:end] for begin, end in locate(text, registry=registry).spans]


def registry_of(*retrievals: list[str]) -> Registry:
    registry = Registry()
    for retrieval in retrievals:
        registry.add(retrieval)
    return registry


def size(registry: Registry) -> int:
    """Bytes of everything that the registry keeps."""
    kept = {name: value for name, value in vars(registry).items() if name not in ("_lock", "_clock")}
    return len(pickle.dumps(kept))


def test_a_retrieval_is_found_in_the_prompt():
    text = prompt(INVOICE_17, TERMS)
    found = locate(text, registry=registry_of([TERMS, INVOICE_17]))
    assert [text[begin:end] for begin, end in found.spans] == [INVOICE_17, TERMS]
    assert (found.source, found.n_expected, found.n_found, found.reason) == ("registry", 2, 2, "")


def test_no_fragment_is_ever_found():
    registry = registry_of([INVOICE_99, INVOICE_99 + " Signed.", "Invoice 99", "Invoice 1", "250 euros"])
    assert found_texts(prompt(INVOICE_17, TERMS, question="What about Invoice 99?"), registry) == []


@given(st.lists(st.integers(0, 20), min_size=2, max_size=4, unique=True), st.integers(0, 20), st.data())
def test_only_whole_remembered_texts_are_found(numbers, other, data):
    texts = [f"Invoice {number}: the total is {number * 7} euros, due on day {number} of May." for number in range(21)]
    registry = registry_of(texts[:10], texts[10:])
    cut = data.draw(st.integers(1, len(texts[other]) - 1))
    fragment = data.draw(st.sampled_from([texts[other][:cut], texts[other][cut:]]))
    text = prompt(*(texts[number] for number in numbers), fragment, question=f"Is it {fragment}?")
    assert all(found in texts for found in found_texts(text, registry))
    assert found_texts(prompt(fragment, fragment), registry) == []


def test_a_text_that_ends_within_a_number_is_not_found():
    registry = registry_of(["See the invoice 1", "ayment terms"])
    assert found_texts(f"See the invoice 17\n\n{TERMS}\n\nWhat?", registry) == []


def test_unrelated_earlier_retrievals_do_not_disturb():
    registry = registry_of([f"An unrelated text, number {number}." for number in range(40)], [INVOICE_17, TERMS])
    registry.add([INVOICE_99, "Another unrelated text."])
    assert found_texts(prompt(INVOICE_17, TERMS), registry) == [INVOICE_17, TERMS]


def test_an_earlier_text_that_the_question_quotes_is_not_taken():
    registry = registry_of([INVOICE_99, "Another text that is not here."], [INVOICE_17, TERMS])
    text = prompt(INVOICE_17, TERMS, question=f"Is this right: {INVOICE_99}")
    assert found_texts(text, registry) == [INVOICE_17, TERMS]


@pytest.mark.parametrize("question", [f"Is this right: {INVOICE_99}", INVOICE_99])
def test_a_question_that_is_itself_a_document_is_not_taken(question):
    registry = registry_of([INVOICE_17, TERMS, INVOICE_99])
    assert found_texts(prompt(INVOICE_17, TERMS, question=question), registry) == [INVOICE_17, TERMS]


def test_a_lone_text_inside_the_question_is_not_taken():
    assert found_texts(prompt(question=f"Is this right: {INVOICE_99}?"), registry_of([INVOICE_99, TERMS])) == []


@pytest.mark.parametrize("texts", [["a", "b"], [" ", "\n\n"], ["is", "the"], ["What", "Context"]])
def test_short_or_empty_texts_are_never_found(texts):
    assert found_texts(prompt(INVOICE_17, TERMS), registry_of(texts, *[[text] for text in texts])) == []


def test_short_texts_are_found_beside_longer_ones_of_their_retrieval_in_every_order():
    for order in itertools.permutations([INVOICE_17, "Paid.", TERMS, "Yes"]):
        text = prompt(*order, question="Paid? Yes or no?")
        found = locate(text, registry=registry_of([INVOICE_17, "Paid.", TERMS, "Yes"]))
        assert [text[begin:end] for begin, end in found.spans] == list(order)
        assert (found.n_expected, found.n_found) == (4, 4)


def test_a_short_text_that_only_the_question_holds_is_not_taken():
    text = prompt(INVOICE_17, TERMS, question="Is 250 due?")
    assert found_texts(text, registry_of([INVOICE_17, "due", TERMS, "Is"])) == [INVOICE_17, TERMS]


def test_merged_results_of_two_retrievers_are_found_together():
    registry = registry_of([INVOICE_17, TERMS, "A third text, not used."], [INVOICE_99, "A fourth one, not used."])
    texts = [INVOICE_17, INVOICE_99, TERMS]
    assert found_texts(prompt(*texts), registry) == texts


def test_texts_registered_one_by_one_are_found_together():
    registry = registry_of([INVOICE_17], [TERMS], [INVOICE_99])
    assert found_texts(prompt(INVOICE_17, INVOICE_99, TERMS), registry) == [INVOICE_17, INVOICE_99, TERMS]


def test_parents_win_over_the_parts_that_were_searched():
    parts = [INVOICE_17[:24], INVOICE_17[24:], TERMS[:20], TERMS[20:]]
    assert found_texts(prompt(INVOICE_17, TERMS), registry_of(parts, [INVOICE_17, TERMS])) == [INVOICE_17, TERMS]


def test_a_text_retrieved_twice_stands_twice():
    text = prompt(TERMS, INVOICE_17, TERMS)
    assert found_texts(text, registry_of([TERMS, INVOICE_17, TERMS])) == [TERMS, INVOICE_17, TERMS]
    assert found_texts(text, registry_of([TERMS, INVOICE_17])) == [TERMS, INVOICE_17, TERMS]


def test_the_number_of_texts_is_bounded():
    registry = Registry(max_texts=50)
    for number in range(10_000):
        registry.add([f"document {number} {part}" for part in range(7)])
    assert len(registry) <= 50
    assert registry.candidates()[0][0] == "document 9999 0"
    registry.add([f"text {number}" for number in range(80)])
    assert len(registry) == 50


def test_the_number_of_characters_is_bounded():
    registry = Registry(max_characters=100_000)
    for number in range(300):
        registry.add([f"document {number} " + "x" * 2_000 for _ in range(3)])
    assert len(registry) <= 48
    assert size(registry) < 400_000
    assert registry.candidates()[0][0].startswith("document 299 ")
    registry.add(["y" * 100_001, INVOICE_17, TERMS])
    assert registry.candidates()[0] == (INVOICE_17, TERMS)
    assert found_texts(prompt(INVOICE_17, TERMS), registry) == [INVOICE_17, TERMS]
    registry.add(["z" * 60_000, "w" * 60_000])
    assert sum(len(text) for retrieval in registry.candidates() for text in retrieval) <= 100_000


def test_memory_does_not_grow_over_a_hundred_thousand_runs():
    registry = Registry(max_texts=200)
    text = prompt(INVOICE_17, TERMS)

    def run(number: int) -> None:
        registry.add(
            [f"Run {number:06} found the text with the number {number:06}.", f'"Run {number:06}"\nfound another one.']
        )
        if number % 1000 == 0:
            registry.add([INVOICE_17, TERMS])
            assert found_texts(text, registry) == [INVOICE_17, TERMS]

    for number in range(2000):
        run(number)
    before = size(registry)
    for number in range(2000, 102_000):
        run(number)
    assert len(registry) <= 200
    assert size(registry) < 1.1 * before


def test_forgotten_texts_leave_nothing_behind():
    now = 0.0
    registry = Registry(max_age=10, clock=lambda: now)
    registry.add([INVOICE_17, TERMS, TERMS])
    registry.add([TERMS, INVOICE_99])
    now = 11.0
    assert registry.likely_in(prompt(INVOICE_17, TERMS)) == set()
    assert len(registry._index) == len(registry._counts) == len(registry) == 0


def test_the_same_retrieval_again_takes_no_room_and_counts_as_recent():
    registry = Registry(max_texts=4)
    for _ in range(100):
        registry.add([INVOICE_17, TERMS])
    assert len(registry) == 2
    registry.add([INVOICE_99, "other text"])
    registry.add([INVOICE_17, TERMS])
    registry.add(["new text", "newer text"])
    assert [retrieval[0] for retrieval in registry.candidates()] == ["new text", INVOICE_17]


def test_old_retrievals_are_forgotten():
    now = 0.0
    registry = Registry(max_age=10, clock=lambda: now)
    registry.add([INVOICE_17])
    now = 9.0
    registry.add([TERMS])
    now = 11.0
    assert registry.candidates() == [(TERMS,)]
    registry.clear()
    assert len(registry) == 0


def test_threads_may_add_and_search_at_once():
    registry, wrong = Registry(max_texts=1000), []

    def work(worker: int) -> None:
        for number in range(60):
            documents = [f"Worker {worker} wrote line {number}, part {part}." for part in range(4)]
            registry.add(documents)
            if found_texts(prompt(*documents), registry) != documents:
                wrong.append((worker, number))

    threads = [threading.Thread(target=work, args=(worker,)) for worker in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert len(registry) <= 1000
