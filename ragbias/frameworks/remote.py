"""Models behind servers. ``RemoteLM`` has the interface of ``DebiasedLM``."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from ragbias import methods
from ragbias.boundaries import Boundaries
from ragbias.boundaries.text import join_reasons
from ragbias.checks import check_text
from ragbias.errors import ArgumentError, ServerError, WrongTypeError
from ragbias.frameworks.connection import Connection, Json
from ragbias.frameworks.tool_formats import openai_call
from ragbias.generation import Generation, Report, Request, Stream, Usage
from ragbias.generation.arguments import SAMPLING, GenerationSettings
from ragbias.generation.decoding import openai_token
from ragbias.generation.preparing import create_report, reason_for_plain, split_prompt
from ragbias.lm import DebiasedLM
from ragbias.methods import Method, format_method

END = "<|im_end|>"  # separates messages in ``chat_text``, so that no document extends beyond a message
MESSAGE = "<|im_start|>{role}\n{content}" + END + "\n"


@dataclass(frozen=True)
class RemoteRequest(Request):
    """A request for a server: a chat if ``messages`` are set, otherwise a completion of ``prompt``.

    ``fields`` are other fields of a chat request, such as ``tools``.
    """

    messages: Sequence[Mapping[str, Any]] | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)

    @property
    def path(self) -> str:
        return "/v1/completions" if self.messages is None else "/v1/chat/completions"


@dataclass(frozen=True)
class RemoteGeneration(Generation):
    """An answer of a server. It has no token ids. ``chat_logprobs`` are log-probabilities in OpenAI's chat format."""

    chat_logprobs: Json | None = None


class RemoteLM:
    """A model on a server that ``ragbias serve`` runs.

    The client locates the documents, and the server runs the method. Requests of one call are sent in parallel.

    Args:
        base_url: address of the server, with or without ``/v1``.
        name: name of the model on the server; ``None`` selects the server's only model.
        method: default method; ``None`` selects the server's default method.
        api_key: key for the server; empty if the server needs no key.
        timeout: seconds to wait for data before the request fails; ``None`` waits without limit.
        max_retries: maximum number of retries of a request after connection errors and overload.

    Attributes:
        window: maximum total number of tokens in prompt and answer.
        chat_template: format in which ``chat_text`` prints a message; empty if the model has no chat template.
        has_tools: whether the model's chat template supports tools.

    Raises:
        ServerError: the server is unreachable, rejects the request, or does not have the model.
        MissingExtraError: ``openai`` is not installed.
    """

    backend = "auto"
    strip_numbering = False
    cache = None  # the server may have a cache

    def __init__(
        self,
        base_url: str,
        name: str | None = None,
        method: str | Method | None = None,
        api_key: str = "",
        timeout: float | None = 600.0,
        max_retries: int = 2,
    ) -> None:
        self._connection = Connection(base_url, api_key, timeout, max_retries)
        self.base_url = self._connection.base_url
        card = self._connection.model(name)
        if not isinstance(card.get("ragbias"), dict):
            raise ServerError(f"{self.base_url} is not a server of `ragbias serve`; use your framework's own client")
        self.name = str(card["id"])
        self.window = int(card["max_model_len"])
        self.has_tools = bool(card["ragbias"]["tools"])
        self.chat_template = MESSAGE if card["ragbias"]["chat"] else ""
        self._server_chooses = method is None
        self.method = methods.get(card["ragbias"].get("method") if method is None else method, self.name)

    def token_ids(self, text: str) -> list[int]:
        """Return the ids of a text's tokens, without special tokens."""
        check_text("the text", text)
        body = {"model": self.name, "prompt": text, "add_special_tokens": False}
        (answer,) = self._connection.post_all(["/tokenize"], [body])
        return list(answer["tokens"])

    def chat_text(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Any] | None = None, **variables: Any
    ) -> str:
        """Join a conversation into a text in which documents can be located. The server renders the real prompt."""
        shown = "".join(MESSAGE.format(role=turn["role"], content=turn["content"] or "") for turn in messages)
        if tools and self.has_tools:
            shown = MESSAGE.format(role="system", content=json.dumps(list(tools), ensure_ascii=False)) + shown
        return shown

    def prepare(self, prompt: str, *, boundaries: Boundaries, method: Method | None = None) -> Request:
        """Return a request for this prompt, with a report of its documents."""
        split = split_prompt(prompt, boundaries=boundaries)
        method = method or self.method
        why_plain = reason_for_plain(method, split, split.parts)
        report = create_report(split.boundaries, method, why_plain)
        return RemoteRequest(split, method, why_plain, method, report)

    def openai_logprobs(self, generation: Generation, keep_special: tuple[str, ...] = ()) -> Json | None:
        """Return an answer's log-probabilities in OpenAI's chat format without ``top_logprobs``, or ``None``."""
        return generation.chat_logprobs if isinstance(generation, RemoteGeneration) else None

    def warm(self, prefix: str, documents: Sequence[str], *, progress: Callable[[int], None]) -> int:
        """Raise ``ArgumentError``, because the server caches documents itself."""
        raise ArgumentError(
            f"the model runs at {self.base_url}, which caches documents itself; fill a folder with a local model, and "
            "start the server with --cache"
        )

    def answer(
        self, requests: Sequence[Request], settings: GenerationSettings, cancelled: threading.Event | None = None
    ) -> list[Generation]:
        """Answer prepared requests. For more errors, see ``DebiasedLM.batch``.

        Raises:
            ServerError: the server did not answer.
            WrongTypeError: a request was prepared for a model in this process.
        """
        remote = [_check_remote(request) for request in requests]
        bodies = [self._body(request, settings) for request in remote]
        answers = self._connection.post_all([request.path for request in remote], bodies, cancelled)
        return [_parse_generation(request, answer) for request, answer in zip(remote, answers, strict=True)]

    def stream_answer(self, request: Request, settings: GenerationSettings) -> Stream:
        """Stream the answer to a request. Errors of the server are raised when the first piece is read."""
        request = _check_remote(request)
        body = {**self._body(request, settings), "stream": True, "stream_options": {"include_usage": True}}

        def job(emit: Callable[[str], None], cancelled: threading.Event) -> Generation:
            text = ""
            final: Json = {"choices": [{}]}

            def on_event(event: Json) -> None:
                nonlocal text
                final.update({name: event[name] for name in ("ragbias", "usage") if event.get(name)})
                for choice in event["choices"]:
                    piece = choice["text"] if "text" in choice else choice["delta"].get("content")
                    if piece:
                        text += piece
                        emit(text)
                    if choice["finish_reason"]:
                        final["choices"] = [choice]

            self._connection.read_events(request.path, body, on_event, cancelled)
            choice = final["choices"][0]
            if choice and final.keys() >= {"ragbias", "usage"}:
                return _parse_generation(request, {**final, "choices": [{**choice, "text": text}]})
            if cancelled.is_set():
                return RemoteGeneration(text, [], Usage(0, 0), request.report, "length")
            raise ServerError("the server's answer broke off before its end; try again")

        return Stream(job, request.report)

    def _body(self, request: RemoteRequest, settings: GenerationSettings) -> Json:
        left = settings.arguments()
        left.pop("keep_special", None)  # the server chooses these tokens itself
        body = {name: left.pop(name) for name in (*SAMPLING, "stop") if name in left}
        body["max_tokens"] = left.pop("max_new_tokens")
        logprobs = left.pop("logprobs", False)
        if left:
            raise ArgumentError(f"{', '.join(sorted(left))}: not supported by servers; leave it out")
        if request.messages is None:
            body |= {"prompt": request.prompt.flat.text, "logprobs": 0 if logprobs else None}
        else:
            body |= {"messages": [_to_json(turn) for turn in request.messages], "logprobs": logprobs, **request.fields}
        body |= {"model": self.name, "documents": _located_documents(request)}
        options = {"on_missing": "ignore", "raw": True}
        if not (self._server_chooses and request.method == self.method):
            options["method"] = format_method(request.method)
        given = {name: value for name, value in body.items() if value is not None}
        return {**given, "ragbias": options}


