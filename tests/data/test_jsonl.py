import gzip
import json
import re
from pathlib import Path

import pytest

from ragbias.data.jsonl import Answers, Row, files_by_name, read_lines
from ragbias.errors import DataError, RunError


class Text(Row):
    a: str


def written(tmp_path: Path, content: str | bytes, name: str = "data.jsonl") -> Path:
    path = tmp_path / name
    raw = content.encode() if isinstance(content, str) else content
    path.write_bytes(gzip.compress(raw) if name.endswith(".gz") else raw)
    return path


def failure(path: Path) -> str:
    with pytest.raises(DataError) as caught:
        list(read_lines(path, Text))
    return str(caught.value)


@pytest.mark.parametrize("name", ["data.jsonl", "data.jsonl.gz"])
def test_blank_lines_are_skipped_but_counted(tmp_path, name):
    path = written(tmp_path, '{"a": "1"}\n\n   \n{"a": "2"}\r\n{"a": "3"}', name)
    assert [(line.number, line.row.a) for line in read_lines(path, Text)] == [(1, "1"), (4, "2"), (5, "3")]


def test_only_a_line_feed_ends_a_line(tmp_path):
    path = written(tmp_path, '{"a": "x\u2028y\u0085z\u2029"}\n{"a": "2"}\n')
    assert [line.row.a for line in read_lines(path, Text)] == ["x\u2028y\u0085z\u2029", "2"]


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ("{'a': 1}", "Invalid JSON: key must be a string"),
        ('{"a": "1"', "Invalid JSON: EOF while parsing an object"),
        ("[1, 2]", "Input should be an object, got [1, 2]"),
        ("[" * 100_000, "Invalid JSON: recursion limit exceeded"),
        ('{"a": ' + "1" * 5000 + "}", "Invalid JSON: number out of range"),
        (b'{"a": "\xff"}', "Invalid JSON: invalid unicode code point"),
    ],
)
@pytest.mark.parametrize("name", ["data.jsonl", "data.jsonl.gz"])
def test_a_bad_line_is_named(tmp_path, bad, reason, name):
    raw = bad.encode() if isinstance(bad, str) else bad
    path = written(tmp_path, b'{"a": "1"}\n\n' + raw + b'\n{"a": "2"}\n', name)
    assert failure(path).startswith(f"{path}, line 3: {reason}")


def test_a_truncated_gzip_is_named_with_the_line_where_it_ends(tmp_path):
    path = tmp_path / "data.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"a": "1"}\n')[:-4])
    assert re.fullmatch(rf"{path}, line \d: broken gzip \(.*\); fetch the file again", failure(path))


def test_a_file_that_is_no_gzip_is_named(tmp_path):
    path = tmp_path / "data.jsonl.gz"
    path.write_text('{"a": "1"}\n')
    assert failure(path).startswith(f"{path}, line 1: broken gzip (Not a gzipped file")


def test_damaged_gzip_is_named(tmp_path):
    raw = bytearray(gzip.compress(bytes(range(256)) * 100))
    raw[20] ^= 255
    path = tmp_path / "data.jsonl.gz"
    path.write_bytes(raw)
    assert f"{path}, line" in failure(path)


ENTRIES = """
[
  {"a": "1, [2"},

  {"a": "\\n",
   "label": 3}, {"a": "4"}
]
"""


@pytest.mark.parametrize("name", ["data.json", "data.json.gz"])
def test_the_entries_of_a_list_are_numbered(tmp_path, name):
    path = written(tmp_path, ENTRIES, name)
    lines = list(read_lines(path, Text))
    assert [(line.number, line.row.a) for line in lines] == [(1, "1, [2"), (2, "\n"), (3, "4")]
    assert str(lines[1].error("wrong")) == f"{path}, entry 2: wrong"


def test_a_file_of_lines_may_end_with_json_too(tmp_path):
    path = written(tmp_path, '{"a": "1"}\n{"a": "2"}\n', "data.json")
    assert [(line.number, line.row.a) for line in read_lines(path, Text)] == [(1, "1"), (2, "2")]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ('[\n{"a": "1"},\n{"a" 2}]', ": Invalid JSON: expected `:` at line 3"),
        ('[\n{"a": "1"},\n7]', ": 1: Input should be an object, got 7"),
        ('[{"a": "1"}]\n[]', ": Invalid JSON: trailing characters at line 2"),
        (b'[{"a": "\xff"}]', ": Invalid JSON: invalid unicode code point"),
        ("[]", " contains no examples; expected one JSON object per line"),
    ],
    ids=["colon", "number", "two", "utf-8", "empty"],
)
def test_a_bad_list_is_named(tmp_path, content, reason):
    path = written(tmp_path, content, "data.json")
    assert failure(path).startswith(f"{path}{reason}")


@pytest.mark.parametrize("content", ["", "\n \n"])
def test_a_file_without_examples_is_refused(tmp_path, content):
    path = written(tmp_path, content)
    assert failure(path) == f"{path} contains no examples; expected one JSON object per line"


class Inner(Row):
    title: str


class Fields(Row):
    text: str = ""
    flag: bool = False
    answers: Answers = ("x",)
    pairs: tuple[tuple[str, str], ...] = ()
    objects: tuple[Inner, ...] = ()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"text": 3}, "text: Input should be a valid string, got 3"),
        ({"flag": 1}, "flag: Input should be a valid boolean, got 1"),
        ({"answers": "a"}, "answers: Input should be a valid array, got 'a'"),
        ({"answers": []}, "answers: Tuple should have at least 1 item"),
        ({"answers": ["a", " "]}, "answers.1: is empty; repair or remove it"),
        ({"pairs": [["a", "b", "c"]]}, "pairs.0: Tuple should have at most 2 items"),
        ({"objects": [{"title": "a"}, {}]}, "'objects.1.title' is missing"),
    ],
)
def test_a_wrong_field_is_named_with_file_and_line(tmp_path, fields, message):
    path = written(tmp_path, "\n" + json.dumps(fields))
    with pytest.raises(DataError, match=re.escape(f"{path}, line 2: {message}")):
        list(read_lines(path, Fields))


def test_half_a_surrogate_pair_is_refused(tmp_path):
    path = written(tmp_path, '{"text": "\\ud83d"}\n')
    with pytest.raises(DataError, match="line 1: Invalid JSON: .*hex escape"):
        list(read_lines(path, Fields))


def test_files_are_named_without_their_endings():
    paths = [Path("x/a.jsonl"), Path("x/b_at_0.jsonl.gz"), Path("x/c.json")]
    assert list(files_by_name(paths)) == ["a", "b_at_0", "c.json"]


@pytest.mark.parametrize(
    ("paths", "message"), [([], "no data files"), ([Path("a.jsonl"), Path("x/a.jsonl.gz")], "both named 'a'")]
)
def test_no_files_and_two_of_one_name_are_refused(paths, message):
    with pytest.raises(RunError, match=message):
        files_by_name(paths)
