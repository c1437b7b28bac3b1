"""A server with vLLM's routes and ragbias's connector, which answers only from stored documents, and a proxy."""

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from ragbias import DebiasedLM, DocumentCache, Prompt
from ragbias.cache.identity import identity_of
from ragbias.generation import Generation
from ragbias.prompt import TokenisedPrompt
from ragbias.serving.server import Metrics
from ragbias.serving.settings import ProxySettings, UpstreamModel
from ragbias_vllm.plans import Plan, parts_of
from ragbias_vllm.proxy import create_vllm_proxy
from support.live_server import listening_app

Json = dict[str, Any]
FAILED = {"message": "Internal server error", "type": "InternalServerError", "param": None, "code": 500}


@dataclass
class VllmServer:
    """The server's state, which tests read and change.

    Attributes:
        connector: whether the connector is configured; vLLM ignores its parameters otherwise.
        entries: stored documents: scope, prefix, document.
        forgets: whether the store loses every entry at once.
        full: whether the store takes no more entries.
        folder: the connector's folder, with the documents of rotor.
        seconds: pause between the events of a stream.
        store_seconds: pause before a document is stored.
        bodies: all bodies that arrived.
        details: whether `--enable-prompt-tokens-details` is set.
        computes: number of tokens of prefix and documents that answers compute instead of loading.
        aborted: number of streams that were closed before their end.
    """

    lm: DebiasedLM
    root: str = "tiny"
    connector: bool = True
    forgets: bool = False
    full: bool = False
    folder: Path | None = None
    seconds: float = 0.0
    store_seconds: float = 0.0
    healthy: bool = True
    breaks_off: bool = False
    entries: set[tuple[str, tuple[int, ...], tuple[int, ...]]] = field(default_factory=set)
    bodies: list[Json] = field(default_factory=list)
    details: bool = True
    computes: int = 0
    aborted: int = 0

    def __post_init__(self) -> None:
        self.app = FastAPI()
        self.app.get("/v1/models")(self.models)
        self.app.get("/health")(self.health)
        self.app.post("/v1/completions")(self.completions)

    def sent(self, store: bool) -> list[Json]:
        """Return the store requests, or the requests for answers."""
        return [body for body in self.bodies if ("store" in _parameters(body)) == store]

    async def models(self) -> Json:
        base = {"id": "tiny", "root": self.root, "max_model_len": self.lm.window, "parent": None}
        return {"object": "list", "data": [base, {"id": "tiny-reader", "root": "/readers/tiny", "parent": "tiny"}]}

    async def health(self) -> Response:
        return Response(status_code=200 if self.healthy else 503)

    async def completions(self, request: Request) -> Response:
        body = await request.json()
        self.bodies.append(body)
        if not self.healthy:
            return JSONResponse({"error": FAILED}, 500)
        if len(body["prompt"]) + body["max_tokens"] > self.lm.window:
            return JSONResponse({"error": {"message": "too long", "code": 400}}, 400)
        if body.get("stream"):
            return StreamingResponse(self._streamed(body), media_type="text/event-stream")
        if "store" in _parameters(body):
            await asyncio.sleep(self.store_seconds)
        answer = await asyncio.to_thread(self._answer, body)
        if answer is None:
            return JSONResponse({"error": FAILED}, 500)
        generation, transferred = answer
        choice = self._choice(body, generation, 0, None)
        return JSONResponse({"choices": [choice], "usage": self._usage(body), "kv_transfer_params": transferred})

    async def _streamed(self, body: Json) -> AsyncIterator[str]:
        answer = await asyncio.to_thread(self._answer, body)
        if answer is None:
            yield f"data: {json.dumps({'error': FAILED})}\n\n"
            yield "data: [DONE]\n\n"
            return
        generation, count = answer[0], answer[0].usage.completion_tokens
        sent = 0
        try:
            for index in range(count):
                await asyncio.sleep(self.seconds)
                if self.breaks_off and index == 2:
                    return
                yield f"data: {json.dumps({'choices': [self._choice(body, generation, index, index + 1)]})}\n\n"
                sent += 1
            assert body["stream_options"] == {"include_usage": True}
            yield f"data: {json.dumps({'choices': [], 'usage': self._usage(body)})}\n\n"
            yield "data: [DONE]\n\n"
        finally:
            self.aborted += sent < count

    def _answer(self, body: Json) -> tuple[Generation, Json | None] | None:
        """Return the answer and the connector's result, or None if a document is not stored."""
        ids, parameters, transferred = body["prompt"], _parameters(body), None
        method, tokens = "none", TokenisedPrompt(ids, [], [])
        if parameters and self.connector:
            edges = [0]
            for length in parameters["lengths"]:
                edges.append(edges[-1] + length)
            prefix, *documents = (ids[begin:end] for begin, end in pairwise(edges))
            keys = [(parameters["scope"], tuple(prefix), tuple(document)) for document in documents]
            parts = [parameters["method"], parameters["scope"], parameters["lengths"]]
            parts += [ids[: edges[-1]]] if parameters["method"].startswith("rotor") else []
            parts = ["store", parameters["scope"]] if parameters.get("store") else parts
            if body["cache_salt"] != hashlib.sha256(json.dumps(["ragbias", *parts]).encode()).hexdigest():
                return None
            if parameters.get("store"):
                stored = not self.full and not set(keys) <= self.entries
                self.entries |= set() if self.full else set(keys)
                transferred = {"ragbias": {"stored": stored, "available": set(keys) <= self.entries}}
            elif parameters["method"].startswith("rotor"):
                if not self._has_joint_documents(parameters, ids):
                    return None
                method, tokens = "rotor", TokenisedPrompt(prefix, documents, ids[edges[-1] :])
                transferred = {"ragbias": {"loaded": edges[-1]}}
            elif self.forgets or not set(keys) <= self.entries:
                return None
            else:
                method, tokens = parameters["method"], TokenisedPrompt(prefix, documents, ids[edges[-1] :])
                transferred = {"ragbias": {"loaded": edges[-1] - self.computes}}
        request = self.lm.prepare(Prompt("a", ["b", "c"], "d"), method=method)
        penalty, seed = body.get("repetition_penalty"), body.get("seed")
        (generation,) = self.lm.batch(
            [replace(request, tokens=tokens)],
            max_new_tokens=body["max_tokens"],
            temperature=body["temperature"],
            top_k=body.get("top_k") or None,
            stop=body.get("stop"),
            seed=seed,
            repetition_penalty=None if penalty == 1 else penalty,
            logprobs=True,
        )
        return generation, transferred

    def _has_joint_documents(self, parameters: Json, ids: list[int]) -> bool:
        plan = Plan(False, parameters["method"], tuple(parameters["lengths"]), parameters["scope"])
        cache = DocumentCache(memory=None, folder=self.folder, portable=True)
        return all(part.key in cache for part in parts_of(identity_of(self.lm.model, "", portable=True), plan, ids))

    def _usage(self, body: Json) -> Json:
        usage: Json = {"prompt_tokens": len(body["prompt"])}
        loaded = sum(_parameters(body).get("lengths", ())) if self.connector else 0
        return usage | ({"prompt_tokens_details": {"cached_tokens": loaded - self.computes}} if self.details else {})

    def _choice(self, body: Json, generation: Generation, begin: int, end: int | None) -> Json:
        count = generation.usage.completion_tokens
        eos = body["stop_token_ids"][:1] if "stop_token_ids" in body else []
        ids = [*generation.token_ids, *eos][:count][begin:end]
        logprobs = [*(generation.logprobs or ()), 0.0][begin : begin + len(ids)]
        last = end in (None, count)
        return {
            "index": 0,
            "text": "",
            "token_ids": ids if body.get("return_token_ids") else None,
            "logprobs": None if body.get("logprobs") is None else {"token_logprobs": logprobs},
            "finish_reason": generation.finish_reason if last else None,
        }


def _parameters(body: Json) -> Json:
    found: Json = (body.get("kv_transfer_params") or {}).get("ragbias", {})
    return found


@contextmanager
def in_front_of(
    upstream: str, method: str = "pcw", reader: str = "", model: str = "", cache: Path | None = None, **settings: Any
) -> Iterator[str]:
    """Run ``ragbias proxy`` in front of a server during the block and yield its address."""
    chosen = UpstreamModel(upstream, method, model, reader, timeout=20, cache=cache, cache_disk=cache and "1GB")
    app, load = create_vllm_proxy(chosen, ProxySettings(**settings), Metrics())
    load()
    with listening_app(app) as address:
        yield address
