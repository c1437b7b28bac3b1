"""Audit of a model behind an OpenAI-compatible server, with documents arranged as text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ragbias.adapters.connection import Connection
from ragbias.adapters.remote import arranged, of_origin, untokenised
from ragbias.boundaries import locate
from ragbias.errors import DataError, ServerError
from ragbias.evaluation.audit.cases import MAX_NEW_TOKENS, AuditCase
from ragbias.evaluation.data.questions import Question
from ragbias.evaluation.prompts import SYSTEM
from ragbias.generation.recording import Recorded
from ragbias.generation.report import Generation, Usage
from ragbias.generation.request import Request
from ragbias.methods import Method, NoMethod

BETWEEN = "<|im_end|>\n<|im_start|>user\n"  # the system message and the question, while documents are looked for
SECONDS, TRIES = 600.0, 4  # of one request


class _Bytes:
    """Takes the place of the unknown tokenizer."""

    def decode(self, ids: Sequence[int]) -> str:
        """The text of its bytes."""
        return bytes(ids).decode("utf-8", "replace")


class UpstreamLM:
    """A model behind OpenAI's chat completions: greedy decoding, LangChain's stock prompt.

    Args:
        url: of the server, with or without ``/v1``.
        model: its name there; ``None``: the only one.
        key: of the server; empty: none.

    Raises:
        ServerError: the server does not answer, or has no such model.
    """

    tokenizer = _Bytes()

    def __init__(self, url: str, model: str | None, key: str = "") -> None:
        self._connection = Connection(url, key, SECONDS, TRIES)
        self.name = model or str(self._connection.model(None)["id"])

    def request(self, question: Question) -> Request:
        """A question with its documents.

        Raises:
            DataError: the documents are not found.
        """
        text = SYSTEM + "\n\n".join(question.documents) + BETWEEN + question.question
        found = untokenised(text, locate(text, documents=question.documents), NoMethod())
        if found.report.n_found < len(question.documents) or found.origin.reason:
            reason = found.origin.reason or found.report.reason
            raise DataError(f"question {question.question!r:.60}: its documents are not found: {reason}")
        return found

    def again(self, request: Request, order: Sequence[int] | None, method: Method | None) -> Request:
        """The same request with its documents in another order, or for another method."""
        origin = request.origin if order is None else request.origin.reordered(order)
        return arranged(of_origin(replace(origin, wanted=method or origin.wanted)))

    def batch(self, requests: Sequence[Request], batch_size: int, max_new_tokens: int) -> list[Generation]:
        """An answer for each request, all sent at the same time."""
        bodies = [self._body(request, max_new_tokens) for request in requests]
        answers = self._connection.post_all(["/v1/chat/completions"] * len(bodies), bodies, None)
        return [_generation(request, answer) for request, answer in zip(requests, answers, strict=True)]

    def _body(self, request: Request, max_new_tokens: int) -> dict[str, Any]:
        system, _, question = request.origin.flat.text.rpartition(BETWEEN)
        talk = [{"role": "system", "content": system}, {"role": "user", "content": question}]
        return {"model": self.name, "messages": talk, "max_tokens": max_new_tokens, "temperature": 0}


def from_upstream(lm: UpstreamLM, questions: Sequence[Question]) -> list[AuditCase]:
    """Questions with their documents, for a served model."""
    settings = {"max_new_tokens": MAX_NEW_TOKENS}
    return [AuditCase(each, Recorded(lm, lm.request(each), settings)) for each in questions]


def _generation(request: Request, body: dict[str, Any]) -> Generation:
    try:
        choice, counts = body["choices"][0], body.get("usage") or {}
        text = str(choice["message"]["content"] or "")
    except (KeyError, IndexError, TypeError) as error:
        raise ServerError(
            f"the answer is none of OpenAI's chat completions ({type(error).__name__}: {error})"
        ) from error
    usage = Usage(int(counts.get("prompt_tokens") or 0), int(counts.get("completion_tokens") or 0))
    return Generation(text, [], usage, request.report, "length" if choice.get("finish_reason") == "length" else "stop")
