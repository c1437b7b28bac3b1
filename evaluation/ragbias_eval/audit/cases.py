"""Cases of an audit: questions with their prompts, for a local model or an OpenAI-compatible server."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from ragbias.boundaries import locate
from ragbias.data.questions import Question
from ragbias.data.retrieval import SYSTEM_PROMPT, stock_prompt
from ragbias.errors import DataError, ServerError
from ragbias.frameworks.connection import Connection
from ragbias.frameworks.remote import END
from ragbias.generation import Generation, GenerationSettings, Request, Usage
from ragbias.generation.preparing import build_request, split_located
from ragbias.generation.recording import RecordedRequest
from ragbias.generation.text_orders import order_text
from ragbias.lm import DebiasedLM
from ragbias.methods import Method, NoMethod
from ragbias.prompt import Prompt
from ragbias_eval.tasks.task import shuffled_orders

# the blank line before the first document makes the tokens of ``segmented`` and ``none`` equal
INSTRUCTION = SYSTEM_PROMPT.rstrip() + "\n\n"
MAX_NEW_TOKENS = 64  # the stock prompt requests a concise answer
TIMEOUT_SECONDS, ATTEMPTS = 600.0, 4  # timeout and attempts of a request to a server


@dataclass(frozen=True)
class AuditCase:
    """A question, with the recorded request to the model and its generation settings."""

    question: Question
    recorded: RecordedRequest

    @property
    def greedy(self) -> bool:
        return not self.recorded.settings.temperature

    @property
    def exact(self) -> bool:
        """Whether equal requests always get equal answers. True only for greedy float32 decoding on a local CPU."""
        model = getattr(self.recorded.lm, "model", None)
        return self.greedy and model is not None and (model.dtype, model.device.type) == (torch.float32, "cpu")

    def count_repetitions(self, orders: int) -> int:
        """Return how often the retrieved order runs again: once if greedy, else ``orders - 1`` times."""
        return 1 if self.greedy else orders - 1

    @property
    def prompt(self) -> Prompt:
        return self.recorded.request.prompt.parts

    def request(self, order: Sequence[int] | None = None, method: Method | None = None) -> Request:
        """Return the recorded request, optionally with another document order or another method.

        Document ``i`` of the new order is document ``order[i]`` of the recorded request.
        """
        lm, recorded = self.recorded.lm, self.recorded.request
        prompt = recorded.prompt if order is None else recorded.prompt.reordered(order)
        method = method or recorded.method_requested
        if isinstance(lm, UpstreamLM):
            return order_text(prompt, method)
        return build_request(lm.loaded, prompt, method)


def from_questions(lm: DebiasedLM | UpstreamLM, questions: Sequence[Question]) -> list[AuditCase]:
    """Build cases from questions and their documents. Cases have the stock prompt and the method ``none``."""
    settings = GenerationSettings(max_new_tokens=MAX_NEW_TOKENS)
    cases = []
    for question in questions:
        if isinstance(lm, UpstreamLM):
            request = lm.request(question)
        else:
            text = stock_prompt(lm, question.documents, question.question, INSTRUCTION)
            request = lm.prepare(text, documents=question.documents, method="none")
        cases.append(AuditCase(question, RecordedRequest(lm, request, settings)))
    return cases


def audit_orders(documents: int, count: int, seed: int) -> list[list[int]]:
    """Return up to ``count`` different orders of document indices: as retrieved, reversed, then shuffles."""
    retrieved = list(range(documents))
    most = min(count, math.factorial(documents))
    return shuffled_orders([retrieved, retrieved[::-1]], most, f"audit {seed}")[:count]


def generate_answers(case: AuditCase, requests: Sequence[Request], first_attempt: int = 0) -> list[Generation]:
    """Generate one answer per request with the settings of the case.

    If answers are sampled with a seed, requests run one by one. The seed of request ``i`` is
    ``seed + first_attempt + i``.
    """
    lm, settings = case.recorded.lm, case.recorded.settings
    if case.greedy or settings.seed is None:
        generations: list[Generation] = lm.answer(requests, settings)
        return generations
    return [
        lm.answer([request], replace(settings, seed=settings.seed + attempt))[0]
        for attempt, request in enumerate(requests, first_attempt)
    ]


class UpstreamLM:
    """A model behind OpenAI's chat API, decoded greedily. ``model=None`` selects the server's only model."""

    def __init__(self, url: str, model: str | None, key: str = "") -> None:
        self._connection = Connection(url, key, TIMEOUT_SECONDS, ATTEMPTS)
        self.name = model or str(self._connection.model(None)["id"])

    def request(self, question: Question) -> Request:
        """Build the request for a question. Raise ``DataError`` if its documents cannot be located in the prompt."""
        text = INSTRUCTION + "\n\n".join(question.documents) + END + question.question
        request = order_text(split_located(text, locate(text, documents=question.documents)), NoMethod())
        if request.report.n_found < len(question.documents) or request.prompt.why_unsplit:
            reason = request.prompt.why_unsplit or request.report.reason
            raise DataError(f"question {question.question!r:.60}: its documents were not found in the prompt: {reason}")
        return request

    def answer(self, requests: Sequence[Request], settings: GenerationSettings) -> list[Generation]:
        """Send all requests concurrently. Return one answer per request."""
        bodies = []
        for request in requests:
            system, _, question = request.prompt.flat.text.rpartition(END)
            messages = [{"role": "system", "content": system}, {"role": "user", "content": question}]
            limit = {"max_tokens": settings.max_new_tokens, "temperature": 0}
            bodies.append({"model": self.name, "messages": messages, **limit})
        answers = self._connection.post_all(["/v1/chat/completions"] * len(bodies), bodies, None)
        return [_generation(request, answer) for request, answer in zip(requests, answers, strict=True)]


def _generation(request: Request, body: dict[str, Any]) -> Generation:
    try:
        choice, counts = body["choices"][0], body.get("usage") or {}
        text = str(choice["message"]["content"] or "")
    except (KeyError, IndexError, TypeError) as error:
        raise ServerError(f"the answer is not an OpenAI chat completion ({type(error).__name__}: {error})") from error
    usage = Usage(int(counts.get("prompt_tokens") or 0), int(counts.get("completion_tokens") or 0))
    return Generation(text, [], usage, request.report, "length" if choice.get("finish_reason") == "length" else "stop")
