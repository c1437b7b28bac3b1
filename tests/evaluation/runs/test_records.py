"""Records as written, and after edits by hand."""

import gzip
import json
import re
from dataclasses import asdict

import pytest

from ragbias.errors import DataError
from ragbias_eval.runs import as_json_lines, read_records
from support.bench_records import record

LINE = asdict(record())
WHOLE = gzip.compress(as_json_lines([record()]).encode(), mtime=0)


def test_records_are_read_as_they_were_written(tmp_path):
    records = [
        record(prediction="An Ü\u2028 and more\n", shown=(1, 0)),
        record(id="other", gold_position=None, score=0.5, reason="none found"),
    ]
    (tmp_path / "rows.jsonl").write_text(as_json_lines(records) + '{"id": "torn')
    assert read_records(tmp_path / "rows.jsonl") == records


def test_records_are_read_alike_from_compressed_and_plain_files(tmp_path):
    records = [record(prediction="An Ü"), record(id="other", shown=(1, 0))]
    (tmp_path / "rows.jsonl.gz").write_bytes(gzip.compress(as_json_lines(records).encode()))
    assert read_records(tmp_path / "rows.jsonl.gz") == records


@pytest.mark.parametrize(
    "damaged",
    [b"no gzip", WHOLE[:-9], WHOLE[:3], WHOLE[:20] + b"\0\0\0" + WHOLE[23:]],
    ids=["no gzip", "cut off", "cut off in the header", "overwritten"],
)
def test_a_compressed_file_that_is_damaged_is_named(tmp_path, damaged):
    path = tmp_path / "rows.jsonl.gz"
    path.write_bytes(damaged)
    with pytest.raises(DataError, match=re.escape(f"{path}, line ") + r"\d: broken gzip \(.*\); fetch the file again"):
        read_records(path)


def test_an_empty_compressed_file_is_named(tmp_path):
    (tmp_path / "rows.jsonl.gz").touch()
    with pytest.raises(DataError, match=r"rows\.jsonl\.gz contains no examples"):
        read_records(tmp_path / "rows.jsonl.gz")


def test_a_damaged_line_of_a_compressed_file_is_named(tmp_path):
    path = tmp_path / "rows.jsonl.gz"
    path.write_bytes(gzip.compress(b"no json\n"))
    with pytest.raises(DataError, match=re.escape(f"{path}, line 1: Invalid JSON")):
        read_records(path)


def test_records_of_older_runs_do_not_say_what_was_shown(tmp_path):
    before = {name: value for name, value in LINE.items() if name != "shown"}
    (tmp_path / "rows.jsonl").write_text(json.dumps(before) + "\n")
    (read,) = read_records(tmp_path / "rows.jsonl")
    assert read == record() and read.shown == ()


@pytest.mark.parametrize(
    ("edited", "complaint"),
    [
        ({"score": None}, "neither score nor logprob was measured"),
        ({"logprob": -2.0, "kl": 0.5}, "some of logprob, answer_tokens, kl, agrees are missing"),
        ({"score": "1"}, "score: Input should be a valid number, got '1'"),
        ({"score": float("nan")}, "score: Input should be"),
        ({"score": 2}, "score: Input should be less than or equal to 1, got 2"),
        ({"seconds": float("inf")}, "seconds: Input should be a finite number"),
        ({"prediction": 5}, "prediction: Input should be a valid string, got 5"),
        ({"id": ["a"]}, "id: Input should be a valid string, got ['a']"),
        ({"gold_position": 1.5}, "gold_position: Input should be a valid integer"),
        ({"gold_position": -1}, "gold_position: Input should be greater than or equal to 0, got -1"),
        ({"documents": "10"}, "documents: Input should be a valid integer, got '10'"),
        ({"method": None}, "method: Input should be a valid string, got None"),
        ({"shown": [0, -1]}, "shown.1: Input should be greater than or equal to 0, got -1"),
    ],
)
def test_an_edited_record_is_named_with_file_line_and_field(tmp_path, edited, complaint):
    path = tmp_path / "rows.jsonl"
    path.write_text(f"{json.dumps(LINE)}\n\n{json.dumps({**LINE, **edited})}\n")
    with pytest.raises(DataError, match=re.escape(f"{path}, line 3: {complaint}")):
        read_records(path)


@pytest.mark.parametrize("line", [b"5", b"\xff", b'{"id": "a"', b'{"score": ' + b"1" * 5000 + b"}"])
def test_what_is_no_object_is_named_with_its_line(tmp_path, line):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(line + b"\n")
    with pytest.raises(DataError, match=re.escape(f"{path}, line 1: ")):
        read_records(path)


@pytest.mark.parametrize("edited", [{}, {"seconds": 77.0}, {"prediction": "another"}])
def test_two_records_of_one_case_are_refused_by_line(tmp_path, edited):
    path = tmp_path / "rows.jsonl"
    lines = [LINE, {**LINE, "id": "other"}, {**LINE, **edited}]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(DataError, match=re.escape(f"{path}, line 3: the same record as in line 1; remove one")):
        read_records(path)
