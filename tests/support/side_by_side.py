"""Run threads or processes at the same time."""

from collections.abc import Sequence
from multiprocessing.process import BaseProcess
from threading import Thread


def side_by_side(workers: Sequence[Thread | BaseProcess]) -> None:
    """Start all workers and wait until all have ended."""
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
