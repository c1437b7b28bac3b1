"""``RemoteLM``: a model behind a server, for the integrations in the place of ``DebiasedLM``."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from ragbias import methods
from ragbias.adapters.remote.connection import Connection
from ragbias.adapters.tool_use import AnswerFormat
from ragbias.adapters.untokenised import untokenised
from ragbias.boundaries import Boundaries
from ragbias.errors import ArgumentError, ServerError
from ragbias.generation.arguments import check_arguments
from ragbias.generation.report import Generation, PromptTokensDetails, Report, Usage
from ragbias.generation.request import Request
from ragbias.generation.streaming import Stream
from ragbias.methods import Method
from ragbias.methods.parse import written

Json = dict[str, Any]
SAME = ("temperature", "top_p", "top_k", "seed", "stop", "repetition_penalty", "tool_choice", "response_format")
HERE = ("batch_size", "keep_special", "tools")  # settings of a local model that a server decides itself
BESIDE_MODEL = ("lm", "model", "document_cache")  # fields of an integration that a server leaves no room for
MARKED = "<|im_start|>{role}\n{content}<|im_end|>\n"  # what parts messages where their documents are looked for


class Conversation(str):
    """The messages of a chat as one text, in which documents are found; knows the messages themselves."""

    messages: Sequence[Json]
    tools: Sequence[Any]


@dataclass(frozen=True)
class RemoteFormat(AnswerFormat):
    """As ``AnswerFormat``, where the server begins the answer and the client reads it."""

    choice: Any = None
    response_format: Any = None

    @property
    def settings(self) -> Json:
        """What the server is told."""
        given = {"tool_choice": self.choice if self.tools else None, "response_format": self.response_format}
        return {name: value for name, value in given.items() if value is not None}


@dataclass(frozen=True)
class RemoteGeneration(Generation):
    """An answer of a server, which has no token ids; ``told_logprobs`` are in OpenAI's shape."""

    told_logprobs: Json | None = None


class RemoteTokenizer:
    """The tokenizer of a model behind a server."""

    def __init__(self, connection: Connection, model: str, chat_template: str | None) -> None:
        self.chat_template = chat_template
        self._connection, self._model = connection, model

    def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
        """``{"input_ids": [...]}``."""
        body = {"model": self._model, "prompt": text, "add_special_tokens": add_special_tokens}
        return {"input_ids": list(self._connection.post("/tokenize", body)["tokens"])}


