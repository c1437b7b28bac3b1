from __future__ import annotations

import gzip
import os
import re
from pathlib import Path

import pytest

from ragbias.errors import DataError, RunError
from ragbias.evaluation.data.jsonl import Line, read_lines, sources


def written(tmp_path: Path, content: str | bytes, name: str = "data.jsonl") -> Path:
    path = tmp_path / name
    raw = content.encode() if isinstance(content, str) else content
    path.write_bytes(gzip.compress(raw) if name.endswith(".gz") else raw)
    return path


def failure(path: Path) -> str:
    with pytest.raises(DataError) as caught:
        list(read_lines(path))
    return str(caught.value)


@pytest.mark.parametrize("name", ["data.jsonl", "data.jsonl.gz"])
def test_lines_are_numbered_as_in_the_file_and_blank_ones_skipped(tmp_path: Path, name: str) -> None:
    path = written(tmp_path, '{"a": "1"}\n\n   \n{"a": "2"}\r\n{"a": "3"}', name)
    assert [(line.number, line.text("a")) for line in read_lines(path)] == [(1, "1"), (4, "2"), (5, "3")]


def test_only_a_line_feed_ends_a_line(tmp_path: Path) -> None:
    path = written(tmp_path, '{"a": "x\u2028y\u0085z\u2029"}\n{"a": "2"}\n')
    assert [line.text("a") for line in read_lines(path)] == ["x\u2028y\u0085z\u2029", "2"]


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ("{'a': 1}", "not JSON (Expecting property name"),
        ('{"a": "1"', "not JSON (Expecting ',' delimiter"),
        ("[1, 2]", "[1, 2]; expected an object"),
        ("[" * 100_000, "not JSON ("),
        ('{"a": ' + "1" * 5000 + "}", "not JSON ("),
        (b'{"a": "\xff"}', "not UTF-8 (invalid start byte)"),
    ],
)
@pytest.mark.parametrize("name", ["data.jsonl", "data.jsonl.gz"])
def test_a_bad_line_is_named(tmp_path: Path, bad: str | bytes, reason: str, name: str) -> None:
    raw = bad.encode() if isinstance(bad, str) else bad
    path = written(tmp_path, b'{"a": "1"}\n\n' + raw + b'\n{"a": "2"}\n', name)
    assert failure(path).startswith(f"{path}, line 3: {reason}")


def test_a_truncated_gzip_is_named_with_the_line_where_it_ends(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"a": "1"}\n')[:-4])
    assert re.fullmatch(rf"{path}, line \d: broken gzip \(.*\); fetch the file again", failure(path))


def test_a_file_that_is_no_gzip_is_named(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl.gz"
    path.write_text('{"a": "1"}\n')
    assert failure(path).startswith(f"{path}, line 1: broken gzip (Not a gzipped file")


def test_damaged_gzip_is_named(tmp_path: Path) -> None:
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
def test_the_entries_of_a_list_are_numbered_and_errors_name_the_line_they_begin_in(tmp_path: Path, name: str) -> None:
    path = written(tmp_path, ENTRIES, name)
    lines = list(read_lines(path))
    assert [(line.number, line.text("a")) for line in lines] == [(1, "1, [2"), (2, "\n"), (3, "4")]
    with pytest.raises(DataError, match=re.escape(f"{path}, line 5: entry 2: 'label' is 3; expected 1 or 2")):
        lines[1].choice("label", (1, 2))
    with pytest.raises(DataError, match="line 6: entry 3: no field 'label'.*; expected one that is 1 or 2"):
        lines[2].choice("label", (1, 2))


def test_a_file_of_lines_may_end_with_json_too(tmp_path: Path) -> None:
    path = written(tmp_path, '{"a": "1"}\n{"a": "2"}\n', "data.json")
    assert [(line.number, line.text("a")) for line in read_lines(path)] == [(1, "1"), (2, "2")]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ('[\n{"a": 1},\n{"a" 2}]', ", line 3: not JSON (Expecting ':' delimiter"),
        ('[\n{"a": 1},\n7]', ", line 3: entry 2: 7; expected an object"),
        ('[{"a": 1}]\n[]', ", line 2: not JSON (Extra data"),
        (b'[{"a": "\xff"}]', ": not UTF-8 (invalid start byte)"),
        ("[]", " holds an empty list; expected at least one object"),
    ],
    ids=["colon", "number", "two", "utf-8", "empty"],
)
def test_a_bad_list_is_named(tmp_path: Path, content: str | bytes, reason: str) -> None:
    path = written(tmp_path, content, "data.json")
    assert failure(path).startswith(f"{path}{reason}")


