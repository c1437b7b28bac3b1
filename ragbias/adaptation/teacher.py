"""The teacher: the plain model's answers, and its probability distributions for the tokens of these answers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ragbias.adaptation.examples import Example
from ragbias.data.questions import best_subspan_em
from ragbias.generation import Generation, Request
from ragbias.generation.scoring import continuation_ids, continuation_logits
from ragbias.lm import DebiasedLM
from ragbias.methods import NoMethod
from ragbias.prompt import Prompt

TOP = 64  # number of most probable tokens that are stored; all other tokens count as one token
ANSWER_TOKENS = 24  # maximum number of tokens of an answer by the plain model
BATCH = 16  # number of answers that are generated together
FORWARD = 0.6  # share of KL(teacher || student); the rest is KL(student || teacher)


@dataclass(frozen=True)
class Lesson:
    """The target tokens of one training example, and the teacher's distributions for them.

    Attributes:
        target: int64 ``[T]``, the answer, followed by the EOS token if the answer is complete.
        labelled: bool ``[]``, whether the answer is known. Only known answers are used as labels.
        tokens: int64 ``[T, 64]``, the teacher's most probable tokens at each position; empty without a teacher.
        logprobs: float32 ``[T, 65]``, log-probabilities of these tokens. The last column is for all other tokens.
    """

    target: Tensor
    labelled: Tensor
    tokens: Tensor
    logprobs: Tensor

    def divergence(self, logits: Tensor) -> Tensor:
        """Return a weighted mean of KL(teacher || student) and KL(student || teacher), averaged over tokens.

        ``logits`` are the student's, ``[T, V]``.
        """
        student = logits.float().log_softmax(-1)
        student = _with_rest(student.gather(1, self.tokens.to(student.device)))
        teacher = self.logprobs.to(student.device)
        forward = (teacher.exp() * (teacher - student)).sum(1)
        reverse = (student.exp() * (student - teacher)).sum(1)
        return (FORWARD * forward + (1 - FORWARD) * reverse).mean()

    def cross_entropy(self, logits: Tensor) -> Tensor:
        """Return the mean negative log-probability of the target tokens for a student's logits ``[T, V]``."""
        return torch.nn.functional.cross_entropy(logits.float(), self.target.to(logits.device))


@torch.no_grad()
def make_lessons(lm: DebiasedLM, examples: Sequence[tuple[Example, Sequence[Prompt]]], distil: bool) -> list[Lesson]:
    """Return a lesson for each example: its target tokens and the teacher's distributions.

    Args:
        examples: each example with the prompts that the teacher reads.
        distil: whether to store the teacher's distributions. If True, the target is the teacher's answer, or the known
            answer if the teacher is wrong. If False, the target is the known answer, or the teacher's answer if none is
            known.
    """
    requests = [[lm.prepare(prompt, method="none") for prompt in prompts] for _, prompts in examples]
    indices = [index for index, (example, _) in enumerate(examples) if distil or not example.answers]
    answers = lm.batch([requests[index][0] for index in indices], max_new_tokens=ANSWER_TOKENS, batch_size=BATCH)
    generated = dict(zip(indices, answers, strict=True))
    lessons = []
    for index, (example, _) in enumerate(examples):
        target = _target(lm, example, generated.get(index))
        tokens, logprobs = torch.empty(0, TOP, dtype=torch.int64), torch.empty(0, TOP + 1)
        if distil:
            tokens, logprobs = _distributions(lm, requests[index], target)
        lessons.append(Lesson(torch.tensor(target), torch.tensor(bool(example.answers)), tokens, logprobs))
    return lessons


def _target(lm: DebiasedLM, example: Example, answer: Generation | None) -> list[int]:
    end = lm.tokenizer.eos_token_id
    if answer is None or (example.answers and not best_subspan_em(answer.text, example.answers)):
        return [*continuation_ids(lm.tokenizer, example.prompt.suffix, example.continuation), end]
    if answer.finish_reason == "stop" or not answer.token_ids:
        return [*answer.token_ids, end]
    return answer.token_ids


def _distributions(lm: DebiasedLM, requests: Sequence[Request], target: list[int]) -> tuple[Tensor, Tensor]:
    """Average probabilities over the teacher's prompts. Return the most probable tokens and their log-probabilities."""
    logits = [continuation_logits(lm.loaded, request.tokens, NoMethod(), target) for request in requests]
    mean = torch.stack([by_prompt.log_softmax(-1) for by_prompt in logits]).logsumexp(0) - math.log(len(logits))
    logprobs, tokens = mean.topk(TOP, dim=1)
    return tokens.cpu().contiguous(), _with_rest(logprobs).cpu()


def _with_rest(logprobs: Tensor) -> Tensor:
    """Append a column with the log-probability of all other tokens: ``[T, K]`` becomes ``[T, K + 1]``."""
    rest = torch.log1p(-logprobs.exp().sum(1, keepdim=True).clamp(max=1 - 1e-6))
    return torch.cat([logprobs, rest], dim=1)
