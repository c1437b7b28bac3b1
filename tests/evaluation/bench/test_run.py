"""Runs in this process: their files, and resumption after an interrupt."""

import json
import shutil
from dataclasses import replace
from itertools import combinations, groupby
from pathlib import Path
from statistics import fmean

import pytest
from scipy.stats import kendalltau

from ragbias import DebiasedLM
from ragbias.errors import MethodError, ModelFileError, PromptTooLongError, RunError
from ragbias.methods import parse_methods
from ragbias.models import tiny
from ragbias_eval.bench import Unit, run_unit
from ragbias_eval.bench_settings import validate_settings
from ragbias_eval.runs import as_json_lines, read_records
from ragbias_eval.tasks.tiny_qa import TinyQA
from support.bench_records import silently, untimed

TASK = {"name": "tiny", "documents": [3], "positions": [0, 2]}


def settings(out, **changes):
    whole = {
        "models": "tiny",
        "methods": "none,canonical-order",
        "tasks": [TASK],
        "limit": 5,
        "batch_size": 4,
        "cost": False,
        "out": out,
    }
    return validate_settings({**whole, **changes}, "here")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run without interruption."""
    folder = tmp_path_factory.mktemp("bench") / "whole"
    silently(settings(folder))
    return folder


def test_a_run_writes_each_record_once_with_noise_and_summary(whole):
    records = read_records(whole / "rows.jsonl")
    assert len({record.key for record in records}) == len(records) == 5 * 2 * 2
    assert [record.method for record in records[:9]] == ["none"] * 4 + ["canonical-order"] * 4 + ["none"]
    assert all(record.seconds > 0 and record.prompt_tokens > 0 and record.documents == 3 for record in records)
    assert all(sorted(record.shown) == [0, 1, 2] for record in records)
    noise = read_records(whole / "noise.jsonl")
    assert len(noise) == 5 * 2 and {record.gold_position for record in noise} == {0}
    summary = json.loads((whole / "summary.json").read_text())
    assert list(summary["results"][0]["methods"]) == ["none", "canonical-order"]
    assert summary["results"][0]["methods"]["none"]["noise_floor"] is not None
    assert not (whole / "cost.json").exists()


@pytest.mark.parametrize("n_questions", [2, 3], ids=["whole batches", "half a batch"])
def test_a_run_with_more_questions_reuses_its_answers(whole, tmp_path, n_questions):
    silently(settings(tmp_path / "run", limit=n_questions))
    first = read_records(tmp_path / "run" / "rows.jsonl")
    silently(settings(tmp_path / "run"))
    for name in ("rows.jsonl", "noise.jsonl"):
        assert untimed(tmp_path / "run" / name) == untimed(whole / name)
    again = {record.key: record for record in read_records(tmp_path / "run" / "rows.jsonl")}
    assert [again[record.key] for record in first] == first  # with their times


@pytest.mark.parametrize("share", [0.0, 0.3, 0.55, 0.99])
def test_a_run_that_was_cut_off_ends_like_one_that_was_not(whole, tmp_path, share):
    shutil.copytree(whole, tmp_path / "run")
    for name in ("rows.jsonl", "noise.jsonl"):
        content = (tmp_path / "run" / name).read_bytes()
        (tmp_path / "run" / name).write_bytes(content[: int(share * len(content))])
    silently(settings(tmp_path / "run"))
    for name in ("rows.jsonl", "noise.jsonl"):
        assert untimed(tmp_path / "run" / name) == untimed(whole / name)


def test_only_missing_records_are_run(whole, tmp_path):
    shutil.copytree(whole, tmp_path / "run")
    file = tmp_path / "run" / "rows.jsonl"
    records = [replace(record, seconds=1234.0) for record in read_records(file)[::3]]
    file.write_text(as_json_lines(records))
    silently(settings(tmp_path / "run"))
    assert untimed(file) == untimed(whole / "rows.jsonl")
    assert [record for record in read_records(file) if record.seconds == 1234.0] == records


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


@pytest.fixture(scope="module")
def reordered(tmp_path_factory):
    """Aggregates of methods that reorder six documents, over three orders."""
    methods = "none,canonical-order,long-context-reorder,attention-sorting,pine"
    task = {"name": "tiny", "documents": [6], "positions": [0, 3, 5]}
    summary = silently(settings(tmp_path_factory.mktemp("reordered") / "run", methods=methods, tasks=[task]))
    return summary["results"][0]["methods"]


def mean_tau(orders):
    """Return the mean of scipy's tau over all pairs of orders of the same items."""
    positions = [[order.index(each) for each in sorted(order)] for order in orders]
    return fmean(kendalltau(*pair).statistic for pair in combinations(positions, 2))


def test_canonical_orders_agree_and_in_model_orders_are_unknown(reordered):
    assert reordered["canonical-order"]["kendall_tau"] == [1, 1, 1]
    assert reordered["pine"]["kendall_tau"] is None


