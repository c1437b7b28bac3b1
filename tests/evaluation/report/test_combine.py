"""Folders of runs, and the command that reports on them."""

import gzip
import json
import re
from functools import partial

import pytest

from ragbias.errors import DataError, RunError
from ragbias_eval.report.combine import summarise_runs
from ragbias_eval.runs import as_json_lines, read_run
from support.bench_records import records_with, u_shape

POSITIONS = [0, 4, 9]
PLAIN = {"none": u_shape(POSITIONS, 0.9, 0.3)}
FLAT = {"pine": dict.fromkeys(POSITIONS, 0.7)}


def folder(path, accuracies, **files):
    path.mkdir()
    records = records_with(accuracies, 10)
    (path / "rows.jsonl").write_text(as_json_lines(records))
    for name, content in files.items():
        (path / name.replace("_", ".")).write_text(content)
    return path


@pytest.fixture
def report(cli):
    return partial(cli, "report")


def test_methods_of_two_runs_are_reported_together(tmp_path):
    cost = [{"tiny|made-up|10": {label: {"prefill_ratio": [1, 1, 1]}}} for label in ("none", "pine")]
    first = folder(tmp_path / "a", PLAIN, cost_json=json.dumps(cost[0]), settings_json='{"decides": {"seed": 3}}')
    second = folder(tmp_path / "b", FLAT, cost_json=json.dumps(cost[1]))
    (second / "noise.jsonl").write_text(as_json_lines(records_with(FLAT, 10)[:10]))
    runs = [read_run(first), read_run(second)]
    (result,) = summarise_runs(runs)["results"]
    assert list(result["methods"]) == ["none", "pine"]
    assert result["methods"]["pine"]["minus_plain"]["worst_to_worst"][0] > 0
    assert all("cost" in method for method in result["methods"].values())
    assert result["methods"]["pine"]["noise_floor"][0] == 0 and result["methods"]["none"]["noise_floor"] is None
    assert runs[0].settings == {"decides": {"seed": 3}} and runs[1].settings == {}


def test_a_method_in_two_runs_is_refused_and_both_are_named(tmp_path):
    runs = [read_run(folder(tmp_path / name, PLAIN)) for name in ("first", "second")]
    with pytest.raises(RunError, match=r"first and .*second both hold 'none' for model 'tiny', task 'made-up'"):
        summarise_runs(runs)


DATA = [{"file": "a.jsonl", "sha256": "12"}]
TASK = {"name": "made-up", "data": DATA, "orders": 2}


def settings(task=None, **changes):
    tasks = [{"name": "other", "indices": False}, {**TASK, **(task or {})}]
    return json.dumps({"decides": {"methods": "none", "tasks": tasks, "dtype": "auto", "batch_size": 8, **changes}})


def pair(tmp_path, first, second):
    made = [
        folder(tmp_path / name, accuracies, settings_json=text)
        for name, accuracies, text in (("a", PLAIN, first), ("b", FLAT, second))
    ]
    return [read_run(each) for each in made]


def test_runs_with_the_same_settings_pair_without_a_note(tmp_path):
    (result,) = summarise_runs(pair(tmp_path, settings(), settings(methods="pine", models=["tiny"])))["results"]
    assert result["notes"] == []


@pytest.mark.parametrize(
    ("task", "changes", "note"),
    [
        ({}, {"dtype": "bfloat16"}, "The runs differ in dtype: 'auto' in .*a, 'bfloat16' in .*b;"),
        ({}, {"batch_size": 1}, "differ in batch_size: 8 in .*a, 1 in"),
        ({"orders": 3}, {}, "differ in orders: 2 in .*a, 3 in .*b;"),
        ({"data": [*DATA, {"file": "b.jsonl", "sha256": "34"}]}, {}, r"differ in data: \['a.jsonl \(12\)'\] in"),
    ],
)
def test_runs_with_other_settings_pair_with_a_note_for_each(tmp_path, task, changes, note):
    (result,) = summarise_runs(pair(tmp_path, settings(), settings(task, **changes)))["results"]
    assert re.search(note, "\n".join(result["notes"])) and len(result["notes"]) == 1


