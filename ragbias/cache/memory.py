"""Keys and values of documents in memory."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class States:
    """Keys and values of ``T`` adjacent tokens.

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


class MemoryStore:
    """Entries of at most ``budget`` bytes together; the least recently used are removed first."""

    def __init__(self, budget: int) -> None:
        self._budget = budget
        self._entries: OrderedDict[str, States] = OrderedDict()
        self._lock = threading.Lock()
        self.nbytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: str) -> bool:
        return key in self._entries

    def get(self, key: str) -> States | None:
        with self._lock:
            states = self._entries.get(key)
            if states is not None:
                self._entries.move_to_end(key)
            return states

    def put(self, key: str, states: States) -> None:
        """Add an entry, unless it alone is larger than the budget."""
        with self._lock:
            if key in self._entries or states.nbytes > self._budget:
                return
            self._entries[key] = states
            self.nbytes += states.nbytes
            while self.nbytes > self._budget:
                _, oldest = self._entries.popitem(last=False)
                self.nbytes -= oldest.nbytes

    def clear(self) -> None:
        with self._lock:
            self._entries.clear()
            self.nbytes = 0
