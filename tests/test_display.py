"""Terminal codes in names and answers are shown as text."""

import json
import re

import pytest

from ragbias.display import printable
from ragbias_eval.runs import as_json_lines
from support.bench_records import records_with

CODES = "\x1b[31mred\x1b]0;title\x07\x9b2J\r\u202e\ud800"
ACTING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\ud800-\udfff]")


def test_codes_are_shown_as_one_sign_and_other_text_stays():
    assert printable(CODES) == "\ufffd[31mred\ufffd]0;title\ufffd\ufffd2J\ufffd\ufffd\ufffd"
    assert printable("Ü\tA\r\nB\n→ 😀") == "Ü\tA\nB\n→ 😀"


@pytest.fixture
def folder(tmp_path):
    """A run whose names contain terminal codes."""
    run = tmp_path / "run"
    run.mkdir()
    accuracies = {"none": {0: 0.9, 1: 0.2}, "m\x1b[2J": {0: 0.5, 1: 0.5}}
    records = records_with(accuracies, 8, model="\x1b]0;owned\x07", groups=("\x1b[1mg",))
    (run / "rows.jsonl").write_text(as_json_lines(records))
    (run / "settings.json").write_text(json.dumps({"decides": {"x": "\x1b[5m"}}, ensure_ascii=False))
    return run


def test_no_report_of_a_run_holds_codes(cli, folder, tmp_path):
    code, output, errors = cli("report", folder, "--html", tmp_path / "a.html")
    assert (code, errors) == (0, "")
    for text in (output, (tmp_path / "a.html").read_text()):
        assert "owned" in text and not ACTING.search(text)


def test_errors_show_no_codes(cli, tmp_path):
    code, _, errors = cli("report", tmp_path / "a\x1b[31m")
    assert code == 2 and not ACTING.search(errors.rstrip("\n"))


def test_an_answer_and_its_documents_show_no_codes(cli, tmp_path):
    (tmp_path / "a.txt").write_text("The mascot of Heron Mill is a \x1b[31mbrass\x07 owl.")
    code, output, _ = cli("ask", "What is the mascot of \x1b[5mHeron Mill?", "--documents", tmp_path, "--model", "tiny")
    assert code == 0 and not ACTING.search(output)
