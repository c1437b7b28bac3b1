"""The plain model as a teacher: its distributions over an answer's tokens, averaged over orders of the documents."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

import torch
from torch import Tensor

from ragbias.adaptation.examples import Example
from ragbias.generation.scoring import continuation_ids, continuation_logits
from ragbias.lm import DebiasedLM
from ragbias.methods import NoMethod

TOP = 64  # tokens of a distribution that are kept; the rest counts as one
ANSWER_TOKENS = 24  # of the plain model's own answer
FORWARD = 0.6  # share of KL(teacher || student); the rest is KL(student || teacher)


@dataclass(frozen=True)
class Lesson:
    """What a reader learns from one example.

    Attributes:
        target: tokens of the answer, and the one that ends it.
        labelled: whether the answer is known, so that the objective with labels maximises its probability.
        tokens: int64 ``[T, 64]``, the teacher's most probable tokens at each position; empty without a teacher.
        logprobs: float32 ``[T, 65]``, their log-probabilities, and that of all other tokens together.
    """

    target: list[int]
    labelled: bool
    tokens: Tensor
    logprobs: Tensor

    def divergence(self, logits: Tensor) -> Tensor:
        """The mean over positions of both divergences between the teacher and a student's logits ``[T, V]``."""
        student = logits.float().log_softmax(-1)
        student = _with_rest(student.gather(1, self.tokens.to(student.device)))
        teacher = self.logprobs.to(student.device)
        forward = (teacher.exp() * (teacher - student)).sum(1)
        reverse = (student.exp() * (student - teacher)).sum(1)
        return (FORWARD * forward + (1 - FORWARD) * reverse).mean()

    def cross_entropy(self, logits: Tensor) -> Tensor:
        """Mean negative log-probability of the known answer's tokens and of the one that ends it."""
        target = torch.tensor(self.target, device=logits.device)
        return torch.nn.functional.cross_entropy(logits.float(), target)


@torch.no_grad()
def lesson_of(lm: DebiasedLM, example: Example, orders: int, distil: bool, seed: int) -> Lesson:
    """The lesson of an example; ``distil`` runs the teacher."""
    rng = random.Random(seed)
    plain = [lm.prepare(example.prompt.reordered(order), method="none") for order in example.plain_orders(orders, rng)]
    end = lm.tokenizer.eos_token_id
    if example.answer:
        answer = continuation_ids(lm.tokenizer, example.prompt.suffix, example.continuation)
        target = [*answer, end]
    else:
        generation = lm.batch(plain[:1], max_new_tokens=ANSWER_TOKENS)[0]
        target = generation.token_ids
        if generation.finish_reason == "stop":
            target = [*target, end]
        target = target or [end]
    if not distil:
        return Lesson(target, bool(example.answer), torch.empty(0, TOP, dtype=torch.int64), torch.empty(0, TOP + 1))
    logits = [continuation_logits(lm.model, request.tokens, NoMethod(), target, lm.backend) for request in plain]
    mean = torch.stack([each.log_softmax(-1) for each in logits]).logsumexp(0) - math.log(len(logits))
    logprobs, tokens = mean.topk(TOP, dim=1)
    return Lesson(target, bool(example.answer), tokens.cpu(), _with_rest(logprobs).cpu())


def _with_rest(logprobs: Tensor) -> Tensor:
    """Append the log-probability of all other tokens together: ``[T, K]`` becomes ``[T, K + 1]``."""
    rest = torch.log1p(-logprobs.exp().sum(1, keepdim=True).clamp(max=1 - 1e-6))
    return torch.cat([logprobs, rest], dim=1)
