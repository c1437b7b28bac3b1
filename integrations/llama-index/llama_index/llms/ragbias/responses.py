"""What the core answers, in LlamaIndex's types; the report and the token usage are in `additional_kwargs`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from llama_index.core.base.llms.types import (
    ChatMessage,
    ChatResponse,
    CompletionResponse,
    MessageRole,
    TextBlock,
    ToolCallBlock,
)
from llama_index.llms.ragbias import tool_calls

from ragbias.adapters.tool_use import AnswerFormat, GrowingAnswer
from ragbias.generation.report import Generation

Response = TypeVar("Response")


@dataclass(frozen=True)
class AnswerSoFar:
    """What is there of an answer: the text so far, what came last, and once it is complete, how it was made.

    `generation` is None until the answer is complete; `calls` of tools and the `errors` of malformed ones come with it.
    """

    text: str
    delta: str | None = None
    generation: Generation | None = None
    calls: tuple[ToolCallBlock, ...] = ()
    errors: tuple[str, ...] = ()

    def completion(self) -> CompletionResponse:
        """As the response of a completion."""
        return CompletionResponse(text=self.text, delta=self.delta, additional_kwargs=self._details(), raw=self._raw())

    def chat(self) -> ChatResponse:
        """As the response of a chat.

        The message itself carries no details, since memories print those into later prompts; only calls of tools are in
        there as well as in blocks, because LlamaIndex's streaming programs look for them there.
        """
        message = ChatMessage(role=MessageRole.ASSISTANT, content=self.text)
        details = self._details()
        if self.calls:
            text = [TextBlock(text=self.text)] if self.text else []
            calls = {"tool_calls": [tool_calls.as_dict(block) for block in self.calls]}
            message = ChatMessage(role=MessageRole.ASSISTANT, blocks=[*text, *self.calls], additional_kwargs=calls)
        if self.errors:
            details["invalid_tool_calls"] = list(self.errors)
        return ChatResponse(message=message, delta=self.delta, additional_kwargs=details, raw=self._raw())

    def _usage(self) -> dict[str, int]:
        assert self.generation is not None
        return self.generation.usage.as_dict()

    def _report(self) -> dict[str, Any]:
        assert self.generation is not None
        return self.generation.report.as_dict()

    def _details(self) -> dict[str, Any]:
        return {} if self.generation is None else {**self._usage(), "ragbias": self._report()}

    def _raw(self) -> dict[str, Any] | None:
        if self.generation is None:
            return None
        return {"usage": self._usage(), "finish_reason": self.generation.finish_reason, "ragbias": self._report()}


@dataclass
class ResponseBuilder(Generic[Response]):
    """Makes the responses to one request, whole or in chunks whose deltas add up to the text.

    Args:
        respond: an answer as LlamaIndex's type.
        form: how to read it.
        parallel: whether it may have more than one call of a tool.
    """

    respond: Callable[[AnswerSoFar], Response]
    form: AnswerFormat
    parallel: bool

    def __post_init__(self) -> None:
        self._growing = GrowingAnswer(self.form)

    def chunk(self, piece: str) -> Response | None:
        """The response with the next piece, or None while the text may be a tool call."""
        delta = self._growing.add(piece)
        return self.respond(AnswerSoFar(self._growing.shown, delta)) if delta else None

    def last(self, generation: Generation) -> Response:
        """The response that ends a stream."""
        answer = self._answer(generation)
        return self.respond(replace(answer, delta=self._growing.rest(answer.text)))

    def whole(self, generation: Generation) -> Response:
        """The response without a stream."""
        return self.respond(self._answer(generation))

    def _answer(self, generation: Generation) -> AnswerSoFar:
        text, calls, errors = tool_calls.read(self.form, generation.text, self.parallel)
        return AnswerSoFar(text, generation=generation, calls=calls, errors=errors)
