"""Answers in LlamaIndex's types, with the report and the token usage in `additional_kwargs`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from llama_index.core.base.llms.types import (
    ChatMessage,
    ChatResponse,
    CompletionResponse,
    LogProb,
    MessageRole,
    TextBlock,
    ToolCallBlock,
)
from llama_index.llms.ragbias import tool_calls

from ragbias.generation.report import Generation


@dataclass(frozen=True)
class Answer:
    """The text of an answer so far and its last piece.

    Once it is complete: the `generation`, `logprobs` in OpenAI's shape, tool `calls`, and `errors` of malformed ones.
    """

    text: str
    delta: str | None = None
    generation: Generation | None = None
    logprobs: dict[str, Any] | None = None
    calls: tuple[ToolCallBlock, ...] = ()
    errors: tuple[str, ...] = ()

    def completion(self) -> CompletionResponse:
        """The response of a completion."""
        return CompletionResponse(text=self.text, delta=self.delta, **self._fields())

    def chat(self) -> ChatResponse:
        """The response of a chat.

        The message itself has no details, because memories print those into later prompts. Tool calls are in its
        blocks and in `additional_kwargs`, where LlamaIndex's streaming programs look for them.
        """
        message = ChatMessage(role=MessageRole.ASSISTANT, content=self.text)
        fields = self._fields()
        if self.calls:
            text = [TextBlock(text=self.text)] if self.text else []
            calls = {"tool_calls": [tool_calls.as_dict(block) for block in self.calls]}
            message = ChatMessage(role=MessageRole.ASSISTANT, blocks=[*text, *self.calls], additional_kwargs=calls)
        if self.errors:
            fields["additional_kwargs"]["invalid_tool_calls"] = list(self.errors)
        return ChatResponse(message=message, delta=self.delta, **fields)

    def _fields(self) -> dict[str, Any]:
        if self.generation is None:
            return {"additional_kwargs": {}, "raw": None}
        usage, report = self.generation.usage.as_dict(), self.generation.report.as_dict()
        raw: dict[str, Any] = {"usage": usage, "finish_reason": self.generation.finish_reason, "ragbias": report}
        tokens = None
        if self.logprobs is not None:
            raw["logprobs"] = self.logprobs
            names = ("token", "logprob", "bytes")
            tokens = [[LogProb(**{name: each[name] for name in names})] for each in self.logprobs["content"]]
        return {"additional_kwargs": {**usage, "ragbias": report}, "raw": raw, "logprobs": tokens}