def test_segmented_shows_the_documents_as_given_like_none(tmp_path):
    summary = silently(settings(tmp_path / "run", limit=1, cost=True, methods="segmented,none,pine"))
    methods = summary["results"][0]["methods"]
    assert methods["none"]["cost"]["prefill_ratio"] == [1, 1, 1]
    assert methods["segmented"]["cost"]["prefill_ratio"] == [1, 1, 1]  # the same work, measured once
    assert methods["pine"]["cost"]["prefill_ratio"] != [1, 1, 1]
    by_method = {}
    for record in read_records(tmp_path / "run" / "rows.jsonl"):
        by_method.setdefault(record.method, []).append(record.shown)
    assert by_method["segmented"] == by_method["none"] and set(by_method["pine"]) == {()}


def test_orders_shown_by_a_fixed_rule_agree_as_that_rule_says(reordered):
    given = ["Gabcde", "abcGde", "abcdeG"]  # the gold document first, fourth and last
    shown = [[order[index] for index in (1, 3, 5, 4, 2, 0)] for order in given]
    for label, orders in (("none", given), ("long-context-reorder", shown)):
        assert reordered[label]["kendall_tau"] == pytest.approx([mean_tau(orders)] * 3), label


def test_orders_of_attention_sorting_agree_as_its_prompts_do(reordered):
    task, lm = TinyQA(documents=(6,), positions=(0, 3, 5), limit=5), DebiasedLM.from_pretrained("tiny")
    taus = []
    for _, cases in groupby(task.cases(), key=lambda case: case.question):
        requests = [lm.prepare(case.text, documents=case.documents, method="attention-sorting") for case in cases]
        taus.append(mean_tau([request.tokens.documents for request in requests]))
    assert len(taus) == 5 and min(taus) < 1
    estimate, low, high = reordered["attention-sorting"]["kendall_tau"]
    assert estimate == pytest.approx(fmean(taus)) and -1 <= low <= estimate <= high < 1


def test_another_run_in_the_folder_is_refused(whole):
    with pytest.raises(RunError, match="limit was 5 and is 4 now"):
        silently(settings(whole, limit=4))


def test_an_error_of_a_method_names_task_method_and_case():
    task = TinyQA(documents=(3,), limit=1)
    methods = parse_methods("none,pine(layers=(0,99))")
    found = run_unit(Unit("tiny", task, tuple(task.cases()), methods, 4), DebiasedLM.from_pretrained("tiny", "none"))
    assert {record.method for record in next(found)} == {"none"}
    with pytest.raises(MethodError, match=r"task tiny, method pine\(layers=\(0,99\)\), batch of case 'tiny/0/3/.*99"):
        next(found)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"methods": "none,pine(layers=(0,99))"}, r"pine: layers=\(0, 99\) do not fit a model of 4 layers"),
        ({"tasks": [TASK, {"name": "kv-retrieval", "data": "long.jsonl"}]}, "window"),
    ],
    ids=["layers", "window"],
)
def test_an_invalid_run_makes_no_folder_and_its_correction_runs(tmp_path, monkeypatch, changes, complaint):
    monkeypatch.chdir(tmp_path)
    line = {"key": "a", "value": "b", "ordered_kv_records": [["a", "b"], *[[f"k{n}", "v " * 2000] for n in range(9)]]}
    Path("long.jsonl").write_text(json.dumps(line) + "\n")
    with pytest.raises((MethodError, RunError, PromptTooLongError), match=complaint):
        silently(settings(tmp_path / "run", **changes))
    assert [path.name for path in tmp_path.iterdir()] == ["long.jsonl"]
    silently(settings(tmp_path / "run", limit=1))


@pytest.mark.parametrize("name", ["no/such/folder", "/no/such/folder"])
def test_a_missing_model_is_refused_before_a_folder_is_made(tmp_path, name):
    with pytest.raises(ModelFileError, match=f"model '{name}'"):
        silently(settings(tmp_path / "run", models=name))
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelFileError, match=r"is not a folder with a config\.json"):
        silently(settings(tmp_path / "run", models=str(tmp_path / "empty")))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("model.safetensors", lambda content: content[:1000]),
        ("model.safetensors", lambda content: content[:-1000]),
        ("tokenizer.json", lambda content: b'{"a":\n'),
        ("config.json", lambda content: b"[]"),
    ],
)
def test_a_damaged_model_is_named_before_a_folder_is_made(tmp_path, name, damage):
    model = tmp_path / "model"
    shutil.copytree(tiny.path(), model)
    (model / name).write_bytes(damage((model / name).read_bytes()))
    with pytest.raises(ModelFileError, match=f"model '{model}'"):
        silently(settings(tmp_path / "run", models=str(model)))
    assert not (tmp_path / "run").exists()
