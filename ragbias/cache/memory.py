"""The states that are kept in memory, within a budget."""

from __future__ import annotations

import threading
from collections import OrderedDict

from ragbias.cache.states import States


class MemoryStore:
    """The least recently used entries leave when the budget is full; one that is larger than it is not kept.

    Args:
        budget: bytes; 0 keeps nothing.
    """

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
