"""Differences from any method of a run, against the summary's differences from the plain model."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from ragbias.errors import RunError
from ragbias_eval.report.combine import differences_from, summarise_runs
from ragbias_eval.runs import Run, read_run
from support.bench_records import logprobs_with

KEPT = Path(__file__).parents[3] / "docs/results/smollm2-depth"


@pytest.fixture(scope="module")
def run():
    return read_run(KEPT)


@pytest.fixture(scope="module")
def result(run):
    (found,) = summarise_runs([run])["results"]
    return found


def test_differences_to_the_plain_model_match_the_summary(run, result):
    found = differences_from(result, [run], "none")["logprob"]
    assert found.keys() == result["methods"].keys() - {"none"}
    for name, figures in found.items():
        expected = result["methods"][name]["logprob"]["minus_plain"]
        assert (figures["mean"], figures["worst"]) == (expected["mean"], expected["worst_to_worst"])
    means = [figures["mean"][0] for figures in found.values()]
    assert means == sorted(means, reverse=True)


def test_a_difference_turned_round_changes_its_sign_only(run, result):
    one = differences_from(result, [run], "pine")["logprob"]["none"]["mean"]
    other = differences_from(result, [run], "none")["logprob"]["pine"]["mean"]
    value, low, high = other
    assert one == pytest.approx([-value, -high, -low])


def test_the_command_shows_and_writes_them(cli, tmp_path):
    out = tmp_path / "report.json"
    code, output, _ = cli("report", KEPT, "--against", "pine", "--json", out)
    (result,) = json.loads(out.read_text())["results"]
    value, low, high = result["minus"]["pine"]["logprob"]["pine(to_layer=23)"]["mean"]
    assert code == 0
    assert f"{value + 0:+.2f} ({low:+.2f} to {high:+.2f})" in output


def test_a_method_that_was_not_run_is_refused(run, result):
    with pytest.raises(RunError, match=r"'pcw' was not run for mdqa, 10 documents, model smollm2; expected one of 'no"):
        differences_from(result, [run], "pcw")


def test_a_measure_missing_for_the_method_has_no_differences():
    positions = {0: 0.0, 9: -1.0}
    records = logprobs_with({"none": positions, "pine": positions}, 20)
    both = [replace(each, score=1.0) if each.method == "none" else each for each in records]
    run = Run(Path("run"), both, [], {}, {})
    (result,) = summarise_runs([run])["results"]
    found = differences_from(result, [run], "pine")
    assert found["accuracy"] == {} and found["logprob"].keys() == {"none"}
