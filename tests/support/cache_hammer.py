"""Processes that write to one folder and read from it, and what each finds there: run as a script.

``python cache_hammer.py use FOLDER BUDGET SEED COUNT`` uses a cache ``COUNT`` times and fails on a wrong bit.
``python cache_hammer.py kill FOLDER BUDGET SEED COUNT`` starts that ``COUNT`` times and kills it at random times.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
import warnings

import torch

from ragbias.cache import DocumentCache
from ragbias.cache.states import States

ENTRIES = 12
TOKENS = 120


def states(seed: int) -> States:
    """The same for the same seed, about 60 kB."""
    generator = torch.Generator().manual_seed(seed)
    return States(*(tuple(torch.randn(2, TOKENS, 16, generator=generator) for _ in range(2)) for _ in range(2)))


def is_right(found: States, seed: int) -> bool:
    right = states(seed)
    return all(map(torch.equal, (*found.keys, *found.values), (*right.keys, *right.values)))


def use(folder: str, budget: int, seed: int, count: int) -> None:
    cache, draw = DocumentCache(None, folder, budget), random.Random(seed)
    for _ in range(count):
        entry = draw.randrange(ENTRIES)
        found = cache.get(f"m-{entry}")
        if found is None:
            cache.put(f"m-{entry}", states(entry))
        else:
            assert is_right(found, entry), f"entry {entry} has wrong bits"


def kill(folder: str, budget: int, seed: int, count: int) -> None:
    draw = random.Random(seed)
    for at in range(count):
        child = os.fork()
        if child == 0:
            use(folder, budget, seed + at, 10**9)
        time.sleep(0.03 * draw.random())
        os.kill(child, signal.SIGKILL)
        assert os.waitpid(child, 0)[1] == signal.SIGKILL, "a child ended by itself"


if __name__ == "__main__":
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # of a full disk, which some tests have
    what, folder, *numbers = sys.argv[1:]
    {"use": use, "kill": kill}[what](folder, *map(int, numbers))
