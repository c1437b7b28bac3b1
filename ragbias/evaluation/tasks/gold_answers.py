"""The measure ``logprob``: the probability of a case's gold answer, and a method's effect on the next token."""

from __future__ import annotations

import time
from dataclasses import dataclass

from torch import Tensor

from ragbias.evaluation.tasks.task import Answer, Case, Task
from ragbias.generation.request import Request, check_length
from ragbias.generation.scoring import continuation_ids, kl, teacher_forced
from ragbias.lm import DebiasedLM
from ragbias.methods import Method


@dataclass(frozen=True)
class GoldScore:
    """The gold answers of a case under one method.

    Attributes:
        logprob: of the gold answer that is the most probable, in nats, summed over its tokens.
        tokens: of that answer.
        next_token: log-probabilities of the token after the prompt, float32 ``[V]``.
        answer: the prompt's tokens and the report, with no prediction.
        seconds: wall time.
    """

    logprob: float
    tokens: int
    next_token: Tensor
    answer: Answer
    seconds: float

    def divergence(self, plain: GoldScore) -> float:
        """KL(plain || this) of the token after the prompt, in nats."""
        return kl(plain.next_token, self.next_token)

    def agrees(self, plain: GoldScore) -> bool:
        """Whether the most probable token after the prompt is the same."""
        return int(self.next_token.argmax()) == int(plain.next_token.argmax())


def gold_score(lm: DebiasedLM, task: Task, case: Case, method: Method) -> GoldScore:
    """Teacher-force the gold answers of a case: one pass over its prompt, and a short one for each answer.

    Raises:
        PromptTooLongError: an answer does not fit into the window after the prompt.
    """
    begin = time.perf_counter()
    prompt = task.prompt(lm, case)
    request = lm.prepare(prompt, documents=case.documents, method=method)
    before = request.origin.parts.suffix or prompt
    targets = [continuation_ids(lm.tokenizer, before, text) for text in task.continuations(prompt, case)]
    lengths = [len(each.tokens.ids) for each in request.candidates()]
    check_length(Request.longest_prompt(request.method, request.tokens), lm.window, max(map(len, targets)))
    found = teacher_forced(lm.model, request, targets, lm.backend, lm.cache)
    best = max(range(len(targets)), key=found.logprobs.__getitem__)
    return GoldScore(
        logprob=found.logprobs[best],
        tokens=len(targets[best]),
        next_token=found.next_token,
        answer=Answer("", sum(lengths), 0, request.report),
        seconds=time.perf_counter() - begin,
    )
