"""Running out of memory, told in words: what ran, and what would need less."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from ragbias.errors import OutOfMemoryError

OF_THE_PROCESS = ("can't allocate memory", "not enough memory", "Cannot allocate memory")  # as torch says on a CPU


@contextmanager
def memory_told(lengths: Sequence[int], device: torch.device) -> Iterator[None]:
    """Raise ``OutOfMemoryError`` for torch's errors of memory.

    Args:
        lengths: of the prompts that run together, in tokens.
        device: that they run on.
    """
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        of_memory = isinstance(error, (torch.OutOfMemoryError, MemoryError))
        if not of_memory and not any(words in str(error) for words in OF_THE_PROCESS):
            raise
        reason = str(error).split("\n")[0]
        raise OutOfMemoryError(
            f"no memory left on {device} for {len(lengths)} prompts of up to {max(lengths)} tokens"
            f"{f' ({reason})' if reason else ''}; make batch_size smaller, retrieve fewer or shorter documents, or "
            "load the model with a dtype of fewer bytes"
        ) from error
