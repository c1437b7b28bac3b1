import re
from pathlib import Path
from typing import Any

import pytest

from ragbias.errors import DataError, RunError
from ragbias.generation.preparing import split_prompt
from ragbias_eval.tasks import KVRetrieval
from ragbias_eval.tasks.task import Case

RECORDS = [["a54e", "D1FF"], ["9f4a", "703a"], ["52a9", "b2f8"], ["f4eb", "d733"]]
LINE = {"ordered_kv_records": RECORDS, "key": "52a9", "value": "b2f8"}
PROMPT = """\
Extract the value corresponding to the specified key in the JSON object below.

JSON data:
{"a54e": "D1FF",
 "9f4a": "703a",
 "52a9": "b2f8",
 "f4eb": "d733"}

Key: "52a9"
Corresponding value:"""


@pytest.fixture
def data(write: Any) -> Path:
    path: Path = write("kv-retrieval-4_keys.jsonl.gz", LINE, {**LINE, "key": "a54e", "value": "D1FF"})
    return path


def cases(*data: Path, **settings: Any) -> list[Case]:
    return list(KVRetrieval(data, **settings).cases())


def keys(case: Case) -> list[str]:
    return re.findall(r'[{ ]"(\w+)": "', case.text)


def test_the_official_prompt_is_reproduced_to_the_letter(data):
    case, other = cases(data)
    assert case.text == PROMPT
    assert case.documents == ('"a54e": "D1FF"', '"9f4a": "703a"', '"52a9": "b2f8"', '"f4eb": "d733"')
    assert (case.id, case.question) == ("kv-retrieval-4_keys/1/4/2/0", "kv-retrieval-4_keys/1")
    assert (case.answers, case.gold_position, other.gold_position) == (("b2f8",), 2, 0)
    assert KVRetrieval.max_new_tokens == 100


def test_the_official_measure_scores_an_answer(data):
    _, case = cases(data)
    scores = {' "d1ff"': 1.0, "It is:\nD1FF": 1.0, "b2f8": 0.0}
    assert {answer: KVRetrieval(()).score(case, answer) for answer in scores} == scores


def test_the_gold_pair_is_taken_out_and_put_in_at_its_position(data):
    found = cases(data, positions=(0, 3), limit=1)
    assert [keys(case) for case in found] == [["52a9", "a54e", "9f4a", "f4eb"], ["a54e", "9f4a", "f4eb", "52a9"]]


def test_orders_shuffle_the_other_pairs(data):
    found = cases(data, orders=3, positions=(1,), seed=4)
    assert [case.order for case in found] == [0, 1, 2] * 2
    assert len({case.documents for case in found[:3]}) == 3
    assert {case.documents[1] for case in found[:3]} == {'"52a9": "b2f8"'}
    assert {case.seed for case in found} == {0}  # no pairs are drawn


def test_a_pair_that_is_not_among_the_records_is_named(write):
    path = write("kv.jsonl", LINE, {**LINE, "value": "D1FF"})
    with pytest.raises(DataError, match=re.escape(f"{path}, line 2: the pair ('52a9', 'D1FF') of 'key' and 'value'")):
        cases(path)


def test_a_value_that_is_part_of_any_answer_is_refused(write):
    line = {**LINE, "ordered_kv_records": [*RECORDS, ["aaaa", " "]], "key": "aaaa", "value": " "}
    with pytest.raises(DataError, match="line 1: value: is empty"):
        cases(write("kv.jsonl", line))


def test_a_position_after_the_last_pair_is_refused(data):
    with pytest.raises(RunError, match="position 4 among 4 documents"):
        cases(data, positions=(4,))


def test_pairs_are_segments_and_the_split_adds_one_separator(data):
    case, _ = cases(data)
    split = split_prompt(case.text, case.documents)
    prompt, reason = split.parts, split.why_unsplit
    assert not reason
    assert prompt.documents == tuple(",\n " + document for document in case.documents)
    assert prompt.text == case.text.replace("{", "{,\n ")
