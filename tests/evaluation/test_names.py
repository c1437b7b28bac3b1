"""The names that are listed where nothing may be loaded are those of the classes."""

from typing import get_args

from ragbias.evaluation import ACCURACY, JUDGES, LOGPROB, TASK_NAMES, Measure
from ragbias.evaluation.tasks import TASKS, Judge


def test_every_task_is_listed() -> None:
    assert tuple(TASKS) == TASK_NAMES
    assert tuple(name for name, task in TASKS.items() if issubclass(task, Judge)) == JUDGES


def test_every_measure_is_listed() -> None:
    assert get_args(Measure) == (ACCURACY, LOGPROB)