def _check_remote(request: Request) -> RemoteRequest:
    if not isinstance(request, RemoteRequest):
        raise WrongTypeError(f"a {type(request).__name__} is for a model in this process; use RemoteLM.prepare")
    return request


def _located_documents(request: RemoteRequest) -> list[Json] | None:
    """Return the located documents verbatim, or ``None`` to let the server search for documents."""
    located = request.prompt.boundaries
    text = request.prompt.flat.text
    if not located.spans:
        return [] if located.source == "documents" else None
    spans = located.texts or located.spans
    metadata = located.metadata or [()] * len(spans)
    return [{"text": text[b:e], "printed": list(printed)} for (b, e), printed in zip(spans, metadata, strict=True)]


def _to_json(turn: Mapping[str, Any]) -> Json:
    """Convert a message for chat templates to OpenAI's format."""
    if not turn.get("tool_calls"):
        return dict(turn)
    called = [(call["function"], str(call.get("id") or "")) for call in turn["tool_calls"]]
    return {**turn, "tool_calls": [openai_call(each["name"], each["arguments"], id) for each, id in called]}


def _parse_generation(request: RemoteRequest, body: Json) -> RemoteGeneration:
    try:
        choice = body["choices"][0]
        counts = body["usage"]
        text = choice["message"]["content"] if "message" in choice else choice["text"]
        cached = counts.get("prompt_tokens_details", {}).get("cached_tokens", 0)
        logprobs = choice["logprobs"]
        return RemoteGeneration(
            text=text or "",
            token_ids=[],
            usage=Usage(counts["prompt_tokens"], counts["completion_tokens"], cached),
            report=_merge_reports(request, body["ragbias"]),
            finish_reason=choice["finish_reason"],
            chat_logprobs=None if logprobs is None else _chat_logprobs(logprobs),
        )
    except (KeyError, IndexError, TypeError) as error:
        raise ServerError(f"not an answer of `ragbias serve` ({type(error).__name__}: {error})") from error


def _chat_logprobs(logprobs: Json) -> Json:
    """Convert an answer's log-probabilities to OpenAI's chat format without ``top_logprobs``."""
    if "tokens" in logprobs:  # of a completion
        return {"content": list(map(openai_token, logprobs["tokens"], logprobs["token_logprobs"]))}
    names = ("token", "logprob", "bytes")
    return {"content": [{name: token[name] for name in names} for token in logprobs["content"]]}


def _merge_reports(request: RemoteRequest, sent: Json) -> Report:
    """Combine the server's report with the client's report, which describes the located documents."""
    server = Report(**{field.name: sent[field.name] for field in fields(Report) if field.name in sent})
    server = replace(server, spans=tuple(map(tuple, server.spans)), order=tuple(server.order))  # type: ignore[arg-type]
    if server.source != "none" and not request.prompt.boundaries.spans:
        return server  # only the server found documents
    client = request.report
    known = server.reason in client.reason or server.source == "none"
    reason = client.reason if known else join_reasons(server.reason, client.reason)
    located = {name: getattr(client, name) for name in ("source", "n_expected", "n_left_plain")}
    return replace(server, **located, reason=reason)


LanguageModel = DebiasedLM | RemoteLM
"""A model in this process or behind a server."""
