"""What ran, and on which documents: the record that comes with every answer."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Report:
    """What a request asked for and what was done. Holds no text of the prompt.

    Attributes:
        method_requested: name of the method that was asked for.
        method_ran: name of the method that ran; ``"none"`` where it could not.
        source: how the documents were found: ``"prompt"`` (given as a ``Prompt``), ``"documents"``, ``"artifact"``,
            ``"run"``, ``"registry"``, or ``"none"``.
        spans: ``(begin, end)`` of each document, in tokens of the prompt as it ran (see ``Prompt.from_text`` for
            the separator that may be added), ascending.
        n_expected: number of documents that the source named.
        n_found: number of them that stand in the prompt.
        reason: in plain words, why something else ran or fewer documents were found; empty if all went as asked.
    """

    method_requested: str
    method_ran: str
    source: str
    spans: tuple[tuple[int, int], ...]
    n_expected: int
    n_found: int
    reason: str = ""

    def as_dict(self) -> dict[str, Any]:
        """The report as plain data, fit for JSON."""
        return {**asdict(self), "spans": [list(span) for span in self.spans]}
