"""Limits and batching of a server."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from ragbias.adapters.missing_documents import OnMissing


class ServerSettings(BaseModel):
    """Limits and batching of one server. A request beyond a limit is refused with OpenAI's status.

    Attributes:
        api_key: key that requests must send; empty: none.
        max_body_bytes: size of a request's body; 413.
        max_documents: documents of a request; 400.
        max_new_tokens: tokens that a request may ask for; 400. None: the model's window.
        max_waiting: requests that wait to be computed; 429.
        max_batch: non-streamed requests in one padded batch.
        max_batch_tokens: tokens of a padded batch, padding and new tokens included.
        batch_wait_ms: milliseconds that a request waits for others to share its batch.
        max_streams: streamed requests that run at the same time, beside a batch.
        strict: run each request alone, so that its bits do not depend on other requests.
        grace_seconds: time for running requests to finish at shutdown.
        on_missing: default for requests that do not set it.
        separator: text between documents, for prompts without ``documents``; empty: none.
        strip_numbering: remove document numbers; used by the proxy only.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    api_key: str = Field(default="", repr=False)
    max_body_bytes: int = Field(default=4 * 2**20, ge=1, lt=2**31)
    max_documents: int = Field(default=1_000, ge=1, le=1_000_000)
    max_new_tokens: int | None = Field(default=None, ge=1, le=10_000_000)
    max_waiting: int = Field(default=256, ge=1, le=1_000_000)
    max_batch: int = Field(default=8, ge=1, le=1_000_000)
    max_batch_tokens: int = Field(default=65_536, ge=1, le=10_000_000)
    batch_wait_ms: int = Field(default=5, ge=0, le=60_000)
    max_streams: int = Field(default=4, ge=1, le=1_000_000)
    strict: bool = False
    grace_seconds: int = Field(default=30, ge=0, le=86_400)
    on_missing: OnMissing = "warn"
    separator: str = ""
    strip_numbering: bool = False

    @property
    def batch_size(self) -> int:
        """Maximum number of requests in one padded batch."""
        return 1 if self.strict else self.max_batch
