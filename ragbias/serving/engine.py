"""What an application asks: something that answers requests, in this process or elsewhere."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

from ragbias.serving.schemas import Json, Request, TokenizeRequest


class Answering(Protocol):
    """A streamed answer that is ready to begin."""

    report: Json
    """What will run on which documents, see ``ragbias.generation.report.Report``."""

    def chunks(self) -> AsyncIterator[Json]:
        """The chunks; closing the iterator ends the computation at the next token."""

    async def close(self) -> None:
        """End what runs and give back what is held; may be called twice."""


class Engine(Protocol):
    """Answers requests; every method raises ``ApiError`` for what is refused or fails."""

    @property
    def is_ready(self) -> bool:
        """Whether requests are answered now."""

    async def models(self) -> list[Json]:
        """The models, in the shape of ``/v1/models``."""

    async def answer(self, body: Request) -> Json:
        """The body of the response; cancelling the caller ends the computation at the next token."""

    async def stream(self, body: Request) -> Answering:
        """The answer in chunks."""

    async def tokens(self, body: TokenizeRequest) -> Json:
        """The tokens of a text."""
