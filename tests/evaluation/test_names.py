"""Lists of names that exist to avoid imports agree with the classes."""

from typing import get_args

from ragbias_eval import ACCURACY, JUDGES, LOGPROB, TASK_NAMES, Measure
from ragbias_eval.tasks import TASKS, Judge


def test_every_task_is_listed():
    assert tuple(TASKS) == TASK_NAMES
    assert tuple(name for name, task in TASKS.items() if issubclass(task, Judge)) == JUDGES


def test_every_measure_is_listed():
    assert get_args(Measure) == (ACCURACY, LOGPROB)
