"""Errors in OpenAI's format: ``{"error": {"message", "type", "param", "code"}}``."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from fastapi.exceptions import HTTPException
from fastapi.responses import JSONResponse
from pydantic import ValidationError

from ragbias import errors
from ragbias.display import json_type
from ragbias.errors import ArgumentError, RagBiasError
from ragbias.serving.schemas import RequestOptions

METHOD = "ragbias.method"
GONE = 499  # nginx's status for a request whose client disconnected
OF_METHOD = (
    errors.UnknownMethodError,
    errors.MethodError,
    errors.ReaderError,
    errors.UnsupportedModelError,
    errors.BackendError,
)
OF_DOCUMENTS = (errors.DocumentNotFoundError, errors.EmptyDocumentError, errors.NoDocumentsError, errors.SpanError)
_ARGUMENT = re.compile(r"(\w+)=")  # the message of an ArgumentError begins with the argument's name
_OTHER_NAMES = {"max_new_tokens": "max_tokens", "stop_token_ids": "stop"}
_TYPES = {401: "authentication_error", 429: "rate_limit_error", 404: "not_found_error"}


class ApiError(HTTPException):
    """An error response. Its message is never logged, because it may quote the request.

    Args:
        status: HTTP status.
        message: reason and remedy, for the client.
        param: the field that is wrong, such as ``messages[0].role``.
        code: machine-readable reason, such as ``"invalid_method"``.
        retry_after: seconds until a retry may succeed.
    """

    def __init__(
        self,
        status: int,
        message: str,
        param: str | None = None,
        code: str | None = None,
        retry_after: int | None = None,
    ) -> None:
        headers = {} if retry_after is None else {"retry-after": str(retry_after)}
        if status == 401:
            headers["www-authenticate"] = "Bearer"
        super().__init__(status, message, headers)
        self.param = param
        self.code = code

    def as_dict(self) -> dict[str, Any]:
        """Return the response body."""
        kind = _TYPES.get(self.status_code, "server_error" if self.status_code >= 500 else "invalid_request_error")
        return {"error": {"message": self.detail, "type": kind, "param": self.param, "code": self.code}}

    def response(self) -> JSONResponse:
        """Return the response to the client."""
        return JSONResponse(self.as_dict(), self.status_code, self.headers)

    def as_sse(self) -> str:
        """Return the error as a server-sent event."""
        return f"data: {json.dumps(self.as_dict())}\n\n"


def bad_request(param: str | None, message: str, code: str | None = None) -> ApiError:
    """Return a 400 response. ``param`` is the field that is wrong, or None."""
    return ApiError(400, message, param, code)


def unknown_model(name: str, known: Iterable[str]) -> ApiError:
    """Return a 404 response that lists the known models."""
    message = f"there is no model {name!r}; available: {', '.join(map(repr, known))}"
    return ApiError(404, message, "model", "model_not_found")


def shutdown_error() -> ApiError:
    """Return a 503 response for requests that are still running when the grace period ends."""
    return ApiError(503, "the server is shutting down; try again", None, "shutting_down", retry_after=5)


def internal_error(request_id: str) -> ApiError:
    """Return a 500 response that refers to the server's log."""
    return ApiError(500, f"internal error; see request {request_id} in the server's log", None, "internal_error")


@contextmanager
def translate_errors(prompt: str) -> Iterator[None]:
    """Convert errors of pydantic and this library to ``ApiError``. ``prompt`` is the name of the prompt's field."""
    try:
        yield
    except ValidationError as error:
        raise from_validation(error.errors()) from error
    except RagBiasError as error:
        raise from_library(error, prompt) from error


def from_library(error: RagBiasError, prompt: str) -> ApiError:
    """Convert an error of this library to ``ApiError``. ``prompt`` is the name of the prompt's field."""
    text = str(error)
    if isinstance(error, errors.PromptTooLongError):
        return bad_request(prompt, text, "context_length_exceeded")
    if isinstance(error, OF_METHOD):
        return bad_request(METHOD, text, "invalid_method")
    if isinstance(error, OF_DOCUMENTS):
        return bad_request("documents", text, "invalid_documents")
    if isinstance(error, ArgumentError):
        argument = _ARGUMENT.match(text)
        field = _OTHER_NAMES.get(argument[1], argument[1]) if argument else None
        code = "unsupported_parameter" if isinstance(error, NotImplementedError) else None
        return bad_request(field, text, code)
    if isinstance(error, errors.OutOfMemoryError):
        return ApiError(503, text, None, "out_of_memory", retry_after=5)
    return ApiError(500, text, None, type(error).__name__)


def from_validation(failures: Sequence[Any]) -> ApiError:
    """Convert the first of pydantic's errors to ``ApiError``. The message does not quote the rejected value."""
    first = failures[0]
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"] if part != "body")
    param = path.removeprefix(".")
    message = first["msg"].removeprefix("Value error, ")
    code = None
    if first["type"] == "extra_forbidden":
        where = f"name it ragbias.{param}" if param in RequestOptions.model_fields else "/docs lists the known ones"
        message, code = f"unknown field; {where}", "unknown_parameter"
    elif first["type"].endswith("_type"):
        message += f", not {json_type(first['input'])}"
    elif first["type"] == "unsupported_parameter":
        code = "unsupported_parameter"
    return bad_request(param or None, f"{param or 'the body'}: {message}", code)
