"""Runs that measure the gold answer's log-probability, with or without accuracy."""

import json
import shutil
from dataclasses import replace

import pytest

from ragbias.errors import RunError
from ragbias_eval import bench as bench_module
from ragbias_eval.bench_settings import validate_settings
from ragbias_eval.runs import read_records
from support.bench_records import silently, untimed

TASK = {"name": "tiny", "documents": [3], "positions": [0, 2]}
METHODS = "pine,none,canonical-order"


def settings(out, **changes):
    defaults = {
        "models": "tiny",
        "methods": METHODS,
        "tasks": [TASK],
        "limit": 5,
        "batch_size": 4,
        "cost": False,
        "measure": "logprob",
    }
    return validate_settings({**defaults, "out": out, **changes}, "here")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run that measures only log-probabilities."""
    out = tmp_path_factory.mktemp("logprob") / "run"
    silently(settings(out))
    return out


def test_rows_have_log_probabilities_and_distances_to_the_plain(folder):
    records = read_records(folder / "rows.jsonl")
    assert len(records) == 5 * 2 * 3
    for record in records:
        assert (record.prediction, record.score, record.completion_tokens) == ("", None, 0)
        assert record.logprob < 0 and record.answer_tokens > 0 and record.seconds > 0
        assert {"none": record.kl == 0, "pine": record.kl > 0}.get(record.method, record.kl >= 0)
        assert record.agrees in (True, False)
    assert not (folder / "noise.jsonl").read_bytes()  # nothing is sampled, so nothing is asked again


def test_the_summary_has_its_figures_paired_by_question(folder):
    (result,) = json.loads((folder / "summary.json").read_text())["results"]
    assert (result["measures"], result["positions"]) == (["logprob"], [0, 2])
    records = read_records(folder / "rows.jsonl")
    none, pine = (result["methods"][label]["logprob"] for label in ("none", "pine"))
    means = {
        label: sum(each.logprob for each in records if each.method == label) / 10 for label in ("none", "pine")
    }  # fmt: skip
    assert none["mean"][0] == pytest.approx(means["none"]) and pine["mean"][0] == pytest.approx(means["pine"])
    assert pine["minus_plain"]["mean"][0] == pytest.approx(means["pine"] - means["none"])
    assert pine["minus_plain"]["worst"][0] == pytest.approx(means["pine"] - none["worst"][0])
    assert pine["minus_plain"]["best"][0] == pytest.approx(means["pine"] - none["best"][0])
    assert pine["gap"] == [0, 0, 0] and pine["spread"] == [0, 0, 0] and none["kl"] == [0, 0, 0]
    assert none["agreement"] == [1, 1, 1]


@pytest.mark.parametrize("share", [0.2, 0.6])
def test_a_run_that_was_cut_off_ends_like_one_that_was_not(folder, tmp_path, share):
    shutil.copytree(folder, tmp_path / "run")
    rows = tmp_path / "run" / "rows.jsonl"
    rows.write_bytes(rows.read_bytes()[: int(share * len(rows.read_bytes()))])
    silently(settings(tmp_path / "run"))
    assert untimed(rows) == untimed(folder / "rows.jsonl")


def test_the_plain_model_runs_once_per_prompt_even_without_none(tmp_path, monkeypatch):
    scored = []

    def counted(lm, task, case, method):
        scored.append((case.id, method.name))
        return gold_score(lm, task, case, method)

    gold_score = bench_module.score_gold
    monkeypatch.setattr(bench_module, "score_gold", counted)
    summary = silently(settings(tmp_path / "run", methods="canonical-order,nia", limit=1))
    assert len(scored) == len(set(scored)) == 2 * 3
    method = summary["results"][0]["methods"]["nia"]["logprob"]
    assert method["kl"][0] > 0 and method["minus_plain"] is None


def test_both_measures_in_one_run_are_those_of_two_runs(folder, tmp_path):
    summary = silently(settings(tmp_path / "both", measure=["accuracy", "logprob"], limit=2))
    silently(settings(tmp_path / "accuracy", measure="accuracy", limit=2))
    both, answers = (untimed(tmp_path / name / "rows.jsonl") for name in ("both", "accuracy"))
    fields = ("logprob", "answer_tokens", "kl", "agrees")
    assert [replace(each, **dict.fromkeys(fields)) for each in both] == answers
    expected = [[getattr(each, name) for name in fields] for each in untimed(folder / "rows.jsonl")[: len(both)]]
    assert [[getattr(each, name) for name in fields] for each in both] == expected
    (result,) = summary["results"]
    assert result["measures"] == ["accuracy", "logprob"]
    assert result["methods"]["pine"]["mean"][0] is not None and result["methods"]["pine"]["logprob"]["mean"][0] < 0


def test_another_measure_in_the_same_folder_is_refused(folder):
    with pytest.raises(RunError, match=r"measure was \['logprob'\] and is \['accuracy'\] now"):
        silently(settings(folder, measure="accuracy"))


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [({"measure": "perplexity"}, "measure"), ({"measure": "logprob,logprob"}, "one value is given twice")],
)
def test_measures_that_do_not_fit_are_refused(tmp_path, changes, complaint):
    with pytest.raises(RunError, match=complaint):
        settings(tmp_path / "run", **changes)


def test_a_judge_that_explains_itself_has_no_log_probability(tmp_path):
    pair = {"prompt": "p", "chosen": "a", "rejected": "b", "subset": "s"}
    (tmp_path / "pairs.jsonl").write_text(json.dumps(pair) + "\n")
    task = {"name": "judge", "data": str(tmp_path / "pairs.jsonl")}
    with pytest.raises(RunError, match="set explain: false"):
        silently(settings(tmp_path / "run", methods="none", tasks=[task]))
    summary = silently(settings(tmp_path / "run", methods="none", tasks=[{**task, "explain": False}]))
    assert summary["results"][0]["methods"]["none"]["logprob"]["questions"] == 1


def test_invariant_methods_run_once_give_the_same_records(tmp_path):
    """Two invariant and two other methods, in both measures and in batches of several questions."""
    changes = {"methods": "none,pine,canonical-order,attention-sorting", "measure": "accuracy,logprob"}
    each, once = tmp_path / "each", tmp_path / "once"
    silently(settings(each, **changes))
    silently(settings(once, **changes, invariant_once=True))
    found = untimed(once / "rows.jsonl")
    assert {(record.method, record.gold_position) for record in found if record.copied} == {
        ("pine", 2),
        ("canonical-order", 2),
    }
    (note,) = (
        each for each in json.loads((once / "summary.json").read_text())["results"][0]["notes"] if "copied" in each
    )
    assert "canonical-order, pine." in note
    assert [replace(record, copied=False) for record in found] == untimed(each / "rows.jsonl")
