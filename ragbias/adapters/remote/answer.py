"""What a server answers, whole or in events, as the generation of a local model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ragbias.adapters.openai_logprobs import openai_token
from ragbias.adapters.remote.request import Json, RemoteRequest
from ragbias.errors import ServerError
from ragbias.generation.report import Generation, PromptTokensDetails, Usage


@dataclass(frozen=True)
class RemoteGeneration(Generation):
    """An answer of a server, which has no token ids; ``chat_logprobs`` are in OpenAI's shape."""

    chat_logprobs: Json | None = None


def _usage(counts: Json) -> Usage:
    cached = counts.get("prompt_tokens_details", {}).get("cached_tokens", 0)
    return Usage(counts["prompt_tokens"], counts["completion_tokens"], PromptTokensDetails(cached))


def generation(request: RemoteRequest, body: Json) -> RemoteGeneration:
    """The answer in the body of a response.

    Raises:
        ServerError: it is none of ``ragbias serve``.
    """
    try:
        choice = body["choices"][0]
        text = choice["message"]["content"] if "message" in choice else choice["text"]
        return RemoteGeneration(
            text=text or "",
            token_ids=[],
            usage=_usage(body["usage"]),
            report=request.merged(body["ragbias"]),
            finish_reason=choice["finish_reason"],
            chat_logprobs=_chat_logprobs(choice["logprobs"]),
        )
    except (KeyError, IndexError, TypeError) as error:
        raise ServerError(
            f"the server's answer is not one of `ragbias serve` ({type(error).__name__}: {error})"
        ) from error


def _chat_logprobs(logprobs: Json | None) -> Json | None:
    """Log-probabilities in the shape of chats, those of completions too."""
    if logprobs is None:
        return None
    if "content" in logprobs:
        return {"content": logprobs["content"]}
    return {"content": list(map(openai_token, logprobs["tokens"], logprobs["token_logprobs"]))}


class StreamedAnswer:
    """A streamed answer as it comes."""

    def __init__(self, emit: Callable[[str], None]) -> None:
        self._emit, self._text = emit, ""
        self._end: Json = {}
        self._report: Json | None = None
        self._usage: Json | None = None

    def add(self, event: Json) -> None:
        """Take the next event, and emit the text up to it."""
        self._report = event.get("ragbias", self._report)
        self._usage = event.get("usage") or self._usage
        for choice in event["choices"]:
            piece = choice["text"] if "text" in choice else choice["delta"].get("content")
            if piece:
                self._text += piece
                self._emit(self._text)
            if choice["finish_reason"]:
                self._end = choice

    def generation(self, request: RemoteRequest, cancelled: bool) -> RemoteGeneration:
        """The whole, once the last event has come.

        Raises:
            ServerError: it broke off.
        """
        if not self._end or self._report is None or self._usage is None:
            if not cancelled:
                raise ServerError("the server's answer broke off before its end; ask again")
            # nobody reads this
            return RemoteGeneration(self._text, [], Usage(0, 0), request.report, "length")
        choice = {**self._end, "text": self._text}
        return generation(request, {"choices": [choice], "ragbias": self._report, "usage": self._usage})
