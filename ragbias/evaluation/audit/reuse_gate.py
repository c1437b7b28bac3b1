"""Measure whether documents can be computed once and reused: the effect on answers, and the tokens saved.

A method with reusable documents gives bit-identical answers with and without the cache. What can suffer is accuracy,
because documents cannot attend to each other. So the method is compared with a method without reuse: the pipeline's own
method, or the plain model if the pipeline's method has reusable documents or runs several prompts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ragbias.errors import RunError
from ragbias.evaluation.audit.cases import AuditCase
from ragbias.evaluation.audit.outcomes import WORTH, rate
from ragbias.evaluation.measures.bootstrap import FEWEST, Interval, share
from ragbias.generation.request import Request, check_length
from ragbias.generation.scoring import continuation_ids, teacher_forced
from ragbias.methods import Method, NoMethod

LESS_PROBABLE = 0.10  # nats that a known answer may lose, about a tenth of its probability


@dataclass(frozen=True)
class ReuseGate:
    """Comparison of a method that reuses documents with a method that does not, by the token after the prompt.

    Attributes:
        against: name of the method without reuse.
        questions: number of questions on which the method with reuse ran. Only these count.
        agreement: share of questions for which both methods have the same most probable token.
        reversed_agreement: share of questions for which the method without reuse has the same most probable token with
            its documents in order and reversed.
        margin: ``agreement - reversed_agreement``, paired by question.
        known: change of a known answer's log-probability in nats; None: too few questions have a known answer.
        cacheable: share of prompt tokens that need no computation once the documents are cached.
        pairs: whether all prompts have two documents, as for a judge.
    """

    against: str
    questions: int
    agreement: Interval
    reversed_agreement: Interval
    margin: Interval
    known: Interval | None
    cacheable: float
    pairs: bool

    @property
    def verdict(self) -> str:
        """The verdict on reuse: ``"for"``, ``"against"`` or ``"too few examples"``.

        It depends on ``known`` if enough answers are known, else on ``margin``. ``"for"`` means that the interval rules
        out a loss of ``LESS_PROBABLE`` or ``WORTH``. ``"against"`` means that the interval lies below 0.
        """
        change, tolerated = (self.margin, WORTH) if self.known is None else (self.known, LESS_PROBABLE)
        if change.low > -tolerated:
            return "for"
        return "against" if change.high < 0 else "too few examples"

    def as_dict(self) -> dict[str, Any]:
        """Return the fields and the verdict as plain data. Intervals are ``[estimate, low, high]``."""
        plain = {name: value.as_list() if isinstance(value, Interval) else value for name, value in vars(self).items()}
        return {**plain, "verdict": self.verdict}


def measure(
    cases: Sequence[AuditCase], method: Method, progress: Callable[[int], None] = lambda done: None
) -> ReuseGate:
    """Compare each question's next token with reuse, without reuse, and without reuse in reversed order."""
    agrees: list[float] = []
    reversed_agrees: list[float] = []
    known: dict[str, float] = {}
    total = cacheable = 0
    for case in cases:
        request = case.request(None, method)
        if request.report.method_ran == method.name:
            base, base_known = _next_token(case, case.request(None, _without_reuse(case)))
            backwards = case.request(range(case.document_count)[::-1], _without_reuse(case))
            reused, reused_known = _next_token(case, request)
            agrees.append(float(reused.argmax() == base.argmax()))
            reversed_agrees.append(float(_next_token(case, backwards)[0].argmax() == base.argmax()))
            if reused_known is not None and base_known is not None:
                known[str(len(agrees))] = reused_known - base_known
            for prompt in request.candidates():
                total += len(prompt.tokens.ids)
                cacheable += len(prompt.tokens.ids) - len(prompt.tokens.suffix)
        progress(1)
    if len(agrees) < FEWEST:
        raise RunError(f"{method.name} ran on {len(agrees)} questions; measuring reuse needs {FEWEST}")
    return ReuseGate(
        against=_without_reuse(cases[0]).name,
        questions=len(agrees),
        agreement=rate(agrees),
        reversed_agreement=rate(reversed_agrees),
        margin=rate([agree - reverse for agree, reverse in zip(agrees, reversed_agrees, strict=True)], least=-1),
        known=share(known) if len(known) >= FEWEST else None,
        cacheable=cacheable / total,
        pairs={case.document_count for case in cases} == {2},
    )


def _without_reuse(case: AuditCase) -> Method:
    """Return the pipeline's method, or the plain one if it reuses documents or runs several prompts."""
    method = case.recorded.request.origin.method_requested
    return NoMethod() if method.reusable_documents or method.runs_several else method


def _next_token(case: AuditCase, request: Request) -> tuple[Tensor, float | None]:
    """Return the next token's log-probabilities ``[V]`` and the highest log-probability of a known answer."""
    lm = case.recorded.lm
    before = request.origin.parts.suffix
    targets = [continuation_ids(lm.tokenizer, before, text) for text in case.question.answers]
    longest = max(map(len, targets), default=1)
    check_length(Request.longest_prompt(request.method, request.tokens), lm.window, longest)
    scores = teacher_forced(lm.model, request, targets, lm.backend, lm.cache)
    return scores.next_token, max(scores.logprobs, default=None)
