"""``RemoteLM``: a model behind a server, for the integrations in the place of ``DebiasedLM``."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from typing import Any

from ragbias import methods
from ragbias.adapters.remote.answer import RemoteGeneration, StreamedAnswer, generation
from ragbias.adapters.remote.connection import Connection
from ragbias.adapters.remote.request import Conversation, Json, RemoteRequest, body_of
from ragbias.adapters.untokenised import untokenised
from ragbias.boundaries import Boundaries
from ragbias.errors import ServerError
from ragbias.generation.report import Generation
from ragbias.generation.streaming import Stream
from ragbias.methods import DEFAULT_METHOD, Method

BESIDE_MODEL = ("lm", "model", "document_cache")  # fields of an integration that a server leaves no room for
SHOWN_MESSAGE = "<|im_start|>{role}\n{content}<|im_end|>\n"  # what parts messages where documents are looked for


class RemoteTokenizer:
    """The tokenizer of a model behind a server."""

    def __init__(self, connection: Connection, model: str, chat_template: str | None) -> None:
        self.chat_template = chat_template
        self._connection, self._model = connection, model

    def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
        """``{"input_ids": [...]}``."""
        body = {"model": self._model, "prompt": text, "add_special_tokens": add_special_tokens}
        return {"input_ids": list(self._connection.post("/tokenize", body)["tokens"])}


class RemoteLM:
    """A model behind a server of ``ragbias serve``.

    Documents are found here, and sent as ``documents``; the method runs there. What is asked for together is sent at
    the same time, so that the server answers it in padded batches.

    Args:
        base_url: of the server, with or without ``/v1``.
        name: of the model, as the server knows it; ``None`` for the only one there.
        method: default method.
        api_key: of the server; empty if it asks for none.
        timeout: seconds without a byte, after which a request has failed; ``None``: no end.
        max_retries: how often a request is tried again that did not get through, or came at a bad time.

    Raises:
        ServerError: nothing answers there, or it refuses, or has no such model.
    """

    backend = "auto"
    strip_numbering = False
    cache = None  # the server has its own

    def __init__(
        self,
        base_url: str,
        name: str | None = None,
        method: str | Method = DEFAULT_METHOD,
        api_key: str = "",
        timeout: float | None = 600.0,
        max_retries: int = 2,
    ) -> None:
        self._connection = Connection(base_url, api_key, timeout, max_retries)
        card = self._connection.model(name)
        if not isinstance(card.get("ragbias"), dict):
            raise ServerError(f"{self.base_url} is no server of `ragbias serve`; use your framework's own client")
        self.name = str(card["id"])
        self.window = int(card["max_model_len"])
        self._shows_tools = bool(card["ragbias"]["tools"])
        template = "(the server's)" if card["ragbias"]["chat"] else None
        self.tokenizer = RemoteTokenizer(self._connection, self.name, template)
        self.method = methods.get(method, self.name)
        self.model = self

    @property
    def base_url(self) -> str:
        """The address, without a path."""
        return self._connection.base_url

    def chat_text(self, messages: Sequence[Json], tools: Sequence[Any] | None = None) -> Conversation:
        """The conversation as a text in which documents are found; the server's chat template makes the prompt."""
        shown = "".join(SHOWN_MESSAGE.format(role=each["role"], content=each["content"] or "") for each in messages)
        if tools and self._shows_tools:
            shown = SHOWN_MESSAGE.format(role="system", content=json.dumps(list(tools), ensure_ascii=False)) + shown
        found = Conversation(shown)
        found.messages, found.tools = messages, tools or ()
        return found

    def prepare(
        self,
        prompt: str,
        documents: None = None,
        boundaries: Boundaries | None = None,
        method: str | Method | None = None,
        cancelled: threading.Event | None = None,
    ) -> RemoteRequest:
        """What is asked for; its report says what was found here, and what the server will be asked to run.

        The tokens are bytes of the text, as the server's are not known here.
        """
        wanted = self.method if method is None else methods.get(method, self.name)
        assert boundaries is not None
        own = untokenised(prompt, boundaries, wanted)
        return RemoteRequest(own.tokens, own.method, own.report, own.origin, prompt=prompt)

    def batch(
        self,
        prompts: Sequence[RemoteRequest],
        *,
        cancelled: threading.Event | None = None,
        **settings: Any,
    ) -> list[RemoteGeneration]:
        """An answer for each request; the settings are those of ``DebiasedLM.batch``.

        Raises:
            CancelledError: ``cancelled`` was set meanwhile.
            ServerError: the server did not answer.
            ArgumentError: an argument cannot be had from a server.
            RagBiasError: what the server refused, as a local model refuses it.
        """
        bodies = [body_of(request, self.name, settings) for request in prompts]
        paths = [request.path for request in prompts]
        answers = self._connection.post_all(paths, bodies, cancelled)
        return [generation(request, answer) for request, answer in zip(prompts, answers, strict=True)]

    def stream(self, prompt: RemoteRequest, **settings: Any) -> Stream:
        """As ``batch``, piece by piece; the errors of the server come with the first piece."""
        body = {**body_of(prompt, self.name, settings), "stream": True, "stream_options": {"include_usage": True}}

        def job(emit: Callable[[str], None], cancelled: threading.Event) -> Generation:
            answer = StreamedAnswer(emit)
            self._connection.events(prompt.path, body, answer.add, cancelled)
            return answer.generation(prompt, cancelled.is_set())

        return Stream(job)
