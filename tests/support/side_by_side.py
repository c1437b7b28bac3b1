"""Threads or processes that run at the same time."""

from collections.abc import Sequence
from multiprocessing.process import BaseProcess
from threading import Thread


def side_by_side(workers: Sequence[Thread | BaseProcess]) -> None:
    """Start them all, and wait until the last one has ended."""
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
