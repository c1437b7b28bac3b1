"""Keys and values of some adjacent tokens, in every layer."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class States:
    """What attention keeps of ``T`` tokens.

    Attributes:
        keys, values: by layer, ``[G, T, d]`` on the CPU, in the model's dtype; keys without positions.
    """

    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]

    @property
    def tokens(self) -> int:
        return self.keys[0].shape[1]

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in (*self.keys, *self.values))
