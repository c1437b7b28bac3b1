"""Times of methods beside the plain model."""

from ragbias.evaluation.speed import measure as measure_speed
from ragbias.evaluation.speed import random_llama
from ragbias.methods import Pine


def test_speed_reports_ratios_to_none():
    costs = measure_speed(random_llama(layers=1), [Pine()], documents=3, document_tokens=10, steps=1, rounds=1)
    assert costs["none"].prefill_ratio == (1.0, 1.0, 1.0)
    assert costs["pine"].prefill_ratio[0] > 0
