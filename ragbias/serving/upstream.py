"""The server behind a proxy: an HTTP client with its errors, and the server's model without weights."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager, suppress

import httpx
import torch
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig, PreTrainedModel

from ragbias import limits
from ragbias.errors import ModelFileError, first_line
from ragbias.frameworks.connection import server_address
from ragbias.lm import DebiasedLM
from ragbias.methods import Method
from ragbias.models.loading import check_model_path, load_tokenizer
from ragbias.models.named import local_path
from ragbias.serving.errors import ApiError

MAX_LINE_BYTES = 16 * 2**20  # maximum size of one line in an event stream


def upstream_client(url: str, timeout: float, key: str = "") -> httpx.AsyncClient:
    """Create a client that requests uncompressed answers and opens any number of connections.

    ``url`` may end in ``/v1``. ``timeout`` is the maximum number of seconds to wait for the next byte.
    """
    address = server_address("upstream", url)
    connections = httpx.Limits(max_connections=None, max_keepalive_connections=100)
    headers = {"accept-encoding": "identity"}
    if key:
        headers["authorization"] = f"Bearer {key}"
    return httpx.AsyncClient(base_url=address, timeout=timeout, headers=headers, limits=connections)


@contextmanager
def upstream_errors() -> Iterator[None]:
    """Convert errors of the connection to the upstream server to ``ApiError``."""
    try:
        yield
    except httpx.TimeoutException as error:
        seconds = error.request.extensions["timeout"]["read"]
        message = f"the upstream server sent nothing for {seconds:g} seconds; the proxy's --timeout sets this limit"
        raise ApiError(504, message, None, "upstream_timeout") from error
    except httpx.HTTPError as error:
        message = f"the upstream server does not answer ({type(error).__name__})"
        raise ApiError(502, message, None, "upstream_unreachable") from error


async def read_body(response: httpx.Response) -> bytes:
    """Return the body of a response. Raise an ``ApiError`` above ``limits.ANSWER_BYTES`` bytes."""
    content = bytearray()
    with upstream_errors():
        async for part in response.aiter_bytes():
            content += part
            _check_size(content, limits.ANSWER_BYTES)
    return bytes(content)


async def body_lines(response: httpx.Response) -> AsyncGenerator[bytes, None]:
    """Yield the lines of a response body, each with the newline at its end."""
    rest = b""
    with upstream_errors():
        async for part in response.aiter_bytes():  # aiter_lines would also split at U+2028, which JSON may contain
            *lines, rest = (rest + part).split(b"\n")
            _check_size(rest, MAX_LINE_BYTES)
            for line in lines:
                yield line + b"\n"
    yield rest


def _check_size(content: bytes | bytearray, limit: int) -> None:
    if len(content) > limit:
        message = f"an answer or event of the upstream server exceeds {limit:,} bytes; request a shorter answer"
        raise ApiError(502, message, None, "upstream_too_large")


class WeightlessLM(DebiasedLM):
    """A model without weights, which prepares requests for a server with the context window ``window``."""

    def __init__(self, name: str, method: Method, window: int, strip_numbering: bool) -> None:
        check_model_path(name)
        tokenizer = load_tokenizer(name, {})
        super().__init__(_load_without_weights(name), tokenizer, method, strip_numbering=strip_numbering, name=name)
        self._window = min(window, super().window)

    @property
    def window(self) -> int:
        return self._window


def _load_without_weights(name: str) -> PreTrainedModel:
    path = local_path(name)
    try:
        config = AutoConfig.from_pretrained(path)
        with torch.device("meta"):
            model: PreTrainedModel = AutoModelForCausalLM.from_config(config)
    except Exception as error:  # damaged files raise errors of any class
        raise ModelFileError(f"the configuration of {name!r} cannot be loaded: {first_line(error)}") from error
    with suppress(OSError):  # the file is optional; transformers has derived a generation config from ``config``
        model.generation_config = GenerationConfig.from_pretrained(path)
    return model
