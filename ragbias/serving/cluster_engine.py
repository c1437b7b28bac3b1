"""The engine of a cluster's gateway: sends each request to a replica of its model, and again where that one dies."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import ray.exceptions
from ray.serve.handle import DeploymentHandle

from ragbias.serving.engine import Answering
from ragbias.serving.errors import ApiError, unknown_model
from ragbias.serving.logs import log
from ragbias.serving.schemas import ChatRequest, CompletionRequest, Json, Request, TokenizeRequest

TRIES = 5  # of a request whose replica dies
SECONDS_BETWEEN = 0.5
DEAD = (ray.exceptions.RayActorError, ray.exceptions.ObjectLostError, ray.exceptions.WorkerCrashedError)
KINDS: dict[str, type[Request] | type[TokenizeRequest]] = {
    each.__name__: each for each in (ChatRequest, CompletionRequest, TokenizeRequest)
}


class ClusterEngine:
    """Hands requests to the replicas of their model.

    A request whose replica dies before it has answered anything goes to another one.

    Args:
        handles: by the name of the model.
        affine: whether requests with the same documents go to the same replica, by the name of the model.
    """

    def __init__(self, handles: dict[str, DeploymentHandle[Any]], affine: dict[str, bool]) -> None:
        self._handles, self._affine = handles, affine

    @property
    def is_ready(self) -> bool:
        return True  # Ray sends no requests before

    async def models(self) -> list[Json]:
        asked = await asyncio.gather(*(_begun(handle.card.remote) for handle in self._handles.values()))
        return [card for _, card in asked]

    async def answer(self, body: Request) -> Json:
        handle = self._handle(body)
        _, answer = await _begun(lambda: handle.answer.remote(type(body).__name__, plain(body)))
        return answer

    async def stream(self, body: Request) -> Answering:
        handle = self._handle(body).options(stream=True)
        response, report = await _begun(lambda: handle.stream.remote(type(body).__name__, plain(body)), streamed=True)
        return _ClusterAnswering(response, report)

    async def tokens(self, body: TokenizeRequest) -> Json:
        handle = self._named(body.model)
        _, tokens = await _begun(lambda: handle.tokens.remote(type(body).__name__, plain(body)))
        return tokens

    def _named(self, name: str) -> DeploymentHandle[Any]:
        if name not in self._handles:
            raise unknown_model(name, self._handles)
        return self._handles[name]

    def _handle(self, body: Request) -> DeploymentHandle[Any]:
        handle = self._named(body.model)
        key = affinity(body) if self._affine[body.model] else ""
        return handle.options(session_id=key) if key else handle


class _ClusterAnswering:
    """A stream of a replica."""

    def __init__(self, response: Any, report: Json) -> None:
        self._response, self.report = response, report

    async def chunks(self) -> AsyncIterator[Json]:
        try:
            while True:
                try:
                    chunk = await _raised_here(anext(self._response))
                except StopAsyncIteration:
                    return
                yield chunk
        except DEAD as error:
            raise ApiError(503, "the replica died after the answer had begun", None, "replica_died", 1) from error

    async def close(self) -> None:
        self._response.cancel()


def affinity(body: Request) -> str:
    """What is equal for requests with the same documents in any order; empty for those that name none."""
    given = body.documents
    if given is None and isinstance(body, ChatRequest) and body.chat_template_kwargs is not None:
        given = body.chat_template_kwargs.documents
    if not given:
        return ""
    hashes = sorted(hashlib.sha256(each.text.encode()).hexdigest() for each in given)
    return hashlib.sha256("\n".join([body.model, *hashes]).encode()).hexdigest()


async def _begun(ask: Callable[[], Any], streamed: bool = False) -> tuple[Any, Json]:
    """A replica's response and its answer, or a stream's first part; of another one where the first replica dies.

    Args:
        ask: sends the request.
    """
    for tries_left in reversed(range(TRIES)):
        response = ask()
        try:
            return response, await _raised_here(anext(response) if streamed else response)
        except asyncio.CancelledError:
            response.cancel()
            raise
        except DEAD as error:
            log("replica died", tries_left=tries_left, kind=type(error).__name__)
            died = error
        if tries_left:
            await asyncio.sleep(SECONDS_BETWEEN)
    raise ApiError(503, "the replicas of this model die", None, "replica_died", retry_after=5) from died


async def _raised_here(response: Awaitable[Json]) -> Json:
    """What comes, with an error of the replica as it was raised there."""
    try:
        return await response
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, ApiError):
            raise error.cause from None
        raise


def plain(body: Request | TokenizeRequest) -> Json:
    """A body as it travels to a replica."""
    return body.model_dump(mode="json", exclude_none=True)


def parsed(kind: str, body: Json) -> Any:
    """A body of a kind as the replica gets it."""
    return KINDS[kind].model_validate(body)
