import json

import pytest

from ragbias.readers import READER
from studies import reader_grid

PLACES = ("Rome", "Oslo", "Lima", "Kyiv", "Bonn", "Cairo", "Delhi", "Paris")
RUNS = ("pcw:both:2:2:0", "none:free:1:2:0")


@pytest.fixture
def arguments(tmp_path):
    notes = [f"The key {number} is in {place}." for number, place in enumerate(PLACES)]
    asked = {f"Where is the key {number}?": place for number, place in enumerate(PLACES)}
    training = [
        {"question": question, "answer": place, "documents": notes, "gold": number}
        for number, (question, place) in enumerate(asked.items())
    ]
    official = [
        {
            "question": question,
            "answers": [place],
            "ctxs": [{"title": "Key", "text": notes[i], "isgold": i == number} for i in [number, (number + 1) % 8]],
        }
        for number, (question, place) in enumerate(asked.items())
    ]
    for name, rows in (("training", training), ("official", official)):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    files = [str(tmp_path / f"{name}.jsonl") for name in ("training", "official")]
    more = ["--out", str(tmp_path / "readers"), "--results", str(tmp_path / "results.json")]
    return [*files, *more, "--model", "tiny", "--dtype", "float32", "--examples", "8", "--evaluated", "3"]


def test_each_run_trains_and_compares_a_reader(arguments, tmp_path, capsys):
    reader_grid.main([*arguments, "--runs", *RUNS])
    scores = json.loads((tmp_path / "results.json").read_text())["scores"]
    assert {name: [len(of) for of in values] for name, values in scores.items()} == {
        "none": [3, 3, 3],
        RUNS[0]: [1, 1, 1],
        RUNS[1]: [3, 3, 3],
    }
    assert f"{RUNS[1]}: " in capsys.readouterr().out
    files = {run: tmp_path / "readers" / run.replace(":", "-") / READER for run in RUNS}
    assert json.loads(files[RUNS[0]].read_text())["method"] == "pcw"
    before = [file.stat().st_mtime_ns for file in files.values()]
    reader_grid.main([*arguments, "--runs", *RUNS, "--prompt", "bare", "--results", str(tmp_path / "bare.json")])
    assert before == [file.stat().st_mtime_ns for file in files.values()]  # not trained again
    assert json.loads((tmp_path / "bare.json").read_text())["scores"][RUNS[0]] != scores[RUNS[0]]


def test_seeds_are_averaged_by_question():
    scores = {
        "none": [[1.0, 3.0]],
        "pcw:both:2:2:0": [[1.0]],
        "pcw:both:2:2:1": [[4.0]],
        "none:both:2:2:0": [[0.0, 2.0]],
    }
    means = {"none": [[1.0, 3.0]], "pcw:both:2:2": [[2.5]], "none:both:2:2": [[1.0]]}
    assert reader_grid.average_seeds(scores) == means


@pytest.mark.parametrize("run", ["pcw", "pcw:both:2:2", "pcw:both:2:2:x", "pcw:other:2:2:0"])
def test_a_run_that_cannot_be_read_is_refused(arguments, run):
    with pytest.raises(SystemExit, match=f"{run}: expected METHOD:OBJECTIVE:STEPS:RANK:SEED with distil, labels"):
        reader_grid.main([*arguments, "--runs", run])
