"""Many clients ask servers the same questions; each keeps one request open at a time."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import httpx
import numpy as np

from ragbias.errors import RunError, ServerError
from ragbias.evaluation.prompts.stock_prompt import SYSTEM
from ragbias.extras import required

PERCENTILES = (50, 95, 99)


@dataclass(frozen=True)
class LoadCase:
    """A question with its documents."""

    question: str
    documents: tuple[str, ...]

    @property
    def messages(self) -> list[dict[str, str]]:
        """The stock prompt, documents verbatim."""
        system = SYSTEM + "\n\n".join(self.documents)
        return [{"role": "system", "content": system}, {"role": "user", "content": self.question}]


@dataclass(frozen=True)
class Target:
    """What is asked.

    Attributes:
        label: in the table.
        url: of the server, without ``/v1``.
        model: its name there.
        method: sent with the documents; ``None`` for a server that knows neither.
        key: of the server; empty: none.
        streamed: else answers come whole, which lets a server put requests into padded batches.
    """

    label: str
    url: str
    model: str
    method: str | None = None
    key: str = field(default="", repr=False)
    streamed: bool = True

    def body(self, case: LoadCase, max_new_tokens: int) -> dict[str, Any]:
        """The request for a case."""
        own: dict[str, Any] = {}
        if self.method is not None:
            own = {"documents": list(case.documents), "ragbias": {"method": self.method}}
        told = {"max_tokens": max_new_tokens, "temperature": 0, "stream": self.streamed}
        return {"model": self.model, "messages": case.messages, **told, **own}


@dataclass
class Latencies:
    """How long the clients of one target waited, with one number of clients.

    Attributes:
        seconds: of each of its rounds.
        first, whole: seconds until the first text of streams, and until the end, of each answer.
        pieces: events with text, about a token each, or the tokens of answers that came whole.
        errors: by what went wrong.
    """

    seconds: list[float] = field(default_factory=list)
    first: list[float] = field(default_factory=list)
    whole: list[float] = field(default_factory=list)
    pieces: int = 0
    errors: dict[str, int] = field(default_factory=dict)

    def figures(self) -> dict[str, Any]:
        """Requests and pieces per second, and percentiles."""
        total = sum(self.seconds)
        return {
            "requests": len(self.whole),
            "requests_per_second": len(self.whole) / total,
            "pieces_per_second": self.pieces / total,
            "first_seconds": _percentiles(self.first),
            "whole_seconds": _percentiles(self.whole),
            "errors": self.errors,
        }


def _percentiles(values: Sequence[float]) -> dict[str, float] | None:
    if not values:
        return None
    return {f"p{each}": float(np.percentile(values, each)) for each in PERCENTILES}


def load_test(
    targets: Sequence[Target],
    cases: Sequence[LoadCase],
    clients: Sequence[int],
    requests: int,
    rounds: int,
    max_new_tokens: int,
    progress: Callable[[str, int], None] = lambda label, done: None,
) -> list[dict[str, Any]]:
    """Ask each target with each number of clients; targets take turns in every round.

    Args:
        cases: asked one after the other, again and again.
        requests: of each target, number of clients and round.
        rounds: counted ones; one request for each client before them warms up.
        progress: called with a label and the number of requests done.

    Raises:
        RunError: a target answers nothing at all.
    """

    async def run() -> list[dict[str, Any]]:
        found = []
        for count in clients:
            latencies = {target.label: Latencies() for target in targets}
            for target in targets:
                await _round(target, cases, count, count, max_new_tokens, Latencies())
            for _, target in itertools.product(range(rounds), targets):
                await _round(target, cases, count, requests, max_new_tokens, latencies[target.label])
                progress(f"{target.label}, {count} clients", requests)
            for target in targets:
                own = latencies[target.label]
                if not own.whole:
                    raise RunError(f"{target.label} at {target.url} answers nothing: {', '.join(own.errors)}")
                found.append({"target": target.label, "clients": count, **own.figures()})
        return found

    return asyncio.run(run())


async def _round(
    target: Target, cases: Sequence[LoadCase], clients: int, requests: int, most: int, latencies: Latencies
) -> None:
    numbers = iter(range(requests))
    openai: Any = required("openai", "remote")
    limited = httpx.AsyncClient(limits=httpx.Limits(max_connections=clients))
    settings = {"api_key": target.key or "none", "max_retries": 0, "timeout": 600, "http_client": limited}
    async with openai.AsyncOpenAI(base_url=f"{target.url}/v1", **settings) as server:

        async def client() -> None:
            for number in numbers:
                await _counted(openai, server, target.body(cases[number % len(cases)], most), latencies)

        begin = time.perf_counter()
        await asyncio.gather(*(client() for _ in range(clients)))
        latencies.seconds.append(time.perf_counter() - begin)


async def _counted(openai: Any, server: Any, body: dict[str, Any], latencies: Latencies) -> None:
    """One answer, or what went wrong: the load goes on."""
    try:
        await _ask(openai, server, body, latencies)
    except (httpx.HTTPError, openai.OpenAIError, ServerError, ValueError) as error:
        status = getattr(error, "status_code", None)
        if isinstance(error, ServerError):
            name = str(error)
        else:
            name = f"status {status}" if status else type(error.__cause__ or error).__name__
        latencies.errors[name] = latencies.errors.get(name, 0) + 1


async def _ask(openai: Any, server: Any, body: dict[str, Any], latencies: Latencies) -> None:
    begin = time.perf_counter()
    first: float | None = None
    path, shape = "/chat/completions", {"cast_to": object, "body": body}
    if not body["stream"]:
        counts = (await server.post(path, **shape)).get("usage") or {}
        latencies.pieces += int(counts.get("completion_tokens") or 0)
        latencies.whole.append(time.perf_counter() - begin)
        return
    try:
        async with await server.post(path, **shape, stream=True, stream_cls=openai.AsyncStream[object]) as events:
            async for event in events:
                if any((choice.get("delta") or {}).get("content") for choice in event.get("choices", ())):
                    first = first or time.perf_counter() - begin
                    latencies.pieces += 1
    except openai.APIError as error:
        if type(error) is openai.APIError:
            raise ServerError("an error after the stream had begun") from error
        raise
    total = time.perf_counter() - begin
    latencies.whole.append(total)
    latencies.first.append(total if first is None else first)  # an answer without text


def settings_of(targets: Sequence[Target]) -> list[dict[str, Any]]:
    """The targets as plain data, without their keys."""
    return [{name: value for name, value in asdict(target).items() if name != "key"} for target in targets]
