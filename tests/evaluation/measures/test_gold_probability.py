"""Figures of synthetic log-probabilities: pairing by question keeps differences precise."""

import json
from dataclasses import replace

import pytest

from ragbias_eval.measures.aggregates import summarise_records
from support.bench_records import logprobs_with, records_with

BIAS = {0: 0.0, 4: -2.0, 9: 1.0}
SHIFTS = {"none": BIAS, "pine": dict.fromkeys(BIAS, 0.5), "pcw": dict.fromkeys(BIAS, -4.0)}


def figures(records):
    (result,) = summarise_records(records)["results"]
    return result, {label: method["logprob"] for label, method in result["methods"].items()}


def holds(estimate, truth, width):
    value, low, high = estimate
    return abs(value - truth) < 0.1 and low <= value <= high and high - low < width


def test_differences_to_the_plain_curve_show_despite_levels():
    result, methods = figures(logprobs_with(SHIFTS, 60))
    assert (result["measures"], result["positions"], result["notes"]) == (["logprob"], [0, 4, 9], [])
    minus = methods["pine"]["minus_plain"]
    mean = sum(BIAS.values()) / 3
    assert holds(minus["mean"], 0.5 - mean, 0.2)
    assert holds(minus["worst"], 0.5 + 2.0, 0.2) and holds(minus["best"], 0.5 - 1.0, 0.2)
    assert holds(minus["worst_to_worst"], 2.5, 0.3) and holds(minus["gap"], -3.0, 0.4)
    assert holds(methods["none"]["gap"], 3.0, 0.2) and methods["none"]["gap_by_chance"] < 3
    assert holds(methods["pcw"]["minus_plain"]["mean"], -4 - mean, 0.2)
    for position, shift in BIAS.items():
        assert holds(methods["none"]["minus_plain"]["by_position"][str(position)], shift - mean, 0.2)
    _, low, high = methods["none"]["by_position"]["4"]
    assert high - low > 1  # the level itself is as unsure as the questions differ


def test_kl_agreement_and_spread_are_means_over_questions():
    _, methods = figures(logprobs_with(SHIFTS, 60, noise=0))
    assert methods["pine"]["kl"] == pytest.approx([0.5] * 3) and methods["none"]["kl"] == [0, 0, 0]
    assert methods["pine"]["agreement"][0] == 0.5 and methods["none"]["agreement"] == [1, 1, 1]
    assert methods["none"]["spread"] == pytest.approx([3.0] * 3) and methods["pine"]["spread"] == [0, 0, 0]
    assert methods["pine"]["answer_tokens"] == 3


def test_without_a_gold_document_there_are_a_mean_and_a_spread():
    records = logprobs_with({"none": {None: 0.0}, "pine": {None: 1.0}}, 20, noise=0)
    again = [replace(each, id=f"{each.id}-1", order=1, logprob=each.logprob - 1) for each in records]
    result, methods = figures(records + again)
    assert result["positions"] == [] and methods["none"]["by_position"] == {}
    assert methods["none"]["worst"] is None and methods["none"]["spread"] == pytest.approx([1.0] * 3)
    minus = methods["pine"]["minus_plain"]
    assert minus["mean"] == pytest.approx([1.0] * 3) and minus["worst"] is None and minus["by_position"] == {}


def test_few_questions_have_no_intervals_nor_runs_differences():
    result, methods = figures(logprobs_with(SHIFTS, 4))
    assert methods["pine"]["minus_plain"]["mean"][1:] == [None, None] and "too few" in result["notes"][0]
    assert methods["pine"]["minus_plain"]["worst"][0] == pytest.approx(2.5, abs=0.3)
    _, methods = figures(logprobs_with({"pine": BIAS}, 10))
    assert methods["pine"]["minus_plain"] is None


def test_both_measures_fit_one_table_and_one_may_be_empty():
    accurate = records_with({"none": dict.fromkeys(BIAS, 0.5)}, 10)
    (alone,) = summarise_records(accurate)["results"]
    assert alone["measures"] == ["accuracy"] and alone["methods"]["none"]["logprob"] is None
    result, methods = figures(accurate + logprobs_with({"pine": BIAS}, 10))
    assert result["measures"] == ["accuracy", "logprob"]
    assert result["methods"]["pine"]["mean"] == [None] * 3 and methods["none"] is None


def test_cut_passages_are_reported_in_a_plain_summary():
    (result,) = summarise_records(logprobs_with(SHIFTS, 6, shorten=40))["results"]
    assert any("cut to 40 words around the gold answer" in note for note in result["notes"])
    json.dumps(result, allow_nan=False)
