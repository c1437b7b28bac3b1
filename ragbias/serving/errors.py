"""Errors in OpenAI's shape, ``{"error": {"message", "type", "param", "code"}}``, with the status clients expect."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from ragbias.errors import (
    ArgumentError,
    BackendError,
    DocumentNotFoundError,
    EmptyDocumentError,
    MethodError,
    NoDocumentsError,
    OutOfMemoryError,
    PromptTooLongError,
    RagBiasError,
    SpanError,
    UnknownMethodError,
    UnsupportedModelError,
)

METHOD = "ragbias.method"
_NAMED = re.compile(r"(\w+)=")  # how an ArgumentError begins
_OTHER_NAMES = {"max_new_tokens": "max_tokens", "stop_token_ids": "stop"}
_TYPES = {401: "authentication_error", 429: "rate_limit_error", 404: "not_found_error"}


class ApiError(Exception):
    """A request that is refused, or failed.

    Args:
        status: of HTTP.
        message: for the client; it may quote what the client sent, so it is not logged.
        param: the field of the body that it is about, as ``messages[0].role``.
        code: for programs.
        retry_after: seconds after which it may go better.
    """

    def __init__(
        self,
        status: int,
        message: str,
        param: str | None = None,
        code: str | None = None,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(status, message, param, code, retry_after)  # so that it can be pickled
        self.status, self.message, self.param, self.code, self.retry_after = status, message, param, code, retry_after

    def __str__(self) -> str:
        return self.message

    @property
    def type(self) -> str:
        """OpenAI's class of errors."""
        return _TYPES.get(self.status, "server_error" if self.status >= 500 else "invalid_request_error")

    def as_dict(self) -> dict[str, Any]:
        """The body of the response."""
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code}}

    def headers(self) -> dict[str, str]:
        """Headers that go with the status."""
        found = {} if self.retry_after is None else {"retry-after": str(self.retry_after)}
        return found | ({"www-authenticate": "Bearer"} if self.status == 401 else {})


def refused(param: str | None, message: str, code: str | None = None) -> ApiError:
    """A 400 about a field of the body."""
    return ApiError(400, message, param, code)


def unknown_model(name: str, known: Iterable[str]) -> ApiError:
    """A 404 for a model that is not served."""
    here = ", ".join(map(repr, known))
    return ApiError(404, f"there is no model {name!r}; here: {here}", "model", "model_not_found")


def internal(request_id: str) -> ApiError:
    """A 500, which tells nothing but where to look."""
    return ApiError(500, f"a mistake of the server, told in its log under request {request_id}", None, "internal_error")


def of_library(error: RagBiasError, prompt: str = "messages") -> ApiError:
    """What an error of the library is for a client.

    Args:
        prompt: the field that holds the prompt.
    """
    text = str(error)
    if isinstance(error, PromptTooLongError):
        return refused(prompt, text, "context_length_exceeded")
    if isinstance(error, (UnknownMethodError, MethodError, UnsupportedModelError, BackendError)):
        return refused(METHOD, text, "invalid_method")
    if isinstance(error, (DocumentNotFoundError, EmptyDocumentError, NoDocumentsError, SpanError)):
        return refused("documents", text, "invalid_documents")
    if isinstance(error, ArgumentError):
        named = _NAMED.match(text)
        return refused(_OTHER_NAMES.get(named[1], named[1]) if named else None, text)
    if isinstance(error, OutOfMemoryError):
        return ApiError(503, text, None, "out_of_memory", retry_after=5)
    return ApiError(500, text, None, type(error).__name__)


def of_validation(errors: Sequence[Any]) -> ApiError:
    """The first of pydantic's errors about a body; the value is not repeated."""
    first = errors[0]
    param = path([part for part in first["loc"] if part != "body"])
    if first["type"] == "json_invalid":
        return refused(None, f"the body is no valid JSON: {first.get('ctx', {}).get('error', 'it cannot be read')}")
    if first["type"] == "extra_forbidden":
        return refused(param, f"{param}: unknown field; see /docs for those that are known", "unknown_parameter")
    said = first["msg"].removeprefix("Value error, ")
    return refused(param or None, f"{param or 'the body'}: {said}")


def path(location: Sequence[int | str]) -> str:
    """``("messages", 0, "role")`` as ``messages[0].role``."""
    text = ""
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text
