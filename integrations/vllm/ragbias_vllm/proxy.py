"""``ragbias proxy`` in front of vLLM, for methods that run inside the model.

The proxy converts requests to token ids as ``ragbias serve`` does, and vLLM answers them. The connector in vLLM stores
each document once, and loads stored documents into later prompts.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from functools import partial

from fastapi import FastAPI

from ragbias import methods
from ragbias.boundaries import Boundaries
from ragbias.cache import DocumentCache
from ragbias.errors import ArgumentError, MethodError
from ragbias.generation import (
    Generation,
    GenerationSettings,
    GrowingText,
    Request,
    check_length,
    check_orders_text,
    computes_documents_separately,
    generation_config,
)
from ragbias.methods import AttentionMethod, Method, ParallelContextWindows, RoToR, format_method
from ragbias.models.loading import check_dtype, load_model
from ragbias.serving import (
    ApiError,
    Json,
    Metrics,
    ModelEngine,
    ProxySettings,
    ServedModel,
    UpstreamModel,
    WeightlessLM,
    create_app,
    log,
)
from ragbias_vllm.joint_documents import JointDocuments
from ragbias_vllm.plans import RUNNABLE, runs_in_vllm
from ragbias_vllm.proxy_upstream import SECONDS_BETWEEN_CHECKS, Segments, StoredDocuments, Vllm, parameters_of

PLAIN = "canonical-order, long-context-reorder, none"
SEEDS = 2**64  # seeds are unsigned here, and signed in vLLM
NEEDED = "--cache and --cache-disk, the folder of vLLM's connector and the folder's maximum size"


def document_cache(upstream: UpstreamModel) -> DocumentCache | None:
    """Return a cache in the connector's folder, or None without a folder."""
    folder, disk, dtype = upstream.cache, upstream.cache_disk, upstream.dtype
    if (folder is None) != (disk is None) or (dtype != "auto" and folder is None):
        raise ArgumentError(
            f"cache={folder}, cache_disk={disk}, dtype={dtype}: for rotor, give the folder of vLLM's connector and its "
            "maximum size, and optionally vLLM's dtype"
        )
    check_dtype(dtype)
    return None if folder is None else DocumentCache(memory=None, folder=folder, disk=disk, portable=True)


def check_runs(method: Method, joint: bool) -> None:
    """Raise ``MethodError`` if the connector cannot run the method. Accept methods that only reorder documents.

    ``joint`` is whether this proxy can compute documents together, which rotor needs.
    """
    if runs_in_vllm(method):
        if isinstance(method, RoToR) and not joint:
            raise MethodError(f"{method.name}: vLLM cannot compute its documents; start the proxy with {NEEDED}")
        return
    try:
        check_orders_text(method)
    except MethodError:
        raise MethodError(f"{method.name} does not run in vLLM; expected one of {RUNNABLE}, {PLAIN}") from None


def create_vllm_proxy(
    upstream: UpstreamModel, settings: ProxySettings, metrics: Metrics
) -> tuple[FastAPI, Callable[[], None]]:
    """Create the proxy's application, and a function that connects it to the upstream server."""
    method = methods.get(upstream.method)
    check_runs(method, upstream.cache is not None)
    if upstream.reader and not runs_in_vllm(method):
        raise ArgumentError(f"reader={upstream.reader!r}; {method.name} takes no reader in vLLM; use pcw")
    models = VllmModels(upstream, method, settings, metrics)
    engine = ModelEngine(models.load, lambda: models.is_healthy)
    return create_app(engine, settings, metrics, models.lifespan), engine.load


class VllmModels:
    """The models of the upstream server, and whether the server answers."""

    def __init__(self, upstream: UpstreamModel, method: Method, settings: ProxySettings, metrics: Metrics) -> None:
        self._upstream, self._method, self._settings, self._metrics = upstream, method, settings, metrics
        self._client = Vllm(upstream.url, upstream.key, upstream.timeout)
        self._documents = StoredDocuments(self._client, metrics)
        self._cache = document_cache(upstream)
        self._joint: list[JointDocuments] = []
        self.is_healthy = True

    def load(self) -> Iterator[ServedModel]:
        """Wait for the server, and load the tokenizers and configurations of its models.

        Raises:
            ArgumentError: the server lacks the requested reader.
            ServerError: the server lists no models.
            ModelFileError: the tokenizer or configuration cannot be read.
        """
        upstream = self._upstream
        cards = self._client.models()
        adapters = [str(card["id"]) for card in cards if card.get("parent")]
        if upstream.reader and upstream.reader not in adapters:
            known = ", ".join(map(repr, adapters)) or "none; start vLLM with --lora-modules"
            raise ArgumentError(f"reader={upstream.reader!r}; expected an adapter of the upstream server: {known}")
        for card in cards:
            if card.get("parent"):  # an adapter
                continue
            name = str(card["id"])
            window = int(card.get("max_model_len") or 2**31)
            path = upstream.model or str(card.get("root") or name)
            lm = WeightlessLM(path, self._method, window, self._settings.strip_numbering)
            joint = None
            if self._cache:
                model = load_model(path, {"dtype": upstream.dtype, "device": "auto"})
                joint = JointDocuments(model, self._cache)
                self._joint.append(joint)
            yield VllmModel(lm, name, self._settings, self._metrics, self._documents, joint, upstream.reader)

    @asynccontextmanager
    async def lifespan(self, app: FastAPI) -> AsyncIterator[None]:
        """Monitor the upstream server while the application runs, then close the connections."""
        watch = asyncio.create_task(self._watch())
        yield
        watch.cancel()
        for joint in self._joint:
            joint.close()
        await self._client.close()

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(SECONDS_BETWEEN_CHECKS)
            healthy = await self._client.is_healthy()
            if healthy != self.is_healthy:
                log("the upstream server answers again" if healthy else "the upstream server does not answer")
            self.is_healthy = healthy
            if not healthy:  # the server may restart with another store, or without the connector
                self._documents.forget()