class RemoteLM:
    """A model behind a server of ``ragbias serve``.

    Documents are found here, and sent as ``documents``; the method runs there. What is asked for together is sent at
    the same time, so that the server answers it in padded batches.

    Args:
        base_url: of the server, with or without ``/v1``.
        name: of the model, as the server knows it; ``None`` for the only one there.
        method: default method.
        api_key: of the server; empty if it asks for none.
        timeout: seconds without a byte, after which a request has failed; ``None``: no end.
        max_retries: how often a request is tried again that did not get through, or came at a bad time.

    Raises:
        ServerError: nothing answers there, or it refuses, or has no such model.
    """

    backend = "auto"
    strip_numbering = False
    cache = None  # the server has its own

    def __init__(
        self,
        base_url: str,
        name: str | None = None,
        method: str | Method = "pine",
        api_key: str = "",
        timeout: float | None = 600.0,
        max_retries: int = 2,
    ) -> None:
        self._connection = Connection(base_url, api_key, timeout, max_retries)
        card = self._card(name)
        self.name = str(card["id"])
        self.window = int(card["max_model_len"])
        self._shows_tools = bool(card["ragbias"]["tools"])
        template = "(the server's)" if card["ragbias"]["chat"] else None
        self.tokenizer = RemoteTokenizer(self._connection, self.name, template)
        self.method = methods.get(method, self.name)
        self.model = self

    @property
    def base_url(self) -> str:
        """The address, without a path."""
        return self._connection.base_url

    def _card(self, name: str | None) -> Json:
        """What the server says of the model."""
        listed = self._connection.get("/v1/models").get("data")
        cards = [card for card in listed if isinstance(card, dict)] if isinstance(listed, list) else []
        known = [str(card.get("id")) for card in cards]
        if name is None and len(cards) != 1:
            raise ServerError(f"{self.base_url} has {len(cards)} models ({', '.join(known)}); name one")
        for card in cards:
            if name in (None, card.get("id")):
                if not isinstance(card.get("ragbias"), dict):
                    raise ServerError(
                        f"{self.base_url} is no server of `ragbias serve`; use your framework's own client"
                    )
                return card
        raise ServerError(f"{self.base_url} has no model {name!r}; there: {', '.join(map(repr, known)) or 'none'}")

    def chat_text(self, messages: Sequence[Json], tools: Sequence[Any] | None = None) -> Conversation:
        """The conversation as a text in which documents are found; the server's chat template makes the prompt."""
        shown = "".join(MARKED.format(role=each["role"], content=each["content"] or "") for each in messages)
        if tools and self._shows_tools:
            shown = MARKED.format(role="system", content=json.dumps(list(tools), ensure_ascii=False)) + shown
        found = Conversation(shown)
        found.messages, found.tools = messages, tools or ()
        return found

    def prepare(
        self,
        prompt: str,
        documents: None = None,
        boundaries: Boundaries | None = None,
        method: str | Method | None = None,
        cancelled: threading.Event | None = None,
    ) -> RemoteRequest:
        """What is asked for; its report says what was found here, and what the server will be asked to run.

        The tokens are bytes of the text, as the server's are not known here.
        """
        wanted = self.method if method is None else methods.get(method, self.name)
        assert boundaries is not None
        own = untokenised(prompt, boundaries, wanted)
        return RemoteRequest(own.tokens, own.method, own.report, own.origin, prompt=prompt)

    def batch(
        self,
        prompts: Sequence[RemoteRequest],
        *,
        cancelled: threading.Event | None = None,
        **settings: Any,
    ) -> list[RemoteGeneration]:
        """An answer for each request; the settings are those of ``DebiasedLM.batch``.

        Raises:
            CancelledError: ``cancelled`` was set meanwhile.
            ServerError: the server did not answer.
            ArgumentError: an argument cannot be had from a server.
            RagBiasError: what the server refused, as a local model refuses it.
        """
        bodies = [self._body(request, settings) for request in prompts]
        paths = [_path(request) for request in prompts]
        told = self._connection.post_all(paths, bodies, cancelled)
        return [_generation(request, answer) for request, answer in zip(prompts, told, strict=True)]

    def stream(self, prompt: RemoteRequest, **settings: Any) -> Stream:
        """As ``batch``, piece by piece; the errors of the server come with the first piece."""
        body = {**self._body(prompt, settings), "stream": True, "stream_options": {"include_usage": True}}

        def job(emit: Callable[[str], None], cancelled: threading.Event) -> Generation:
            growing = _Growing(emit)
            self._connection.events(_path(prompt), body, growing.see, cancelled)
            return growing.generation(prompt)

        return Stream(job)

    def _body(self, request: RemoteRequest, settings: Mapping[str, Any]) -> Json:
        given = {name: value for name, value in settings.items() if value is not None and name not in HERE}
        if not given.get("stop_token_ids", True):
            del given["stop_token_ids"]
        if given.pop("do_sample", True) is False:
            given.pop("temperature", None)
        check_arguments(
            {name: value for name, value in given.items() if name not in ("tool_choice", "response_format")}
        )
        body = {name: given.pop(name) for name in SAME if name in given}
        body["max_tokens"] = given.pop("max_new_tokens", None)
        logprobs = given.pop("logprobs", False)
        if given:
            raise ArgumentError(f"{', '.join(sorted(given))}: cannot be had from a server; leave it out")
        if isinstance(request.prompt, Conversation):
            body["messages"] = [_message(each) for each in request.prompt.messages]
            body["logprobs"] = logprobs
            if request.prompt.tools:
                body["tools"] = list(request.prompt.tools)
        else:
            body["prompt"] = str(request.prompt)
            body["logprobs"] = 0 if logprobs else None
        if (documents := request.documents()) is not None:
            body["documents"] = documents
        options = {"method": written(request.method), "on_missing": "ignore", "raw": True}
        return {
            "model": self.name,
            **{name: value for name, value in body.items() if value is not None},
            "ragbias": options,
        }


