import re
from pathlib import Path
from typing import Any

import pytest

from ragbias.errors import DataError
from ragbias.generation.preparing import split_prompt
from ragbias_eval.tasks import LongBench
from ragbias_eval.tasks.task import Case

CONTEXT = """\
Passage 1:
Falcon Station
Built by Mara Quill. Passage 2:

Its second paragraph.

Passage 2:
Otter
Passage 7:
an otter

Passage 3:
Birch
a {tree}"""
PROMPT = f"""\
Answer the question based on the given passages. Only give me the answer and do not output any other words.

The following are given passages.
{CONTEXT}

Answer the question based on the given passages. Only give me the answer and do not output any other words.

Question: Who built Falcon Station?
Answer:"""
LINE = {
    "input": "Who built Falcon Station?",
    "context": CONTEXT,
    "answers": ["Mara Quill", "Quill"],
    "length": 20,
    "dataset": "hotpotqa",
    "language": "en",
    "all_classes": None,
    "_id": "x",
}


@pytest.fixture
def data(write: Any) -> Path:
    path: Path = write("hotpotqa.jsonl", LINE, {**LINE, "dataset": "2wikimqa"})
    return path


def cases(*data: Path, **settings: Any) -> list[Case]:
    return list(LongBench(data, **settings).cases())


def test_the_official_prompt_is_reproduced_to_the_letter(data):
    case, other = cases(data)
    assert case.text == PROMPT
    assert [document.split("\n")[1] for document in case.documents] == ["Falcon Station", "Otter", "Birch"]
    assert (case.id, case.gold_position, case.answers) == ("hotpotqa/1/3/-/0", None, ("Mara Quill", "Quill"))
    assert (case.group, other.group) == ("hotpotqa", "2wikimqa")
    assert LongBench.max_new_tokens == 32


def test_the_official_measure_scores_an_answer(data):
    case, _ = cases(data)
    scores = {"Mara Quill.": 1.0, "It was Quill": 0.5, "Otter": 0.0}
    assert {answer: LongBench(()).score(case, answer) for answer in scores} == scores


def test_passages_are_numbered_in_the_order_shown(data):
    found = cases(data, orders=4, limit=1, seed=2)
    for case in found:
        assert [document.split("\n")[0] for document in case.documents] == ["Passage 1:", "Passage 2:", "Passage 3:"]
    bodies = [tuple(document.partition("\n")[2] for document in case.documents) for case in found]
    assert len(set(bodies)) == 4
    assert len({frozenset(each) for each in bodies}) == 1
    assert [case.id for case in found] == ["hotpotqa/1/3/-/0", *(f"hotpotqa/1/3/-/{k}/2" for k in (1, 2, 3))]


def test_passages_are_the_same_whatever_their_number(data):
    first, second = cases(data, orders=2, limit=1)
    assert set(first.documents) != set(second.documents) and set(first.contents) == set(second.contents)
    assert len(set(first.contents)) == len(first.documents)
    for case in (first, second):
        assert all(content in document for content, document in zip(case.contents, case.documents, strict=True))


def test_white_space_around_passages_hides_their_position(write):
    spaced = CONTEXT.replace("an otter", "an otter \n\n").replace("a {tree}", "a {tree}\n")
    (case,) = cases(write("a.jsonl", {**LINE, "context": spaced}))
    assert case.text == PROMPT


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dataset": "gov_report"}, "dataset: Input should be 'hotpotqa', '2wikimqa', 'musique'"),
        ({"context": "no passages"}, "'context' does not begin with a line 'Passage 1:'"),
        ({"context": "first\nPassage 1:\nx"}, "'context' does not begin with a line 'Passage 1:'"),
        ({"context": "Passage 1:\nx\n\nPassage 2:\n\n"}, "passage 2 of 'context' is empty"),
        ({"answers": "Mara"}, "answers: Input should be a valid array, got 'Mara'"),
    ],
)
def test_a_line_of_another_format_is_named(write, change, message):
    path = write("a.jsonl", LINE, {**LINE, **change})
    with pytest.raises(DataError, match=re.escape(f"{path}, line 2: {message}")):
        cases(path)


def test_each_passage_is_a_segment(data):
    for indices in (True, False):
        case, _ = cases(data, indices=indices)
        split = split_prompt(case.text, case.documents)
        prompt, reason = split.parts, split.why_unsplit
        assert not reason
        assert prompt.text == case.text
        assert [document.strip() for document in prompt.documents] == list(case.documents)