@pytest.mark.parametrize("content", ["", "\n \n"])
def test_a_file_without_examples_is_refused(tmp_path: Path, content: str) -> None:
    path = written(tmp_path, content)
    assert failure(path) == f"{path} holds no examples; expected one JSON object per line"


FIELDS = {"text": "a", "number": 3, "texts": ["a", "b"], "empty": [], "mixed": ["a", 1], "flag": True}
LINE = Line(
    Path("f.jsonl"), 7, {**FIELDS, "pairs": [["a", "b"]], "three": [["a", "b", "c"]], "objects": [{"x": "y"}, 1]}
)


def test_fields_come_with_their_types() -> None:
    line = Line(LINE.path, 7, {**LINE.fields, "objects": [{"x": "y"}]})
    assert (line.text("text"), line.texts("texts"), line.flag("flag")) == ("a", ("a", "b"), True)
    assert line.pairs("pairs") == (("a", "b"),)
    assert [each.text("x") for each in line.objects("objects")] == ["y"]


@pytest.mark.parametrize(
    ("kind", "name", "message"),
    [
        ("text", "missing", "f.jsonl, line 7: no field 'missing' (fields: 'text', 'number'"),
        ("text", "number", "f.jsonl, line 7: 'number' is 3; expected a string"),
        ("flag", "number", "f.jsonl, line 7: 'number' is 3; expected true or false"),
        ("texts", "text", "f.jsonl, line 7: 'text' is \"a\"; expected a list"),
        ("texts", "empty", "f.jsonl, line 7: 'empty' is an empty list; expected at least one entry"),
        ("texts", "mixed", "f.jsonl, line 7: 'mixed[1]' is 1; expected a string"),
        ("pairs", "three", 'f.jsonl, line 7: \'three[0]\' is ["a", "b", "c"]; expected a list of two strings'),
        ("objects", "objects", "f.jsonl, line 7: 'objects[1]' is 1; expected an object"),
    ],
)
def test_a_wrong_field_is_named_with_what_was_expected(kind: str, name: str, message: str) -> None:
    with pytest.raises(DataError, match=re.escape(message)):
        getattr(LINE, kind)(name)


def test_a_field_inside_a_line_is_named_with_its_path() -> None:
    line = Line(LINE.path, 7, {"ctxs": [{"title": "a"}, {"text": "b"}]})
    with pytest.raises(DataError, match=re.escape("f.jsonl, line 7: ctxs[1]: no field 'title'")):
        line.objects("ctxs")[1].text("title")


def test_half_a_surrogate_pair_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, '{"a": "\\ud83d"}\n')
    with pytest.raises(DataError, match="line 1: 'a' holds half of a surrogate pair"):
        next(read_lines(path)).text("a")


def test_files_are_told_by_their_names_without_endings() -> None:
    paths = [Path("x/a.jsonl"), Path("x/b_at_0.jsonl.gz"), Path("x/c.json")]
    assert list(sources(paths)) == ["a", "b_at_0", "c.json"]


@pytest.mark.parametrize(
    ("paths", "message"),
    [([], "no files of data"), ([Path("a.jsonl"), Path("x/a.jsonl.gz")], "both named 'a'")],
)
def test_no_files_and_two_of_one_name_are_refused(paths: list[Path], message: str) -> None:
    with pytest.raises(RunError, match=message):
        sources(paths)


def test_a_pipe_is_refused_before_it_is_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "data.jsonl")
    with pytest.raises(DataError, match="is a named pipe; expected a regular file"):
        list(read_lines(tmp_path / "data.jsonl"))
