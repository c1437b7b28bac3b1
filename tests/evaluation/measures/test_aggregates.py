"""Aggregates of synthetic records with known figures."""

import json
from dataclasses import replace

import pytest

from ragbias_eval.measures.aggregates import summarise_records
from support.bench_records import record, records_with, u_shape

POSITIONS = [0, 4, 9]
ACCURACIES = {"none": u_shape(POSITIONS, 0.9, 0.3), "pine": dict.fromkeys(POSITIONS, 0.7)}


def only(summary):
    (result,) = summary["results"]
    return result


def test_a_bias_and_its_removal_are_found():
    records = records_with(ACCURACIES, 200)
    result = only(summarise_records(records))
    none, pine = result["methods"]["none"], result["methods"]["pine"]
    assert (result["model"], result["task"], result["documents"]) == ("tiny", "made-up", 10)
    assert result["positions"] == POSITIONS and result["notes"] == []
    for method, label in ((none, "none"), (pine, "pine")):
        for position, truth in ACCURACIES[label].items():
            estimate, low, high = method["accuracy_by_position"][str(position)]
            own = [each.score for each in records if (each.method, each.gold_position) == (label, position)]
            assert estimate == pytest.approx(sum(own) / 200) and low <= truth <= high
    assert pine["gap"] == [0, 0, 0] and pine["flip_rate"] == [0, 0, 0]
    assert none["gap"][1] > 0.4 and none["gap"][0] > none["gap_by_chance"]
    assert none["worst"][0] == none["accuracy_by_position"]["4"][0]
    assert pine["minus_plain"]["worst_to_worst"][1] > 0.25 and pine["minus_plain"]["gap"][2] < -0.4
    assert none["flip_rate"][0] == pytest.approx(none["gap"][0])  # questions between the two thresholds
    assert (none["questions"], none["rows"], none["orders"], none["noise_floor"]) == (200, 600, 3, None)
    assert (none["prompt_tokens"], none["seconds"]) == (100, 0.5)


def test_the_summary_is_plain_and_independent_of_record_order():
    records = records_with(ACCURACIES, 30)
    first, second = (
        json.dumps(summarise_records(each), allow_nan=False, sort_keys=True) for each in (records, records[::-1])
    )
    assert first == second


def test_models_tasks_and_document_counts_are_separate_results():
    records = (
        records_with(ACCURACIES, 6)
        + records_with(ACCURACIES, 6, documents=20)
        + records_with(ACCURACIES, 6, model="other")
    )
    found = [(result["model"], result["documents"]) for result in summarise_records(records)["results"]]
    assert found == [("other", 10), ("tiny", 10), ("tiny", 20)]


def test_few_questions_have_no_intervals_and_a_note():
    result = only(summarise_records(records_with(ACCURACIES, 4)))
    for method in result["methods"].values():
        assert method["mean"][0] is not None and method["mean"][1:] == [None, None]
        assert method["flip_rate"][1:] == [None, None]
    assert result["methods"]["pine"]["minus_plain"]["mean"][1:] == [None, None]
    assert "4 questions are too few for intervals" in result["notes"][0]


def test_cases_without_documents_have_no_positions():
    closed = [
        record(id=f"c{n}", question=f"q{n}", documents=0, gold_position=None, score=float(n < 2)) for n in range(10)
    ]
    alone = only(summarise_records(closed))
    assert (alone["documents"], alone["positions"]) == (0, [])
    assert alone["methods"]["none"]["mean"][0] == pytest.approx(0.2)
    assert alone["methods"]["none"]["worst"] is None and alone["methods"]["none"]["flip_rate"] is None


def test_noise_and_cost_are_given_with_their_method():
    records = records_with(ACCURACIES, 20)
    first = [each for each in records if each.gold_position == 0]
    noise = [replace(each, prediction="hen") if each.question in ("q0", "q1") else each for each in first]
    cost = {"tiny|made-up|10": {"pine": {"prefill_ratio": [1.2, 1.1, 1.3]}}, "tiny|made-up|20": {"none": {}}}
    methods = only(summarise_records(records, cost, noise))["methods"]
    assert methods["none"]["noise_floor"][0] == pytest.approx(2 / 20)
    assert methods["pine"]["cost"] == {"prefill_ratio": [1.2, 1.1, 1.3]} and "cost" not in methods["none"]


