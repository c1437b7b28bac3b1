"""Bootstrap: hand-computed cases, scipy's figures, and properties for any scores."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import bootstrap

from ragbias.data.intervals import draw_counts
from ragbias_eval.measures.aggregates import minus_plain
from ragbias_eval.measures.bootstrap import Scores, compute_curve, estimate_chance_gap, summarise_scores
from support.bench_records import record, records_with, u_shape

U = u_shape([0, 2, 4, 7, 9], 0.9, 0.4)


def scores(values, questions=None):
    values = np.asarray(values, dtype=float)
    names = questions or [f"q{index:03}" for index in range(len(values))]
    return Scores(tuple(names), tuple(range(values.shape[1])), values)


def test_scores_are_means_over_orders_and_seeds_with_gaps():
    records = [
        record(question="b", gold_position=3, score=1.0),
        record(question="b", gold_position=3, score=0.0, order=1),
        record(question="a", gold_position=0, score=1.0),
    ]
    found = Scores.of(records)
    assert (found.questions, found.positions) == (("a", "b"), (0, 3))
    np.testing.assert_array_equal(found.values, [[1, np.nan], [np.nan, 0.5]])


def test_figures_of_a_curve_worked_by_hand():
    """Four questions at the first position and three at the second."""
    found = summarise_scores(np.array([[1, 0], [1, 0], [1, 1], [0, np.nan]], dtype=float))
    np.testing.assert_allclose(found.by_position, [[3 / 4, 1 / 3]])
    figures = [found.mean.item(), found.worst.item(), found.best.item(), found.gap.item()]
    assert figures == pytest.approx([13 / 24, 1 / 3, 3 / 4, 5 / 12])


def test_draws_are_with_replacement_and_repeat_by_seed():
    first = draw_counts(30, 500, 1)
    assert (first.sum(axis=1) == 30).all() and first.max() > 1 and first.min() == 0
    np.testing.assert_array_equal(first, draw_counts.__wrapped__(30, 500, 1))
    assert (first != draw_counts(30, 500, 2)).any()


def test_intervals_of_means_are_those_of_scipy():
    values = np.random.default_rng(3).random(60)
    own = compute_curve(scores(values[:, None]), resamples=20000)["mean"][0]
    theirs = bootstrap(
        (values,), np.mean, method="percentile", n_resamples=20000, rng=np.random.default_rng(4)
    ).confidence_interval
    assert own.estimate == pytest.approx(values.mean())
    assert (own.low, own.high) == pytest.approx((theirs.low, theirs.high), abs=0.002)


@pytest.mark.parametrize("name", ["worst", "gap"])
def test_worst_and_gap_intervals_span_two_scipy_bootstraps(name):
    values = (np.random.default_rng(5).random((80, 3)) < [0.8, 0.4, 0.5]).astype(float)
    own = compute_curve(scores(values), resamples=20000)[name][0]

    def statistic(*columns, axis):
        means = [column.mean(axis=axis) for column in columns]
        return np.min(means, axis=0) if name == "worst" else np.max(means, axis=0) - np.min(means, axis=0)

    def theirs(method):
        rng = np.random.default_rng(6)
        return bootstrap(tuple(values.T), statistic, paired=True, method=method, n_resamples=20000, rng=rng)

    basic, percentile = theirs("basic").confidence_interval, theirs("percentile")
    bias = percentile.bootstrap_distribution.mean() - own.estimate
    low, high = (end - 2 * bias for end in percentile.confidence_interval)
    assert abs(bias) > 0.003
    assert (own.low, own.high) == pytest.approx((min(low, basic.low), max(high, basic.high)), abs=0.013)  # one step


@pytest.mark.parametrize(
    ("accuracies", "same"), [([0.7] * 8, False), ([0.9, 0.6, 0.4, 0.6, 0.85], False), ([0.95] * 5, True)]
)
def test_worst_position_intervals_hold_on_flat_and_bent_curves(accuracies, same):
    """Percentile intervals mostly miss the minimum of flat curves, basic ones in 1 of 4 runs near accuracy 1."""
    rng = np.random.default_rng(0)
    held = 0
    for _ in range(200):
        drawn = rng.random((100, 1 if same else len(accuracies)))
        found = compute_curve(scores((drawn < accuracies).astype(float)), resamples=400)["worst"][0]
        held += found.low <= min(accuracies) <= found.high
    assert held >= 0.85 * 200


@settings(max_examples=40, deadline=None)
@given(st.integers(5, 25), st.integers(1, 6), st.integers(0, 10**6))
def test_intervals_hold_their_estimate_and_only_possible_values(questions, positions, seed):
    rng = np.random.default_rng(seed)
    values = rng.integers(0, 2, (questions, positions)).astype(float)
    values[rng.random(values.shape) < 0.2] = np.nan
    values[0] = 1.0  # every position was asked once
    for name, intervals in compute_curve(scores(values), resamples=200).items():
        for interval in intervals:
            assert 0 <= interval.low <= interval.estimate <= interval.high <= 1, name


def test_identical_methods_differ_by_exactly_zero():
    own = Scores.of(records_with({"none": U}, 40))
    found = minus_plain(own, own, 1)
    assert [found[name] for name in ("mean", "worst_to_worst", "gap")] == [[0, 0, 0]] * 3


def test_paired_differences_have_narrower_intervals():
    """Pairing helps if questions are equally hard for both methods. Shuffled pairs have wider intervals."""
    rng = np.random.default_rng(0)
    hard = rng.random((100, 1))
    first, second = (hard < 0.6).astype(float), (hard < 0.7).astype(float)
    paired = minus_plain(scores(second), scores(first), 1)["mean"]
    shuffled = minus_plain(scores(second), scores(rng.permutation(first)), 1)["mean"]
    assert paired[0] == pytest.approx(shuffled[0])
    assert paired[1] > 0 >= shuffled[1]
    assert paired[2] - paired[1] < 0.7 * (shuffled[2] - shuffled[1])


def test_differences_use_the_shared_questions_and_positions():
    many = scores([[1, 0, 0]] * 3 + [[1, 1, 1]] * 6, [f"q{index}" for index in range(9)])
    few = Scores(tuple(f"q{index}" for index in range(3, 10)), (1, 2), np.zeros((7, 2)))
    assert minus_plain(many, few, 1)["mean"] == [1, 1, 1]


def test_too_few_questions_have_estimates_without_intervals():
    (mean,) = compute_curve(scores(np.ones((4, 2))))["mean"]
    assert mean.estimate == 1 and np.isnan([mean.low, mean.high]).all()
    apart = scores(np.ones((6, 1)), [f"other {index}" for index in range(6)])
    assert minus_plain(scores(np.ones((6, 1))), apart, 1) is None


def test_chance_makes_a_gap_unless_answers_never_change():
    rng = np.random.default_rng(1)
    flat = (rng.random((50, 5)) < 0.6).astype(float)
    bent = (rng.random((50, 5)) < [0.95, 0.6, 0.3, 0.6, 0.9]).astype(float)
    own = [summarise_scores(values).gap.item() for values in (flat, bent)]
    assert own[0] <= estimate_chance_gap(scores(flat)) < 0.35
    assert own[1] > estimate_chance_gap(scores(bent))
    assert estimate_chance_gap(scores(np.repeat(flat[:, :1], 5, axis=1))) == 0
