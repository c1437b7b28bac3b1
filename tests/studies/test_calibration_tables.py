"""Stored calibrations, their tables, and the questions for them."""

import json
import shutil

import pytest

from ragbias.data.questions import read_questions
from ragbias.errors import DataError
from ragbias.methods.profiles import SHIPPED
from studies.calibration_questions import QUESTIONS, USED_BY_STUDIES, question_lines
from studies.calibration_tables import calibration_tables, read_calibrations, store_calibrations


@pytest.fixture
def made(tmp_path):
    """A finished calibration, an unfinished one, and one of parameters."""
    folder = tmp_path / "made"
    folder.mkdir()
    profile = {**json.loads((SHIPPED / "tiny.json").read_text())}
    profile["settings"]["variant"] = "paper"
    (folder / "tiny-paper.json").write_text(json.dumps(profile))
    (folder / "tiny-released.json.partial.json").write_text("{}")
    found = {
        "model": "tiny",
        "method": "ape(scale=0.9)",
        "by": "loss",
        "tried": [1, 2],
        "check": {"best": {"loss": 2.0, "difference": -0.2, "standard_error": 0.05}},
        "beats_plain": True,
        "settings": {"samples": 7, "check_samples": 6, "depths": 2},
    }
    (folder / "tiny-ape.json").write_text(json.dumps(found))
    return folder


def test_finished_calibrations_are_stored_with_their_intervals(made, tmp_path):
    stored = tmp_path / "kept"
    assert store_calibrations(made, stored) == ["tiny-ape", "tiny-paper"]
    assert sorted(path.name for path in stored.iterdir()) == ["tiny-ape.json", "tiny-paper.json"]
    tables = calibration_tables(read_calibrations(stored))
    assert "| tiny, paper | 7, -1 | 1 to 1 | 0.18 |" in tables
    assert "| +0.04 (-0.04 to +0.13) | no |" in tables  # 0.0448 with a standard error of 0.0431
    assert "| tiny | ape(scale=0.9) | loss | 2 | 3 questions | -0.20 (-0.30 to -0.10) | yes |" in tables
    assert tables.endswith("[tiny-ape](calibration/tiny-ape.json), [tiny-paper](calibration/tiny-paper.json).\n")
    shutil.rmtree(stored)
    assert calibration_tables(read_calibrations(stored)) == "No calibration is stored yet.\n"


@pytest.mark.parametrize("content", ['{"channel": 7', "[]", '{"model": "tiny", "channel": 7}', '{"method": "ape"}'])
def test_a_damaged_record_is_named_and_overwrites_nothing(made, tmp_path, content):
    stored = tmp_path / "kept"
    store_calibrations(made, stored)
    before = {path.name: path.read_bytes() for path in stored.iterdir()}
    (made / "tiny-ape.json").write_text((made / "tiny-ape.json").read_text().replace("loss", "divergence"))
    (made / "tiny-paper.json").write_text(content)
    with pytest.raises(DataError, match=r"tiny-paper\.json is not a record of a calibration"):
        store_calibrations(made, stored)
    assert {path.name: path.read_bytes() for path in stored.iterdir()} == before


def test_questions_follow_the_studies_with_cut_passages(tmp_path):
    def line(number):
        long = " ".join(["filler"] * 50 + [f"gold{number}"] + ["filler"] * 50)
        texts = ("none here", long, "nor here")
        passages = [{"title": f"T{at}", "text": text, "isgold": at == 1} for at, text in enumerate(texts)]
        return json.dumps({"question": f"q{number}?", "answers": [f"gold{number}", "other"], "ctxs": passages})

    data, out = tmp_path / "mdqa.jsonl", tmp_path / "questions.jsonl"
    data.write_text("\n".join(map(line, range(USED_BY_STUDIES + QUESTIONS + 5))))
    out.write_text("".join(question_lines(data)))
    first, *others = read_questions(out, labelled=True)
    assert len(others) == QUESTIONS - 1
    assert (first.question, first.answers, first.gold) == (f"q{USED_BY_STUDIES}?", (f"gold{USED_BY_STUDIES}",), 1)
    assert first.documents[0] == "Document (Title: T0) none here"
    assert f"gold{USED_BY_STUDIES}" in first.documents[1] and len(first.documents[1].split()) < 50
