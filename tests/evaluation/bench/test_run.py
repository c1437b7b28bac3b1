"""Runs in this process: what they leave, and that a stopped one ends as if it had not been."""

import json
from dataclasses import replace

import pytest
from rich.progress import Progress

from ragbias.errors import MethodError, RunError
from ragbias.evaluation.bench.run import run
from ragbias.evaluation.bench.settings import checked
from ragbias.evaluation.rows import as_lines, read_rows

TASK = {"name": "tiny", "documents": [3], "positions": [0, 2]}


def settings(out, **changes):
    whole = {"methods": "none,canonical-order", "tasks": [TASK], "limit": 5, "batch_size": 4, "cost": False, "out": out}
    return checked({**whole, **changes}, "here")


def silently(chosen):
    return run(chosen, Progress(disable=True))


def untimed(path):
    return [replace(row, seconds=0) for row in read_rows(path)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run that nothing interrupted."""
    folder = tmp_path_factory.mktemp("bench") / "whole"
    silently(settings(folder))
    return folder


def test_a_run_leaves_every_row_once_its_noise_and_its_summary(whole):
    rows = read_rows(whole / "rows.jsonl")
    assert len({row.key for row in rows}) == len(rows) == 5 * 2 * 2
    assert [row.method for row in rows[:9]] == ["none"] * 4 + ["canonical-order"] * 4 + ["none"]
    assert all(row.seconds > 0 and row.prompt_tokens > 0 and row.documents == 3 for row in rows)
    noise = read_rows(whole / "noise.jsonl")
    assert len(noise) == 5 * 2 and {row.gold_position for row in noise} == {0}
    summary = json.loads((whole / "summary.json").read_text())
    assert list(summary["results"][0]["methods"]) == ["none", "canonical-order"]
    assert summary["results"][0]["methods"]["none"]["noise_floor"] is not None
    assert not (whole / "cost.json").exists()


@pytest.mark.parametrize("share", [0.0, 0.3, 0.55, 0.99])
def test_a_run_that_was_cut_off_ends_like_one_that_was_not(whole, tmp_path, share):
    silently(settings(tmp_path / "run"))
    for name in ("rows.jsonl", "noise.jsonl"):
        content = (tmp_path / "run" / name).read_bytes()
        (tmp_path / "run" / name).write_bytes(content[: int(share * len(content))])
    silently(settings(tmp_path / "run", workers=7))
    for name in ("rows.jsonl", "noise.jsonl"):
        assert untimed(tmp_path / "run" / name) == untimed(whole / name)


def test_rows_that_are_there_are_not_run_again_and_gaps_are_filled_in_place(whole, tmp_path):
    silently(settings(tmp_path / "run"))
    file = tmp_path / "run" / "rows.jsonl"
    kept = [replace(row, seconds=1234.0) for row in read_rows(file)[::3]]
    file.write_text(as_lines(kept))
    silently(settings(tmp_path / "run"))
    assert untimed(file) == untimed(whole / "rows.jsonl")
    assert [row for row in read_rows(file) if row.seconds == 1234.0] == kept


def test_a_finished_run_is_not_touched(whole):
    before = (whole / "rows.jsonl").read_bytes()
    assert silently(settings(whole)) == json.loads((whole / "summary.json").read_text())
    assert (whole / "rows.jsonl").read_bytes() == before


def test_costs_are_measured_once_for_each_number_of_documents(tmp_path):
    chosen = settings(tmp_path / "run", limit=1, cost=True, methods="none,pine")
    summary = silently(chosen)
    costs = json.loads((tmp_path / "run" / "cost.json").read_text())
    assert list(costs) == ["tiny|tiny|3"] and list(costs["tiny|tiny|3"]) == ["none", "pine"]
    assert summary["results"][0]["methods"]["pine"]["cost"] == costs["tiny|tiny|3"]["pine"]
    before = (tmp_path / "run" / "cost.json").read_bytes()
    silently(chosen)
    assert (tmp_path / "run" / "cost.json").read_bytes() == before


def test_another_run_in_the_folder_is_refused(whole):
    with pytest.raises(RunError, match="limit was 5 and is 4 now"):
        silently(settings(whole, limit=4))


def test_an_error_of_a_method_names_task_method_and_case(tmp_path):
    with pytest.raises(MethodError, match=r"task tiny, method pine\(layers=\(0,99\)\), case 'tiny/0/3/0/0/0'.*99"):
        silently(settings(tmp_path / "run", methods="none,pine(layers=(0,99))"))
    assert {row.method for row in read_rows(tmp_path / "run" / "rows.jsonl")} == {"none"}


@pytest.mark.parametrize("name", ["no/such/folder", "/no/such/folder"])
def test_a_model_that_is_not_there_is_refused_before_a_folder_is_made(tmp_path, name):
    with pytest.raises(RunError, match=f"model '{name}'"):
        silently(settings(tmp_path / "run", models=name))
    (tmp_path / "empty").mkdir()
    with pytest.raises(RunError, match=r"no config\.json"):
        silently(settings(tmp_path / "run", models=str(tmp_path / "empty")))
    assert not (tmp_path / "run").exists()