def test_a_judge_that_takes_the_first_answer_is_found_out():
    """The fair judge is always right. The other prefers the first answer, so each swap changes its verdict."""
    records = [
        record(
            id=f"{n}-{shown}", task="judge", question=f"q{n}", method=method, gold_position=shown, order=shown,
            score=1.0 if method == "pine" else float(shown == 0), prediction="AB"[shown if method == "pine" else 0],
        )
        for method in ("none", "pine") for n in range(8) for shown in (0, 1)
    ]  # fmt: skip
    methods = only(summarise_records(records))["methods"]
    none, pine = methods["none"]["judge"], methods["pine"]["judge"]
    assert (none["swap_consistency"][0], none["prefers_first"][0]) == (0, 1)
    assert [figure[0] for figure in methods["none"]["accuracy_by_position"].values()] == [1, 0]
    assert (pine["swap_consistency"][0], pine["prefers_first"][0], pine["undecided"]) == (1, 0.5, 0)
    assert (methods["none"]["flip_rate"][0], methods["pine"]["flip_rate"][0]) == (1, 0)


def judged(scores, task="judge"):
    """Make records of pairs by subset, with the scores for both orders of each pair."""
    return [
        record(
            id=f"{subset}-{n}-{shown}", task=task, question=f"{subset}-{n}", group=subset, gold_position=shown,
            order=shown, score=score, prediction={1.0: "chosen", 0.0: "rejected"}.get(score, "neither"),
        )
        for subset, pairs in scores.items() for n, pair in enumerate(pairs) for shown, score in enumerate(pair)
    ]  # fmt: skip


def test_answers_without_a_verdict_count_half_and_are_reported():
    result = only(summarise_records(judged({"a": [(0.5, 0.5)] * 5 + [(1, 0.5)]}, "llmbar")))
    judge = result["methods"]["none"]["judge"]
    assert judge["undecided"] == pytest.approx(11 / 12) and judge["swap_consistency"][0] == pytest.approx(5 / 6)
    assert result["methods"]["none"]["mean"][0] == pytest.approx((5 * 0.5 + 0.75) / 6)
    assert "none: 92% of the answers have no verdict. They score 0.5." in result["notes"]


def test_groups_have_means_of_their_own():
    records = records_with({"none": {0: 0.5}}, 40, groups=("odd", "even"))
    groups = only(summarise_records(records))["methods"]["none"]["groups"]
    assert list(groups) == ["even", "odd"] and groups["odd"]["questions"] == 20
    even = [each.score for each in records if each.group == "even"]
    assert groups["even"]["mean"][0] == pytest.approx(sum(even) / 20)
    assert only(summarise_records(records_with({"none": {0: 0.5}}, 6)))["methods"]["none"]["groups"] == {}


def test_records_that_ran_plain_are_counted_with_their_reasons():
    records = records_with(ACCURACIES, 10)
    records = [
        replace(each, method_ran="none", reason="one document only") if each.id == "10-q3-4" else each
        for each in records
    ]
    result = only(summarise_records(records))
    assert result["methods"]["pine"]["ran_plain"] == {"one document only": 1}
    assert result["methods"]["none"]["ran_plain"] == {}
    assert result["notes"] == ["pine: 1 of 30 answers came from the plain model: one document only"]


def test_methods_are_compared_on_shared_questions_with_a_note():
    records = records_with(ACCURACIES, 20)
    missing = [each for each in records if each.method == "none" or (each.question != "q3" and each.gold_position != 9)]
    notes = " ".join(only(summarise_records(missing))["notes"])
    assert "answered different questions" in notes and "ran at different positions" in notes
    none = records_with({"pine": ACCURACIES["pine"]}, 6)
    assert only(summarise_records(none))["methods"]["pine"]["minus_plain"] is None
    assert "'none' did not run" in only(summarise_records(none))["notes"][0]
