from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from ragbias import DebiasedLM
from ragbias.errors import DataError
from ragbias.evaluation.tasks import Judge
from ragbias.evaluation.tasks.task import Case
from ragbias.generation.request import in_parts
from ragbias.methods import CanonicalOrder, NoMethod, PermutationVote, Pine

PAIRS = [(f"Answer {n} is right.", f"I will not tell {n}.") for n in range(8)]
LINES = [
    {"prompt": f"What is {n}?", "chosen": chosen, "rejected": rejected, "subset": "easy" if n < 4 else "hard", "id": n}
    for n, (chosen, rejected) in enumerate(PAIRS)
]


@pytest.fixture
def data(write: Any) -> Path:
    path: Path = write("rewardbench.jsonl", *LINES)
    return path


def cases(*data: Path, **settings: Any) -> list[Case]:
    return list(Judge(data, **settings).cases())


def test_each_pair_is_shown_in_both_orders(data: Path) -> None:
    found = cases(data)
    assert len({case.id for case in found}) == len(found) == 2 * len(PAIRS)
    for (chosen, rejected), first, second in zip(PAIRS, found[::2], found[1::2], strict=True):
        assert first.question == second.question
        assert [(case.gold_position, case.order) for case in (first, second)] == [(0, 0), (1, 1)]
        assert first.documents == second.documents[::-1]
        assert chosen in first.documents[0] and rejected in first.documents[1]
        assert first.text.index(chosen) < first.text.index(rejected)
        assert second.text.index(chosen) > second.text.index(rejected)
    assert [case.group for case in found] == ["easy"] * 8 + ["hard"] * 8


def test_the_letter_belongs_to_the_response_and_not_to_its_position(data: Path) -> None:
    letters = set()
    for (chosen, rejected), case in zip([pair for pair in PAIRS for _ in range(2)], cases(data), strict=True):
        letter = "A" if hashlib.sha256(chosen.encode()).digest() < hashlib.sha256(rejected.encode()).digest() else "B"
        assert case.answers == (letter,)
        assert f"[Response {letter}]\n{chosen}\n[End of Response {letter}]" in case.documents
        letters.add((letter, case.gold_position))
    assert letters == {("A", 0), ("A", 1), ("B", 0), ("B", 1)}


def test_both_orders_are_the_same_set_of_segments(data: Path) -> None:
    first, second, *_ = cases(data)
    one, other = (in_parts(case.text, case.documents, None)[0] for case in (first, second))
    assert one.documents == other.documents[::-1]
    assert (one.prefix, one.suffix) == (other.prefix, other.suffix)


@pytest.mark.parametrize("chat", [True, False])
@pytest.mark.parametrize("method", [Pine(), CanonicalOrder()], ids=lambda method: method.name)
def test_an_invariant_method_gives_one_verdict_for_both_orders(
    tiny: DebiasedLM, data: Path, method: Any, chat: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not chat:
        monkeypatch.setattr(tiny.tokenizer, "chat_template", None)
    task, found = Judge((data,)), cases(data)
    answers = task.answers(tiny, found, method, batch_size=4)
    predictions = [answer.prediction for answer in answers]
    assert set(predictions) <= {"chosen", "rejected"}
    assert predictions[::2] == predictions[1::2]
    assert all(answer.report.method_ran == method.name and answer.report.n_found == 2 for answer in answers)


@pytest.mark.parametrize("chat", [True, False])
def test_the_verdict_is_the_more_probable_letter(
    tiny: DebiasedLM, data: Path, chat: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not chat:
        monkeypatch.setattr(tiny.tokenizer, "chat_template", None)
    task, found = Judge((data,), limit=3), cases(data, limit=3)
    said = task.answers(tiny, found, NoMethod(), batch_size=1)
    for case, answer in zip(found, said, strict=True):
        scores = {
            letter: tiny.score(task.prompt(tiny, case), letter if chat else " " + letter, documents=case.documents)
            for letter in "AB"
        }
        likelier = max("AB", key=lambda letter: scores[letter].total)
        assert answer.prediction == ("chosen" if likelier == case.answers[0] else "rejected")


def test_a_vote_judges_too(tiny: DebiasedLM, data: Path) -> None:
    task, found = Judge((data,), limit=2), cases(data, limit=2)
    answers = task.answers(tiny, found, PermutationVote(), batch_size=4)
    assert [answers[n].prediction == answers[n + 1].prediction for n in (0, 2)] == [True, True]


def test_the_preferred_response_scores_one(data: Path) -> None:
    task, case = Judge((data,)), cases(data)[0]
    assert (task.score(case, "chosen"), task.score(case, "rejected")) == (1.0, 0.0)


def test_equal_responses_are_left_out(write: Any) -> None:
    equal = {**LINES[0], "rejected": LINES[0]["chosen"]}
    found = cases(write("a.jsonl", equal, LINES[1], LINES[2]), limit=1)
    assert [case.id for case in found] == ["a/2/2/0/0", "a/2/2/1/1"]
    with pytest.raises(DataError, match="nothing to judge"):
        cases(write("b.jsonl", equal))


def test_a_line_of_another_format_is_named(write: Any) -> None:
    path = write("a.jsonl", LINES[0], {**LINES[1], "prompt": [{"role": "user", "content": "x"}]})
    with pytest.raises(DataError, match=r"line 2: 'prompt' is \[.*; expected a string"):
        cases(path)
