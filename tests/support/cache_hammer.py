"""A script whose processes write to and read from one cache folder at the same time.

``python cache_hammer.py FOLDER BUDGET KILLS COUNT...`` forks a process for each ``COUNT``, which uses the cache that
many times and fails on a wrong bit. Meanwhile it starts ``KILLS`` others in turn and kills them at random times.
"""

import os
import random
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import torch

from ragbias.cache import DocumentCache
from ragbias.cache.stores import States

ENTRIES = 12
TOKENS = 120


def states(seed: int) -> States:
    """Draw states of about 60 kB, the same for the same seed."""
    generator = torch.Generator().manual_seed(seed)
    return States(*(tuple(torch.randn(2, TOKENS, 16, generator=generator) for _ in range(2)) for _ in range(2)))


def is_right(found: States, seed: int) -> bool:
    right = states(seed)
    return all(map(torch.equal, (*found.keys, *found.values), (*right.keys, *right.values)))


def fill(cache: DocumentCache, count: int) -> None:
    for entry in range(count):
        cache.put(f"m-{entry}", states(entry))


def use(folder: str, budget: int, seed: int, count: int) -> None:
    cache, draw = DocumentCache(None, folder, budget), random.Random(seed)
    for _ in range(count):
        entry = draw.randrange(ENTRIES)
        found = cache.get(f"m-{entry}")
        if found is None:
            cache.put(f"m-{entry}", states(entry))
        else:
            assert is_right(found, entry), f"entry {entry} has wrong bits"


def kill(folder: str, budget: int, count: int) -> None:
    draw = random.Random(0)
    for seed in range(count):
        child = forked(use, folder, budget, seed, 10**9)
        time.sleep(0.03 * draw.random())
        os.kill(child, signal.SIGKILL)
        assert os.waitpid(child, 0)[1] == signal.SIGKILL, "a child ended by itself"


def forked(work: Callable[..., None], *arguments: Any) -> int:
    """Fork a process that runs ``work`` and return its id. The exit code is 0 unless ``work`` raises."""
    child = os.fork()
    if child:
        return child
    try:
        work(*arguments)
        os._exit(0)
    finally:
        traceback.print_exc()
        os._exit(1)


if __name__ == "__main__":
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # some tests fill the disk
    folder, budget, kills, *uses = sys.argv[1], *map(int, sys.argv[2:])
    children = [forked(use, folder, budget, seed, count) for seed, count in enumerate(uses)]
    kill(folder, budget, kills)
    codes = [os.waitpid(child, 0)[1] for child in children]
    sys.exit(any(codes))
