"""What a server is asked: a prompt or a conversation, with the documents that were found here, as a body of its API."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from ragbias.adapters.tool_use import AnswerFormat
from ragbias.errors import ArgumentError
from ragbias.generation.arguments import check_arguments
from ragbias.generation.report import Report
from ragbias.generation.request import Request
from ragbias.methods.parse import written

Json = dict[str, Any]
SAME_NAME = ("temperature", "top_p", "top_k", "seed", "stop", "repetition_penalty", "tool_choice", "response_format")
SETTLED_THERE = ("batch_size", "keep_special", "tools")  # settings of a local model that a server decides itself


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
class RemoteRequest(Request):
    """A request that a server will answer; ``prompt`` is what was asked for."""

    prompt: str | Conversation = ""

    @property
    def path(self) -> str:
        """Of the server's API."""
        return "/v1/chat/completions" if isinstance(self.prompt, Conversation) else "/v1/completions"

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

    def merged(self, report: Json) -> Report:
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


def body_of(request: RemoteRequest, model: str, settings: Mapping[str, Any]) -> Json:
    """The body of a request for a model of the server; the settings are those of ``DebiasedLM.batch``.

    Raises:
        ArgumentError: a setting is wrong, or cannot be had from a server.
    """
    given = {name: value for name, value in settings.items() if value is not None and name not in SETTLED_THERE}
    if not given.get("stop_token_ids", True):
        del given["stop_token_ids"]
    if given.pop("do_sample", True) is False:
        given.pop("temperature", None)
    check_arguments({name: value for name, value in given.items() if name not in ("tool_choice", "response_format")})
    body = {name: given.pop(name) for name in SAME_NAME if name in given}
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
        "model": model,
        **{name: value for name, value in body.items() if value is not None},
        "ragbias": options,
    }


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
