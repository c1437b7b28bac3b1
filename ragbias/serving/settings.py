"""What a server is told: its limits, and how it puts requests together."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import get_args

from ragbias.adapters.missing_documents import OnMissing
from ragbias.checks import Bounds, check_whole_between
from ragbias.errors import ArgumentError

COUNTS = Bounds(1, 1_000_000)
BYTES = Bounds(1, 2**31 - 1)
TOKENS = Bounds(1, 10_000_000)
MILLISECONDS = Bounds(0, 60_000)
SECONDS = Bounds(0, 86_400)


@dataclass(frozen=True)
class ServerSettings:
    """Limits and batching of one server; what is beyond a limit is refused with OpenAI's status for it.

    Attributes:
        api_key: that requests have to bring; empty: none.
        max_body_bytes: of one request; 413.
        max_documents: of one request; 400.
        max_new_tokens: that a request may ask for; 400. None: what the model's window holds.
        max_waiting: requests that are not being computed yet; 429.
        max_batch: non-streamed requests that run as one padded batch.
        max_batch_tokens: of a padded batch, padding and new tokens included.
        batch_wait_ms: for how long a request waits for others to run with, in milliseconds.
        max_streams: streamed requests that run at the same time, beside a batch.
        strict: a batch is one request, so that its bits depend on nothing else that runs.
        grace_seconds: for what runs when the server is told to end.
        on_missing: for requests that do not say: ``"warn"``, ``"raise"`` or ``"ignore"``.
        separator: parts the documents of prompts that do not name theirs; empty: none.
        strip_numbering: of a proxy: take the documents' numbers out. A local model has its own setting.

    Raises:
        ArgumentError: a number is out of range.
    """

    api_key: str = ""
    max_body_bytes: int = 4 * 2**20
    max_documents: int = 1_000
    max_new_tokens: int | None = None
    max_waiting: int = 256
    max_batch: int = 8
    max_batch_tokens: int = 65_536
    batch_wait_ms: int = 5
    max_streams: int = 4
    strict: bool = False
    grace_seconds: int = 30
    on_missing: str = "warn"
    separator: str = ""
    strip_numbering: bool = False

    def __post_init__(self) -> None:
        for each in fields(self):
            if (bounds := BOUNDS.get(each.name)) is not None and getattr(self, each.name) is not None:
                check_whole_between(each.name, getattr(self, each.name), bounds, ArgumentError)
        if self.on_missing not in get_args(OnMissing):
            raise ArgumentError(f"on_missing={self.on_missing!r}; expected 'warn', 'raise' or 'ignore'")

    @property
    def batch_size(self) -> int:
        """The most requests of one padded batch."""
        return 1 if self.strict else self.max_batch


BOUNDS = {
    "max_body_bytes": BYTES,
    "max_documents": COUNTS,
    "max_new_tokens": TOKENS,
    "max_waiting": COUNTS,
    "max_batch": COUNTS,
    "max_batch_tokens": TOKENS,
    "batch_wait_ms": MILLISECONDS,
    "max_streams": COUNTS,
    "grace_seconds": SECONDS,
}
