"""The model and the questions of the trainings."""

import random

import pytest

from ragbias import DebiasedLM
from ragbias_eval.calibration.samples import draw_tiny_question


@pytest.fixture(scope="module")
def lm():
    return DebiasedLM.from_pretrained("tiny", "none")


@pytest.fixture(scope="module")
def questions():
    rng = random.Random(0)
    return [draw_tiny_question(rng, 4) for _ in range(40)]
