"""Flips, judges and orders by question: hand-computed cases, and scipy's figures."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from scipy.stats import kendalltau

from ragbias.errors import RunError
from ragbias_eval.measures.aggregates import summarise_records
from ragbias_eval.measures.per_question import (
    compare_orders,
    mean_kendall_tau,
    normalised_answer,
    order_flips,
    preferred_response,
    repeat_flips,
)
from support.bench_records import record


def test_flips_are_counted_over_orders_of_one_question_and_seed():
    answered = [
        ("same", 2, 0, " Brass Owl. "), ("same", 2, 0, "brass owl"),
        ("flips", 2, 0, "owl"), ("flips", 2, 0, "whale"),
        ("half", 2, 0, "owl"), ("half", 2, 0, "owl"), ("half", 2, 1, "owl"), ("half", 2, 1, "whale"),
        ("once", 2, 0, "owl"), ("once", 3, 0, "whale"), ("once", 2, 1, "hen"),
    ]  # fmt: skip
    records = [
        record(question=name, documents=count, seed=seed, prediction=text) for name, count, seed, text in answered
    ]
    assert order_flips(records, normalised_answer) == {"same": 0, "flips": 1, "half": 0.5}


def test_the_noise_floor_compares_with_a_cases_first_answer():
    first, second = record(id="a", question="a", prediction="owl"), record(id="b", question="b", prediction="whale")
    again = [replace(first, prediction="Owl"), replace(second, prediction="hen"), record(id="c")]
    assert repeat_flips([first, second], again, normalised_answer) == {"a": 0, "b": 1}


def test_verdicts_for_the_answer_shown_first():
    """Right with the better answer first, or wrong with it second. Ties are not verdicts."""
    judged = [
        record(task="judge", question=question, gold_position=position, score=score)
        for question, scores in {
            "always first": [1.0, 0.0],
            "right": [1.0, 1.0],
            "always second": [0.0, 1.0],
            "tie": [0.5],
        }.items()
        for position, score in enumerate(scores)
    ]
    (result,) = summarise_records(judged)["results"]
    assert result["methods"]["none"]["judge"]["prefers_first"] == [0.5, None, None]
    assert [preferred_response(each) for each in judged[-2:]] == ["chosen", "neither"]


def test_kendall_tau_of_orders():
    assert mean_kendall_tau([[0, 1, 2, 3], [0, 1, 2, 3]]) == 1
    assert mean_kendall_tau([[0, 1, 2, 3], [3, 2, 1, 0]]) == -1
    assert mean_kendall_tau([[0, 1, 2, 3], [0, 1, 3, 2]]) == pytest.approx((5 - 1) / 6)  # five pairs alike, one swapped
    assert mean_kendall_tau([[3, 1, 2], [1, 2, 3]]) == pytest.approx((1 - 2) / 3)
    assert mean_kendall_tau([[0, 1], [0, 1], [1, 0]]) == pytest.approx((1 - 1 - 1) / 3)


@pytest.mark.parametrize(("orders", "documents"), [(2, 2), (2, 40), (5, 10)])
def test_kendall_tau_of_several_orders_is_the_mean_of_scipys(orders, documents):
    rng = np.random.default_rng(orders)
    drawn = [rng.permutation(documents).tolist() for _ in range(orders)]
    positions = [[order.index(document) for document in range(documents)] for order in drawn]
    theirs = [kendalltau(one, other).statistic for one, other in combinations(positions, 2)]
    assert mean_kendall_tau(drawn) == pytest.approx(np.mean(theirs))


@pytest.mark.parametrize("orders", [[(0, 1), (0, 2)], [(0, 0, 1), (0, 1, 0)], [(0,), (0,)], [(0, 1, 2), (0, 1)]])
def test_kendall_tau_refuses_orders_of_other_documents(orders):
    with pytest.raises(RunError, match="the same two or more documents"):
        mean_kendall_tau(orders)


def test_orders_are_compared_by_question_documents_and_seed():
    shown = [
        ("same", 2, 0, (0, 1)), ("same", 2, 0, (0, 1)),
        ("half", 2, 0, (0, 1)), ("half", 2, 0, (1, 0)), ("half", 2, 1, (1, 0)), ("half", 2, 1, (1, 0)),
        ("once", 2, 0, (0, 1)), ("once", 3, 0, (2, 1, 0)), ("once", 2, 1, (1, 0)),
    ]  # fmt: skip
    records = [record(question=name, documents=count, seed=seed, shown=order) for name, count, seed, order in shown]
    assert compare_orders(records, lambda each: each.shown, mean_kendall_tau) == {"same": 1, "half": 0}
