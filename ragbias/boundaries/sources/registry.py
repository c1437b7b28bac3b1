"""A bounded memory of recent retrievals, as texts that keep their known metadata (``KnownText``)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from itertools import accumulate, islice

from ragbias.boundaries.matching.occurrences import escaped_forms

Retrieval = tuple[str, ...]
PROBE = 16  # characters from the middle of a text that a prompt has to hold


class Registry:
    """Recently retrieved texts by retrieval: texts that came together are together in a prompt.

    Thread-safe. When there is too much text, the oldest retrievals are forgotten first.

    Args:
        max_texts: number of texts to keep, over all retrievals.
        max_characters: number of characters to keep, over all retrievals; a longer text, which fits no model, is left
            out.
        max_age: seconds after which a retrieval is forgotten.
        clock: a monotonic clock, in seconds.
        process_wide: the registry holds retrievals of all contexts, so system messages are not searched for them.

    Raises:
        ValueError: ``max_texts`` or ``max_characters`` is less than 1.
    """

    def __init__(
        self,
        max_texts: int = 2048,
        max_characters: int = 16_000_000,
        max_age: float = 3600.0,
        clock: Callable[[], float] = time.monotonic,
        process_wide: bool = False,
    ) -> None:
        for name, value in (("max_texts", max_texts), ("max_characters", max_characters)):
            if value < 1:
                raise ValueError(f"{name}={value} must be at least 1")
        self._max_texts, self._max_characters, self._max_age, self._clock = max_texts, max_characters, max_age, clock
        self.process_wide = process_wide
        self._lock = threading.Lock()
        self._retrievals: dict[Retrieval, float] = {}  # retrieval -> time, oldest first
        self._probes: dict[Retrieval, list[tuple[str, str]]] = {}  # the texts of a retrieval, each with its middle
        self._n_texts = self._n_characters = 0

    def copy(self) -> Registry:
        """An independent registry with the same retrievals."""
        copied = Registry(self._max_texts, self._max_characters, self._max_age, self._clock, self.process_wide)
        with self._lock:
            copied._retrievals, copied._probes = self._retrievals.copy(), self._probes.copy()
            copied._n_texts, copied._n_characters = self._n_texts, self._n_characters
        return copied

    def add(self, texts: Iterable[str]) -> None:
        """Remember the texts of one retrieval; texts without any visible character are left out.

        Of a retrieval with more than ``max_texts`` texts or ``max_characters`` characters the first ones are kept.
        """
        retrieval = self._bounded(text for text in texts if len(text) <= self._max_characters and text.strip())
        if not retrieval:
            return
        now = self._clock()
        with self._lock:
            if retrieval not in self._retrievals:
                self._n_texts += len(retrieval)
                self._n_characters += sum(map(len, retrieval))
            self._retrievals.pop(retrieval, None)  # an equal one, maybe with other metadata
            self._probes.pop(retrieval, None)
            self._retrievals[retrieval] = now
            self._probes[retrieval] = [(text, _middle(text.strip())) for text in retrieval]
            self._forget(now)

    def candidates(self) -> list[Retrieval]:
        """The remembered retrievals, the latest first."""
        with self._lock:
            self._forget(self._clock())
            return list(reversed(self._retrievals))

    def likely_in(self, prompt: str) -> set[str]:
        """The remembered texts that may occur in the prompt: all that do, as they are or escaped, and few others."""
        with self._lock:
            self._forget(self._clock())
            probes = [each for retrieval in self._retrievals for each in self._probes[retrieval]]
        pieces = {prompt[begin : begin + PROBE] for begin in range(len(prompt) - PROBE + 1)} if probes else set()
        likely = {text for text, probe in probes if probe in pieces or (len(probe) < PROBE and probe in prompt)}
        for text, _ in probes if "\\" in prompt else ():
            forms = map(_middle, escaped_forms(text.strip()))
            if text not in likely and any(form in pieces or (len(form) < PROBE and form in prompt) for form in forms):
                likely.add(text)
        return likely

    def forget_old(self) -> None:
        """Forget retrievals that are too old without waiting for the next call."""
        with self._lock:
            self._forget(self._clock())

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._retrievals.clear()
            self._probes.clear()
            self._n_texts = self._n_characters = 0

    def __len__(self) -> int:
        """Number of remembered texts, over all retrievals."""
        return self._n_texts

    def _bounded(self, texts: Iterable[str]) -> Retrieval:
        first = list(islice(texts, self._max_texts))
        sizes = accumulate(map(len, first))
        return tuple(text for text, size in zip(first, sizes, strict=True) if size <= self._max_characters)

    def _forget(self, now: float) -> None:
        while self._retrievals:
            retrieval, added = next(iter(self._retrievals.items()))
            fits = self._n_texts <= self._max_texts and self._n_characters <= self._max_characters
            if fits and now - added <= self._max_age:
                return
            del self._retrievals[retrieval], self._probes[retrieval]
            self._n_texts -= len(retrieval)
            self._n_characters -= sum(map(len, retrieval))


def _middle(form: str) -> str:
    begin = max(0, (len(form) - PROBE) // 2)
    return form[begin : begin + PROBE]
