"""Format answers as OpenAI does, complete or in chunks. The additional field ``ragbias`` contains the report."""

from __future__ import annotations

import time
import uuid
from itertools import accumulate
from typing import Any

from transformers import PreTrainedTokenizerBase

from ragbias.frameworks.tool_formats import openai_call
from ragbias.frameworks.tool_use import AnswerFormat, GrowingAnswer
from ragbias.generation import Generation, Report, Usage
from ragbias.generation.decoding import openai_logprobs
from ragbias.serving.schemas import Json


def report_headers(report: Json) -> dict[str, str]:
    """Return the main fields of a report as response headers."""
    return {
        "x-ragbias-method": report["method_ran"],
        "x-ragbias-method-requested": report["method_requested"],
        "x-ragbias-documents": str(report["n_found"]),
        "x-ragbias-source": report["source"],
    }


def report_summary(report: Report) -> str:
    """Summarise a report as ``"pine, 3 documents"``, for clients that drop the field ``ragbias``."""
    ran = f"{report.method_ran}, {report.n_found} documents"
    return ran if report.method_ran == report.method_requested else f"{ran}: {report.reason}"


class _Formatter:
    """Format one answer. All chunks of the answer have the same id and creation time."""

    def __init__(self, model: str, prefix: str, chunk_kind: str) -> None:
        self._model = model
        self._id = f"{prefix}-{uuid.uuid4().hex}"
        self._created = int(time.time())
        self._chunk_kind = chunk_kind
        self.fingerprint = ""

    def usage_chunk(self, usage: Usage) -> Json:
        """Return a chunk that contains only the token counts."""
        return {**self._body(self._chunk_kind), "usage": usage.as_dict()}

    def _chunk(self, **choice: Any) -> Json:
        return self._body(self._chunk_kind, {"logprobs": None, "finish_reason": None, **choice})

    def _body(self, kind: str, *choices: Json) -> Json:
        head = {"id": self._id, "object": kind, "created": self._created, "model": self._model}
        head["system_fingerprint"] = self.fingerprint
        return {**head, "choices": [{"index": 0, **choice} for choice in choices]}


class ChatFormatter(_Formatter):
    """Format the answer to a chat request.

    Args:
        form: format of tool calls and structured output in the model's text.
        raw: return the model's text without parsing tool calls.
    """

    def __init__(self, model: str, form: AnswerFormat, raw: bool = False) -> None:
        super().__init__(model, "chatcmpl", "chat.completion.chunk")
        self._form = AnswerFormat(beginning=form.beginning) if raw else form
        self._keep_special = form.keep_special
        self._growing = GrowingAnswer(self._form)

    def whole(self, generation: Generation, tokenizer: PreTrainedTokenizerBase) -> Json:
        """Return the response body of a complete answer."""
        content, calls = self._content(generation)
        message: Json = {"role": "assistant", "content": content or (None if calls else ""), "refusal": None}
        if calls:
            message["tool_calls"] = calls
        body = self._body("chat.completion", {"message": message, **self._end(generation, calls, tokenizer)})
        return {**body, "usage": generation.usage.as_dict(), "ragbias": generation.report.as_dict()}

    def first(self) -> Json:
        """Return the first chunk of a stream."""
        return self._chunk(delta={"role": "assistant", "content": ""})

    def piece(self, text: str) -> Json | None:
        """Return the chunk for a piece of text, or None if the text may belong to a tool call."""
        visible = self._growing.add(text)
        return self._chunk(delta={"content": visible}) if visible else None

    def last(self, generation: Generation, tokenizer: PreTrainedTokenizerBase) -> list[Json]:
        """Return the last chunks of a stream, without the token counts."""
        content, calls = self._content(generation)
        unsent = self._growing.rest(content)
        chunks = [self._chunk(delta={"content": unsent})] if unsent else []
        if calls:
            indexed = [{"index": index, **call} for index, call in enumerate(calls)]
            chunks.append(self._chunk(delta={"tool_calls": indexed}))
        end = self._chunk(delta={}, **self._end(generation, calls, tokenizer))
        return [*chunks, {**end, "ragbias": generation.report.as_dict()}]

    def _content(self, generation: Generation) -> tuple[str, list[Json]]:
        content, valid, _ = self._form.read_valid(generation.text)
        return content, [openai_call(call.name, call.arguments, call.id) for call in valid]

    def _end(self, generation: Generation, calls: list[Json], tokenizer: PreTrainedTokenizerBase) -> Json:
        logprobs = None
        if generation.logprobs is not None:
            tokens = openai_logprobs(generation, tokenizer, self._keep_special)["content"]
            logprobs = {"content": [{**token, "top_logprobs": []} for token in tokens], "refusal": None}
        return {"logprobs": logprobs, "finish_reason": "tool_calls" if calls else generation.finish_reason}


class CompletionFormatter(_Formatter):
    """Format the answer to a completion request."""

    def __init__(self, model: str) -> None:
        super().__init__(model, "cmpl", "text_completion")

    def whole(self, generation: Generation, tokenizer: PreTrainedTokenizerBase) -> Json:
        """Return the response body of a complete answer."""
        (end,) = self.last(generation, tokenizer)
        end["choices"][0]["text"] = generation.text
        return {**end, "usage": generation.usage.as_dict()}

    def first(self) -> None:
        """Return None, because a completion stream begins with text."""

    def piece(self, text: str) -> Json:
        """Return the chunk for a piece of text."""
        return self._chunk(text=text)

    def last(self, generation: Generation, tokenizer: PreTrainedTokenizerBase) -> list[Json]:
        """Return the last chunk of a stream, without the token counts."""
        end = self._chunk(text="", logprobs=_logprobs(generation, tokenizer), finish_reason=generation.finish_reason)
        return [{**end, "ragbias": generation.report.as_dict()}]


Formatter = ChatFormatter | CompletionFormatter


def _logprobs(generation: Generation, tokenizer: PreTrainedTokenizerBase) -> Json | None:
    """Return the log-probabilities in OpenAI's completion format, with character offsets in the answer."""
    if generation.logprobs is None:
        return None
    tokens = openai_logprobs(generation, tokenizer)["content"]
    offsets = accumulate((len(token["token"]) for token in tokens), initial=0)
    return {
        "tokens": [token["token"] for token in tokens],
        "token_logprobs": [token["logprob"] for token in tokens],
        "top_logprobs": None,
        "text_offset": list(offsets)[:-1],
    }
