import hashlib
import operator
import re
from pathlib import Path
from typing import Any

import pytest

from ragbias.errors import ChatTemplateError, DataError, RunError
from ragbias.generation.preparing import split_prompt
from ragbias.methods import CanonicalOrder, NoMethod, PermutationVote, Pine, Segmented
from ragbias_eval.tasks import Judge, make_task
from ragbias_eval.tasks import judge as judging
from ragbias_eval.tasks.judge import find_verdict
from ragbias_eval.tasks.task import Case

PAIRS = [(f"Answer {n} is right.", f"I will not tell {n}.") for n in range(8)]
LINES = [
    {"prompt": f"What is {n}?", "chosen": chosen, "rejected": rejected, "subset": "easy" if n < 4 else "hard", "id": n}
    for n, (chosen, rejected) in enumerate(PAIRS)
]
OFFICIAL = (
    "[User Question]\nWhat is 0?\n\n"
    "[The Start of Assistant A's Answer]\n{}\n[The End of Assistant A's Answer]\n\n"
    "[The Start of Assistant B's Answer]\n{}\n[The End of Assistant B's Answer]"
)


@pytest.fixture
def data(write: Any) -> Path:
    path: Path = write("rewardbench.jsonl", *LINES)
    return path


def cases(*data: Path, **settings: Any) -> list[Case]:
    return list(Judge(data, **settings).cases())


def test_each_pair_is_shown_in_both_orders(data):
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


def test_the_letter_belongs_to_the_response_not_the_position(data):
    letters = set()
    for (chosen, rejected), case in zip([pair for pair in PAIRS for _ in range(2)], cases(data), strict=True):
        letter = "A" if hashlib.sha256(chosen.encode()).digest() < hashlib.sha256(rejected.encode()).digest() else "B"
        assert case.answers == (letter,)
        block = f"[The Start of Assistant {letter}'s Answer]\n{chosen}\n[The End of Assistant {letter}'s Answer]"
        assert block in case.documents
        letters.add((letter, case.gold_position))
    assert letters == {("A", 0), ("A", 1), ("B", 0), ("B", 1)}


def test_letters_by_position_make_the_prompt_of_the_benchmark(data):
    first, second = cases(data, limit=1, letters="position")
    chosen, rejected = PAIRS[0]
    assert (first.text, second.text) == (OFFICIAL.format(chosen, rejected), OFFICIAL.format(rejected, chosen))
    assert (first.answers, second.answers) == (("A",), ("B",))
    assert first.contents == second.contents[::-1] == (chosen, rejected)
    by_response = cases(data, limit=1)
    assert {first.text, second.text} & {case.text for case in by_response}


def test_both_orders_are_the_same_set_of_segments(data):
    first, second, *_ = cases(data)
    one, other = (split_prompt(case.text + judging.CUE, case.documents).parts for case in (first, second))
    assert one.documents == other.documents[::-1]
    assert (one.prefix, one.suffix) == (other.prefix, other.suffix)


@pytest.mark.parametrize("explain", [True, False])
def test_the_instruction_is_the_systems_turn_or_stands_first(tiny, data, explain, monkeypatch):
    task = Judge((data,), limit=1, explain=explain)
    case, instruction = next(task.cases()), judging.EXPLAINED if explain else judging.VERDICT_ONLY
    system, user = {"role": "system", "content": instruction}, {"role": "user", "content": case.text}
    assert task.prompt(tiny, case) == tiny.chat_text([system, user])
    refusing = "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    monkeypatch.setattr(tiny.tokenizer, "chat_template", refusing + "{{ messages[0].content }}")
    with pytest.raises(ChatTemplateError, match="TemplateError: no system"):
        tiny.chat_text([system, user])
    assert task.prompt(tiny, case) == f"{instruction}\n\n{case.text}"
    monkeypatch.setattr(tiny.tokenizer, "chat_template", None)
    assert task.prompt(tiny, case) == f"{instruction}\n\n{case.text}\n\nEvaluation:"
    assert task.continuations(task.prompt(tiny, case), case) == [f" [[{case.answers[0]}]]"]


@pytest.mark.parametrize(
    ("answer", "verdict"),
    [
        ("Both are short. [[A]]", "A"),
        ('My verdict: "[[B]]". I repeat: [[B]]', "B"),
        ("Either [[A]] or [[B]].", None),
        ("[[C]]", None),
        ("Assistant A is better: [A]", None),
        ("", None),
    ],
)
def test_a_verdict_is_the_one_of_both_that_occurs(answer, verdict):
    assert find_verdict(answer) == verdict


