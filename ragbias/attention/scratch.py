"""Work in portions that fit into memory that is written over again and again."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from torch import Tensor


class Scratch:
    """Memory for one large tensor at a time; fresh memory for each would cost more than what is written to it."""

    def __init__(self) -> None:
        self._memory: Tensor | None = None

    def take(self, shape: Sequence[int], like: Tensor) -> Tensor:
        """A tensor of this shape, with the dtype and the device of ``like``, the same in each call; not initialised.

        It takes the memory of what was taken before.
        """
        size = prod(shape)
        if self._memory is None or self._memory.numel() < size:
            self._memory = None  # not both at one time
            self._memory = like.new_empty(size)
        return self._memory[:size].view(*shape)


def portion(count: int, most: int) -> int:
    """How many of ``count`` things to take at one time, ``most`` or fewer but one at least, so that all portions are
    about equal and as few as can be."""
    portions = -(-count // max(1, most))
    return -(-count // max(1, portions))
