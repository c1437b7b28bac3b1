"""The prompts of an audit: each question in other orders of its documents, repeated, and with other methods."""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ragbias.evaluation.data.questions import Question
from ragbias.evaluation.prompts import stock_prompt
from ragbias.generation.recording import Recorded
from ragbias.generation.report import Generation
from ragbias.generation.request import Request
from ragbias.lm import DebiasedLM
from ragbias.methods import Method
from ragbias.prompt import Prompt

MAX_NEW_TOKENS = 64  # of an answer to the stock prompt, which asks for a concise one
BATCH_SIZE = 8


@dataclass(frozen=True)
class AuditCase:
    """A question, and the prompt that its pipeline sent to the model."""

    question: Question
    recorded: Recorded

    @property
    def document_count(self) -> int:
        return len(self.recorded.request.origin.tokens.documents)

    @property
    def documents(self) -> list[str]:
        """The documents' texts as the model reads them, in retrieved order."""
        tokenizer = self.recorded.lm.tokenizer
        return [str(tokenizer.decode(ids)) for ids in self.recorded.request.origin.tokens.documents]

    @property
    def prompt(self) -> Prompt:
        """The prompt that the pipeline made."""
        tokens, decode = self.recorded.request.origin.tokens, self.recorded.lm.tokenizer.decode
        return Prompt(str(decode(tokens.prefix)), self.documents, str(decode(tokens.suffix)))

    def request(self, order: Sequence[int] | None = None, method: Method | None = None) -> Request:
        lm: DebiasedLM = self.recorded.lm
        return lm.again(self.recorded.request, order, method)


def from_questions(lm: DebiasedLM, questions: Sequence[Question]) -> list[AuditCase]:
    """Questions with their documents, in the stock prompt and without a method.

    Raises:
        DocumentNotFoundError: the chat template changes a document.
        PromptTooLongError: a prompt does not fit the model's window.
    """
    settings = {"max_new_tokens": MAX_NEW_TOKENS}
    cases = []
    for each in questions:
        text = stock_prompt(lm, each.documents, each.question)
        request = lm.prepare(text, documents=each.documents, method="none")
        cases.append(AuditCase(each, Recorded(lm, request, settings)))
    return cases


def audit_orders(documents: int, count: int, seed: int) -> list[list[int]]:
    """Different orders: as retrieved, reversed, then shuffles; fewer than ``count`` if there are no more."""
    rng = random.Random(f"audit {seed}")
    orders = [list(range(documents)), list(range(documents))[::-1]]
    while len(orders) < min(count, math.factorial(documents)):
        shuffled = rng.sample(range(documents), documents)
        if shuffled not in orders:
            orders.append(shuffled)
    return orders[:count]


def answers(
    cases: Sequence[AuditCase],
    requests: Sequence[Request],
    attempt: int,
    batch_size: int = BATCH_SIZE,
    progress: Callable[[int], None] = lambda answered: None,
) -> list[Generation]:
    """One answer for each case's request, with its pipeline's settings.

    Args:
        attempt: added to the seed of sampling.
        progress: called with the number of answers given.
    """
    groups: dict[tuple[int, str], list[int]] = defaultdict(list)
    for index, case in enumerate(cases):
        groups[id(case.recorded.lm), repr(sorted(case.recorded.settings.items()))].append(index)
    found: dict[int, Generation] = {}
    for indices in groups.values():
        recorded = cases[indices[0]].recorded
        settings = dict(recorded.settings)
        if settings.get("seed") is not None:
            settings["seed"] += attempt
        for begin in range(0, len(indices), batch_size):
            part = indices[begin : begin + batch_size]
            outputs = recorded.lm.batch([requests[index] for index in part], batch_size=batch_size, **settings)
            found.update(zip(part, outputs, strict=True))
            progress(len(part))
    return [found[index] for index in range(len(cases))]


def answers_again(
    cases: Sequence[AuditCase],
    requests: Sequence[Request],
    attempt: int,
    progress: Callable[[int], None] = lambda answered: None,
) -> list[Generation]:
    """As ``answers``, in batches of other prompts and of another size."""
    order = random.Random(f"batches {attempt}").sample(range(len(cases)), len(cases))
    shuffled_cases, shuffled_requests = [cases[index] for index in order], [requests[index] for index in order]
    shuffled = answers(shuffled_cases, shuffled_requests, attempt, max(1, BATCH_SIZE - attempt), progress)
    found = dict(zip(order, shuffled, strict=True))
    return [found[index] for index in range(len(cases))]