@pytest.mark.parametrize("chat", [True, False])
@pytest.mark.parametrize("method", [Pine(), CanonicalOrder()], ids=lambda method: method.name)
def test_an_invariant_method_gives_one_verdict_for_both_orders(tiny, data, method, chat, monkeypatch):
    if not chat:
        monkeypatch.setattr(tiny.tokenizer, "chat_template", None)
    task = Judge((data,), limit=4, explain=False)
    answers = task.answers(tiny, list(task.cases()), method, batch_size=4)
    predictions = [answer.prediction for answer in answers]
    assert set(predictions) <= {"chosen", "rejected"}
    assert predictions[::2] == predictions[1::2]
    assert all(answer.report.method_ran == method.name and answer.report.n_found == 2 for answer in answers)


@pytest.mark.parametrize("chat", [True, False])
def test_a_verdict_alone_is_the_more_probable_one(tiny, data, chat, monkeypatch):
    if not chat:
        monkeypatch.setattr(tiny.tokenizer, "chat_template", None)
    task = Judge((data,), limit=3, explain=False)
    found = list(task.cases())
    for case, answer in zip(found, task.answers(tiny, found, NoMethod(), batch_size=1), strict=True):
        verdicts = {letter: f"[[{letter}]]" if chat else f" [[{letter}]]" for letter in "AB"}
        scores = {
            letter: tiny.score(task.prompt(tiny, case), verdict, documents=case.documents)
            for letter, verdict in verdicts.items()
        }
        differ = [*map(operator.ne, scores["A"].token_ids, scores["B"].token_ids)].index(True)
        likelier = max("AB", key=lambda letter: scores[letter].logprobs[differ])
        assert answer.prediction == ("chosen" if likelier == case.answers[0] else "rejected")


def test_a_model_that_gives_no_verdict_is_undecided(tiny, data):
    task = Judge((data,), limit=1)
    case = next(task.cases())
    (answer,) = task.answers(tiny, [case], NoMethod(), batch_size=1)  # the embedded model knows no such instruction
    assert answer.prediction == "neither" and answer.completion_tokens > 1
    assert [task.score(case, each) for each in ("chosen", "neither", "rejected")] == [1.0, 0.5, 0.0]


def test_a_vote_balances_both_orders_and_ties_are_undecided(tiny, data):
    task = Judge((data,), limit=4, explain=False)
    found = list(task.cases())
    alone = task.answers(tiny, found, Segmented(), batch_size=8)
    voted = task.answers(tiny, found, PermutationVote(samples=3), batch_size=8)
    expected = [{answer.prediction for answer in alone[n : n + 2]} for n in range(0, len(found), 2)]
    assert {len(each) for each in expected} == {1, 2}
    for n, each in enumerate(expected):
        both = voted[2 * n : 2 * n + 2]
        assert [answer.prediction for answer in both] == [each.pop() if len(each) == 1 else "neither"] * 2
        assert [answer.prompt_tokens for answer in both] == [2 * alone[2 * n].prompt_tokens] * 2


def test_equal_responses_are_left_out(write):
    equal = {**LINES[0], "rejected": LINES[0]["chosen"]}
    found = cases(write("a.jsonl", equal, LINES[1], LINES[2]), limit=1)
    assert [case.id for case in found] == ["a/2/2/0/0", "a/2/2/1/1"]
    with pytest.raises(DataError, match="nothing to judge"):
        cases(write("b.jsonl", equal))


def test_a_line_of_another_format_is_named(write):
    path = write("a.jsonl", LINES[0], {**LINES[1], "prompt": [{"role": "user", "content": "x"}]})
    with pytest.raises(DataError, match=r"line 2: prompt: Input should be a valid string, got \["):
        cases(path)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"letters": "both"}, "judge: letters: Input should be 'response' or 'position', got 'both'"),
        ({"explain": 1}, "judge: explain: Input should be a valid boolean, got 1"),
    ],
    ids=["letters", "explain"],
)
def test_options_out_of_range_are_named(option, message):
    with pytest.raises(RunError, match=re.escape(message)):
        make_task("judge", data="a.jsonl", **option)
