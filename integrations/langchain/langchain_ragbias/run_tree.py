"""What was retrieved in the runs below one root run of LangChain."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from ragbias.boundaries.known_text import with_fields_of_both


@dataclass
class RunTree:
    """What was seen in the runs below one root run.

    Attributes:
        retrievals: in the order of time, the texts of each with their metadata, as often as one retrieval had them. A
            text is in the latest retrieval that had it.
        runs: the runs that have not ended yet.
        failure: what went wrong in the listener, in plain words; empty if nothing did.
        ends: what is to be done when the root run ends, or is forgotten.
        judges: what is to be called when it ends, if nothing was retrieved in it.
        active: when a run began last, in seconds of a monotonic clock.
    """

    retrievals: list[Counter[str]] = field(default_factory=list)
    runs: set[UUID] = field(default_factory=set)
    failure: str = ""
    ends: list[Callable[[], None]] = field(default_factory=list)
    judges: list[Callable[[], None]] = field(default_factory=list)
    active: float = field(default_factory=time.monotonic)

    def note(self, texts: Sequence[str], retrieved: bool) -> None:
        """Add the texts of one retrieval, with the metadata of all that say the same.

        Args:
            texts: the texts.
            retrieved: whether they were retrieved now; else they are passed on, and make a retrieval of their own only
                if one of them is new.
        """
        known: dict[str, str] = {}
        for text in texts:
            known[text] = with_fields_of_both(known.get(text, text), text)
        counts = Counter(texts)
        n_known = sum(text in counts for each in self.retrievals for text in each)
        is_new = retrieved or n_known < len(counts)
        for each in self.retrievals:
            for old in [text for text in each if text in counts]:
                known[old] = with_fields_of_both(old, known[old])
                counts[old] = max(counts[old], each.pop(old))
                if not is_new:
                    each[known[old]] = counts[old]
        if is_new:
            self.retrievals.append(Counter({known[text]: count for text, count in counts.items()}))
            self.retrievals = [each for each in self.retrievals if each]

    def latest_first(self) -> list[list[str]]:
        """The texts of each retrieval."""
        return [list(each.elements()) for each in reversed(self.retrievals)]
