"""What the core answers, in LlamaIndex's types; the report and the token usage are in `additional_kwargs`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from llama_index.core.base.llms.types import ChatMessage, ChatResponse, CompletionResponse, MessageRole

from ragbias.lm import Generation


@dataclass(frozen=True)
class Answer:
    """What is there of an answer: the text so far, what came last, and once it is complete, how it was made.

    `generation` is None until the answer is complete.
    """

    text: str
    delta: str | None = None
    generation: Generation | None = None

    @property
    def report(self) -> dict[str, Any] | None:
        """What ran on which documents."""
        return None if self.generation is None else self.generation.report.as_dict()

    def completion(self) -> CompletionResponse:
        """As the response of a completion."""
        return CompletionResponse(text=self.text, delta=self.delta, additional_kwargs=self._details(), raw=self._raw())

    def chat(self) -> ChatResponse:
        """As the response of a chat. The message itself carries no details: memories print those into later prompts."""
        message = ChatMessage(role=MessageRole.ASSISTANT, content=self.text)
        return ChatResponse(message=message, delta=self.delta, additional_kwargs=self._details(), raw=self._raw())

    def _usage(self) -> dict[str, int]:
        assert self.generation is not None
        usage = self.generation.usage
        return {
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
            "total_tokens": usage.total_tokens,
        }

    def _details(self) -> dict[str, Any]:
        return {} if self.generation is None else {**self._usage(), "ragbias": self.report}

    def _raw(self) -> dict[str, Any] | None:
        if self.generation is None:
            return None
        return {"usage": self._usage(), "finish_reason": self.generation.finish_reason, "ragbias": self.report}