class VllmModel(ServedModel):
    """A model of a vLLM server, under the name that clients use."""

    def __init__(
        self,
        lm: WeightlessLM,
        name: str,
        settings: ProxySettings,
        metrics: Metrics,
        store: StoredDocuments,
        joint: JointDocuments | None,
        reader: str,
    ) -> None:
        super().__init__(lm, name, settings, metrics)
        self._documents, self._joint, self._reader = store, joint, reader

    def prepare(self, text: str, boundaries: Boundaries, method: Method, cancelled: threading.Event) -> Request:
        check_runs(method, self._joint is not None)
        request = super().prepare(text, boundaries, method, cancelled)
        check_length(len(request.tokens.ids), self.lm.window)
        if not isinstance(request.method, AttentionMethod):
            return request
        if not computes_documents_separately(self.lm.model, ParallelContextWindows(), [request.tokens]):
            raise MethodError(
                f"{request.method.name} cannot reuse documents in this model, because its rotary frequencies depend "
                "on the prompt's length; use canonical-order or none"
            )
        reader = self._reader if request.method == self.lm.method else ""
        return replace(request, report=replace(request.report, backend="vllm", reader=reader))

    async def answer(self, request: Request, settings: GenerationSettings, salt: str = "") -> Generation:
        """Return the complete answer. Cancelling this call aborts the request in vLLM."""
        pieces = self.pieces(request, settings, salt, streamed=False)
        (generation,) = [piece async for piece in pieces if isinstance(piece, Generation)]
        return generation

    async def pieces(
        self, request: Request, settings: GenerationSettings, salt: str = "", streamed: bool = True
    ) -> AsyncGenerator[str | Generation, None]:
        """Yield pieces of text, then the complete answer. Closing the generator aborts the request in vLLM."""
        body, eos, segments = self._body(request, settings, salt, streamed)
        text = GrowingText(self.lm.tokenizer, settings)
        finish = None
        cached = 0
        usage = None
        logprobs: list[float] = []
        running = partial(self.running, streamed=streamed)
        async with aclosing(self._documents.answers(body, segments, running)) as answers:
            async for cached, answer in answers:  # noqa: B007
                usage = answer.get("usage")
                for choice in answer["choices"]:
                    logprobs += (choice.get("logprobs") or {}).get("token_logprobs", ())
                    finish = choice["finish_reason"] or finish
                    if piece := text.add(choice["token_ids"] or ()):
                        yield piece
        if finish not in ("stop", "length") or not usage:
            raise ApiError(502, "the upstream server's answer broke off", None, "upstream_broke_off")
        whole, rest = text.end()
        if rest:
            yield rest
        scores = logprobs if settings.logprobs else None
        yield Generation.from_tokens(request, whole, text.ids, eos, cached, finish, scores)

    def _body(
        self, request: Request, settings: GenerationSettings, salt: str, streamed: bool
    ) -> tuple[Json, Sequence[int], Segments | None]:
        """Return the body for vLLM, the tokens that end an answer, and the segments to store first.

        Defaults for sampling are those of ``DebiasedLM``, not of vLLM.
        """
        tokens = request.tokens
        method = request.method
        segments = None
        if runs_in_vllm(method):
            tokens = tokens.reordered(method.document_order(tokens.documents))
            joint = self._joint if isinstance(method, RoToR) else None
            segments = Segments(format_method(method), tokens.prefix, tokens.documents, salt, self.name, joint)
        ids = tokens.ids
        max_tokens = min(settings.max_new_tokens, self.lm.window - len(ids))
        config, eos, _ = generation_config(self.lm.model, self.lm.tokenizer, settings, max_tokens)
        seed = settings.seed
        if seed is not None and seed >= SEEDS // 2:
            seed -= SEEDS
        body: Json = {
            "model": request.report.reader or self.name,
            "prompt": ids,
            "max_tokens": config.max_new_tokens,
            "temperature": 0 if settings.is_greedy else settings.temperature,
            "top_k": settings.top_k or 0,
            "top_p": 1 if settings.top_p is None else settings.top_p,
            "min_p": 0,
            "repetition_penalty": config.repetition_penalty or 1,
            "seed": seed,
            "stop": list(settings.stop),
            "stop_token_ids": list(eos),
            "logprobs": 0 if settings.logprobs else None,
            "return_token_ids": True,
            "stream": streamed,
            "cache_salt": f"plain {salt}",
        }
        if streamed:
            body["stream_options"] = {"include_usage": True}  # the only report of the connector in streams
        if segments is not None:
            body |= parameters_of(segments.plan(), ids)
        return body, eos, segments
