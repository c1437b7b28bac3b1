"""What is answered, in OpenAI's shapes, whole or in chunks; ``ragbias`` holds the report."""

from __future__ import annotations

import json
import time
import uuid
from dataclasses import dataclass, field

from transformers import PreTrainedTokenizerBase

from ragbias.adapters.openai_logprobs import openai_logprobs
from ragbias.adapters.tool_formats import ToolCall
from ragbias.adapters.tool_use import AnswerFormat, GrowingAnswer
from ragbias.generation.report import Generation, Usage
from ragbias.serving.schemas import Json


def headers(report: Json) -> dict[str, str]:
    """The essentials of a report."""
    return {
        "x-ragbias-method": report["method_ran"],
        "x-ragbias-method-requested": report["method_requested"],
        "x-ragbias-documents": str(report["n_found"]),
        "x-ragbias-source": report["source"],
    }


@dataclass
class ChatAnswer:
    """The answer to a chat request.

    Args:
        model: its name, as the client knows it.
        form: how to read it.
        raw: leave it unread.
        parallel: whether it may call several tools.
    """

    model: str
    form: AnswerFormat
    raw: bool = False
    parallel: bool = True
    _id: str = field(default_factory=lambda: f"chatcmpl-{uuid.uuid4().hex}", init=False)
    _created: int = field(default_factory=lambda: int(time.time()), init=False)

    def __post_init__(self) -> None:
        read = AnswerFormat(beginning=self.form.beginning) if self.raw else self.form
        self._growing, self._read = GrowingAnswer(read), read

    def whole(self, generation: Generation, tokenizer: PreTrainedTokenizerBase) -> Json:
        """The body of the response."""
        content, calls = self._content(generation)
        message: Json = {"role": "assistant", "content": content or (None if calls else ""), "refusal": None}
        if calls:
            message["tool_calls"] = calls
        choice = {"index": 0, "message": message, **self._end(generation, calls, tokenizer)}
        return {
            **self._head("chat.completion"),
            "choices": [choice],
            "usage": generation.usage.as_dict(),
            "ragbias": generation.report.as_dict(),
        }

    def first(self) -> Json:
        """The chunk that begins a stream."""
        return self._chunk({"role": "assistant", "content": ""})

    def piece(self, text: str) -> Json | None:
        """The chunk for a piece of the answer; ``None`` while it may be a call of a tool."""
        shown = self._growing.add(text)
        return self._chunk({"content": shown}) if shown else None

    def last(self, generation: Generation, tokenizer: PreTrainedTokenizerBase) -> list[Json]:
        """The chunks that end a stream, but for the one with the usage."""
        content, calls = self._content(generation)
        chunks = [self._chunk({"content": rest})] if (rest := self._growing.rest(content)) else []
        if calls:
            chunks.append(self._chunk({"tool_calls": [{"index": at, **call} for at, call in enumerate(calls)]}))
        end = self._chunk({}, **self._end(generation, calls, tokenizer))
        return [*chunks, {**end, "ragbias": generation.report.as_dict()}]

    def usage_chunk(self, counts: Usage) -> Json:
        """The chunk with the usage alone."""
        return {**self._head("chat.completion.chunk"), "choices": [], "usage": counts.as_dict()}

    def _content(self, generation: Generation) -> tuple[str, list[Json]]:
        content, calls = self._read.read(generation.text)
        broken = [call.raw for call in calls if call.error]
        good = [_call(call) for call in calls if not call.error]
        return "\n".join(filter(None, (content, *broken))), good if self.parallel else good[:1]

    def _end(self, generation: Generation, calls: list[Json], tokenizer: PreTrainedTokenizerBase) -> Json:
        logprobs = None
        if generation.logprobs is not None:
            kept = tuple(self.form.settings.get("keep_special", ()))
            logprobs = {**openai_logprobs(generation, tokenizer, kept), "refusal": None}
        return {"logprobs": logprobs, "finish_reason": "tool_calls" if calls else generation.finish_reason}

    def _chunk(self, delta: Json, finish_reason: str | None = None, logprobs: Json | None = None) -> Json:
        choice = {"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}
        return {**self._head("chat.completion.chunk"), "choices": [choice]}

    def _head(self, kind: str) -> Json:
        return {"id": self._id, "object": kind, "created": self._created, "model": self.model}


@dataclass
class CompletionAnswer:
    """The answer to a completion request."""

    model: str
    _id: str = field(default_factory=lambda: f"cmpl-{uuid.uuid4().hex}", init=False)
    _created: int = field(default_factory=lambda: int(time.time()), init=False)

    def whole(self, generation: Generation, tokenizer: PreTrainedTokenizerBase) -> Json:
        """The body of the response."""
        body = self._body(generation.text, generation.finish_reason, _logprobs(generation, tokenizer))
        return {**body, "usage": generation.usage.as_dict(), "ragbias": generation.report.as_dict()}

    def first(self) -> Json | None:
        """Streams of completions begin with their first piece."""
        return None

    def piece(self, text: str) -> Json | None:
        """The chunk for a piece of the answer."""
        return self._body(text)

    def last(self, generation: Generation, tokenizer: PreTrainedTokenizerBase) -> list[Json]:
        """The chunks that end a stream, but for the one with the usage."""
        end = self._body("", generation.finish_reason, _logprobs(generation, tokenizer))
        return [{**end, "ragbias": generation.report.as_dict()}]

    def usage_chunk(self, counts: Usage) -> Json:
        """The chunk with the usage alone."""
        return {**self._body(""), "choices": [], "usage": counts.as_dict()}

    def _body(self, text: str, finish_reason: str | None = None, logprobs: Json | None = None) -> Json:
        choice = {"index": 0, "text": text, "logprobs": logprobs, "finish_reason": finish_reason}
        head = {"id": self._id, "object": "text_completion", "created": self._created, "model": self.model}
        return {**head, "choices": [choice]}


Answer = ChatAnswer | CompletionAnswer


def _call(call: ToolCall) -> Json:
    arguments = json.dumps(call.arguments, ensure_ascii=False)
    return {
        "id": f"call_{uuid.uuid4().hex[:24]}",
        "type": "function",
        "function": {"name": call.name, "arguments": arguments},
    }


def _logprobs(generation: Generation, tokenizer: PreTrainedTokenizerBase) -> Json | None:
    """As completions have them; the offsets are those in the text of the answer."""
    if generation.logprobs is None:
        return None
    content = openai_logprobs(generation, tokenizer)["content"]
    offsets = [0]
    for each in content:
        offsets.append(offsets[-1] + len(each["token"]))
    return {
        "tokens": [each["token"] for each in content],
        "token_logprobs": [each["logprob"] for each in content],
        "top_logprobs": None,
        "text_offset": offsets[:-1],
    }