@dataclass(frozen=True)
class RemoteRequest(Request):
    """A request that a server will answer; ``prompt`` is what was asked for."""

    prompt: str | Conversation = ""

    def documents(self) -> list[Json] | None:
        """The documents that were found, as they stand in the messages; ``None`` where the server may look itself."""
        found = self.origin.boundaries
        if self.origin.reason or (found.source == "documents" and not found.spans):
            return []
        if not found.spans:
            return None
        texts = [self.prompt[begin:end] for begin, end in found.texts or found.spans]
        known = found.metadata or [()] * len(texts)
        return [{"text": text, "printed": list(each)} for text, each in zip(texts, known, strict=True)]

    def told(self, report: Json) -> Report:
        """The report of the server, with what only the client knows of how the documents were found."""
        names = {each.name for each in fields(Report)}
        given = {name: value for name, value in report.items() if name in names}
        given["spans"] = tuple((begin, end) for begin, end in given["spans"])
        there = Report(**{**given, "order": tuple(given["order"])})
        own = self.report
        if there.source != "none" and not self.origin.boundaries.spans:
            return there  # the server found some that nobody knew of here
        known = there.reason in own.reason or there.source == "none"
        reason = own.reason if known else "; ".join(filter(None, (there.reason, own.reason)))
        return replace(
            there, source=own.source, n_expected=own.n_expected, n_left_plain=own.n_left_plain, reason=reason
        )


def _message(turn: Mapping[str, Any]) -> Json:
    """A message as the server reads it: the arguments of calls are text there."""
    if not turn.get("tool_calls"):
        return dict(turn)
    calls = [
        {
            "id": str(call.get("id") or ""),
            "type": "function",
            "function": {
                "name": call["function"]["name"],
                "arguments": json.dumps(call["function"]["arguments"], ensure_ascii=False),
            },
        }
        for call in turn["tool_calls"]
    ]
    return {**turn, "tool_calls": calls}


def _path(request: RemoteRequest) -> str:
    return "/v1/chat/completions" if isinstance(request.prompt, Conversation) else "/v1/completions"


def _usage(told: Json) -> Usage:
    cached = told.get("prompt_tokens_details", {}).get("cached_tokens", 0)
    return Usage(told["prompt_tokens"], told["completion_tokens"], PromptTokensDetails(cached))


def _generation(request: RemoteRequest, told: Json) -> RemoteGeneration:
    try:
        choice = told["choices"][0]
        text = choice["message"]["content"] if "message" in choice else choice["text"]
        return RemoteGeneration(
            text=text or "",
            token_ids=[],
            usage=_usage(told["usage"]),
            report=request.told(told["ragbias"]),
            finish_reason=choice["finish_reason"],
            told_logprobs=_chat_logprobs(choice["logprobs"]),
        )
    except (KeyError, IndexError, TypeError) as error:
        raise ServerError(
            f"the server's answer is not one of `ragbias serve` ({type(error).__name__}: {error})"
        ) from error


def _chat_logprobs(told: Json | None) -> Json | None:
    """Log-probabilities in the shape of chats, those of completions too."""
    if told is None or "content" in told:
        return None if told is None else {"content": told["content"]}
    pairs = zip(told["tokens"], told["token_logprobs"], strict=True)
    return {
        "content": [
            {"token": token, "bytes": list(token.encode()), "logprob": value, "top_logprobs": []}
            for token, value in pairs
        ]
    }


class _Growing:
    """A streamed answer as it comes."""

    def __init__(self, emit: Callable[[str], None]) -> None:
        self._emit, self._text = emit, ""
        self._end: Json = {}
        self._report: Json | None = None
        self._usage: Json | None = None

    def see(self, event: Json) -> None:
        self._report = event.get("ragbias", self._report)
        self._usage = event.get("usage") or self._usage
        for choice in event["choices"]:
            piece = choice["text"] if "text" in choice else choice["delta"].get("content")
            if piece:
                self._text += piece
                self._emit(self._text)
            if choice["finish_reason"]:
                self._end = choice

    def generation(self, request: RemoteRequest) -> Generation:
        if not self._end or self._report is None or self._usage is None:  # it was cancelled, and nobody reads this
            return RemoteGeneration(self._text, [], Usage(0, 0), request.report, "length")
        choice = {**self._end, "text": self._text}
        return _generation(request, {"choices": [choice], "ragbias": self._report, "usage": self._usage})