@pytest.mark.parametrize(
    ("task", "words"),
    [
        (
            {"indices": False},
            "prompts of task 'made-up' differ between runs in indices: 'the default' in .*a, False in",
        ),
        ({"seed": 3}, "differ between runs in seed"),
        ({"data": [{"file": "a.jsonl", "sha256": "34"}]}, "differ between runs in data: .*12.* in .*a, .*34.* in .*b;"),
    ],
)
def test_runs_of_other_questions_are_not_paired(tmp_path, task, words):
    with pytest.raises(RunError, match=words):
        summarise_runs(pair(tmp_path, settings(), settings(task)))


def test_runs_without_settings_are_noted(tmp_path):
    runs = [read_run(folder(tmp_path / "a", PLAIN)), read_run(folder(tmp_path / "b", FLAT))]
    (result,) = summarise_runs(runs)["results"]
    assert any("no recorded settings" in note for note in result["notes"])


def test_folders_that_are_no_runs_are_refused(tmp_path):
    with pytest.raises(RunError, match="missing is not a folder"):
        read_run(tmp_path / "missing")
    with pytest.raises(RunError, match=r"has no rows\.jsonl"):
        read_run(tmp_path)
    (tmp_path / "rows.jsonl").write_text('{"id": "torn')
    with pytest.raises(RunError, match="no answers yet"):
        read_run(tmp_path)


def test_a_run_with_compressed_answers_gives_the_same_summary(tmp_path):
    path = folder(tmp_path / "run", {**PLAIN, **FLAT})
    (path / "noise.jsonl").write_text(as_json_lines(records_with(PLAIN, 10)[:10]))
    before = read_run(path)
    for name in ("rows.jsonl", "noise.jsonl"):
        (path / f"{name}.gz").write_bytes(gzip.compress((path / name).read_bytes()))
        (path / name).unlink()
    assert read_run(path) == before and before.noise
    assert summarise_runs([read_run(path)]) == summarise_runs([before])


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("rows.jsonl", '{"question": "what?"}\n', ", line 1: 'id' is missing; .*; 'method_ran' is missing"),
        ("rows.jsonl", "no json\n", ", line 1: Invalid JSON"),
        ("noise.jsonl", "[]\n", ", line 1: Input should be an object"),
        ("cost.json", "{", " is damaged: Invalid JSON: EOF while parsing"),
        ("cost.json", "[]", " is damaged: Input should be an object"),
        ("cost.json", '{"tiny|made-up|10": 5}', " is damaged: tiny|made-up|10: Input should be an object"),
        (
            "cost.json",
            '{"a": {"none": {"prefill_ratio": 5}}}',
            " is damaged: a.none.prefill_ratio: Input should be a valid array, got 5",
        ),
        ("cost.json", '{"a": {"none": {"prefill_ratio": [1, NaN, 1]}}}', " is damaged: a.none.prefill_ratio.1: .*fin"),
        ("settings.json", "[1]", " is damaged: Input should be an object"),
        ("settings.json", '{"decides": {}, "settings": 5}', " is damaged: settings: Input should be an object, got 5"),
        ("settings.json", "{}", " is damaged: 'decides' is missing"),
    ],
)
def test_files_of_another_format_are_named(tmp_path, name, content, words):
    path = folder(tmp_path / "run", PLAIN)
    (path / name).write_text(content)
    with pytest.raises(DataError, match=f"{name}{words}"):
        read_run(path)


def test_the_command_prints_the_table_and_writes_every_form(tmp_path, report):
    path = folder(tmp_path / "run", {**PLAIN, **FLAT})
    out = {name: tmp_path / f"out.{name}" for name in ("html", "json")}
    code, printed, errors = report(path, *(part for name, file in out.items() for part in (f"--{name}", file)))
    assert code == 0, errors
    first_words = [line.split()[0] for line in printed.splitlines() if line.strip()]
    assert first_words.index("pine") < first_words.index("none")
    assert out["html"].read_text().startswith("<!DOCTYPE html>")
    assert json.loads(out["json"].read_text()) == json.loads(json.dumps(summarise_runs([read_run(path)])))


def test_the_command_ends_with_code_2_if_nothing_is_to_report(tmp_path, report):
    code, _, errors = report(tmp_path, "--html", tmp_path / "out.html")
    assert code == 2
    assert "has no rows.jsonl" in errors and len(errors.splitlines()) == 1
    assert not (tmp_path / "out.html").exists()
