"""Distributions of the plain model (the teacher) over the tokens of an answer, averaged over document orders."""

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

TOP = 64  # number of tokens that are stored; all others count as one token
ANSWER_TOKENS = 24  # maximum length of an answer by the plain model
FORWARD = 0.6  # share of KL(teacher || student); the rest is KL(student || teacher)


@dataclass(frozen=True)
class Lesson:
    """The target of one training example.

    Attributes:
        target: ``T`` tokens: the answer and, unless it was cut off, the EOS token.
        labelled: whether the answer is known. Only known answers are used as labels.
        tokens: int64 ``[T, 64]``, the teacher's most probable tokens at each position; empty without a teacher.
        logprobs: float32 ``[T, 65]``, log-probabilities of these tokens. The last column is for all other tokens.
    """

    target: list[int]
    labelled: bool
    tokens: Tensor
    logprobs: Tensor

    def divergence(self, logits: Tensor) -> Tensor:
        """Weighted sum of both KL divergences of teacher and student ``logits`` ``[T, V]``, averaged over ``T``."""
        student = logits.float().log_softmax(-1)
        student = _with_rest(student.gather(1, self.tokens.to(student.device)))
        teacher = self.logprobs.to(student.device)
        forward = (teacher.exp() * (teacher - student)).sum(1)
        reverse = (student.exp() * (student - teacher)).sum(1)
        return (FORWARD * forward + (1 - FORWARD) * reverse).mean()

    def cross_entropy(self, logits: Tensor) -> Tensor:
        """Mean negative log-probability of the target tokens, given a student's logits ``[T, V]``."""
        target = torch.tensor(self.target, device=logits.device)
        return torch.nn.functional.cross_entropy(logits.float(), target)


@torch.no_grad()
def lesson_of(lm: DebiasedLM, example: Example, orders: int, distil: bool, seed: int) -> Lesson:
    """Make the lesson of an example. ``distil`` adds the teacher's distributions."""
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
    mean = torch.stack([by_order.log_softmax(-1) for by_order in logits]).logsumexp(0) - math.log(len(logits))
    logprobs, tokens = mean.topk(TOP, dim=1)
    return Lesson(target, bool(example.answer), tokens.cpu(), _with_rest(logprobs).cpu())


def _with_rest(logprobs: Tensor) -> Tensor:
    """Append a column with the log-probability of all other tokens: ``[T, K]`` becomes ``[T, K + 1]``."""
    rest = torch.log1p(-logprobs.exp().sum(1, keepdim=True).clamp(max=1 - 1e-6))
    return torch.cat([logprobs, rest], dim=1)
