"""Whether documents may be computed once: how that changes answers to the user's questions, and what it saves.

With a method whose documents are reusable, answers are bit-identical with and without the cache. Accuracy suffers
because documents cannot attend to each other. So the method is compared with one that does not reuse: the pipeline's
own method, or the plain model if that method has reusable documents or is a vote.
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

LESS_PROBABLE = 0.10  # nats that a known answer may lose: a tenth of its probability


@dataclass(frozen=True)
class ReuseGate:
    """Compares a method that reuses documents with one that does not, by the token after the prompt.

    Attributes:
        questions: those on which the method ran; the others do not count.
        agreement: share of them where the most probable token is the same.
        reversed_agreement: the same for the method without reuse, with its documents reversed.
        margin: ``agreement - reversed_agreement``, paired by question.
        known: change of a known answer's log-probability in nats; None: too few are known.
        cacheable: share of the prompts' tokens that need no computation once the documents are cached.
        pairs: whether all prompts have two documents, as a judge's have.
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
        """``"for"``, ``"against"`` or ``"too few examples"``.

        By the known answers, if there are enough: for, unless they may lose ``LESS_PROBABLE`` nats; against, if they
        are clearly less probable. Else by the margin: for, unless the method may agree less often than reversing the
        documents does by ``WORTH``; against, if it clearly agrees less often.
        """
        found, bearable = (self.margin, WORTH) if self.known is None else (self.known, LESS_PROBABLE)
        if found.low > -bearable:
            return "for"
        return "against" if found.high < 0 else "too few examples"

    def as_dict(self) -> dict[str, Any]:
        """As plain data; intervals are ``[estimate, low, high]``."""
        plain = {name: each.as_list() if isinstance(each, Interval) else each for name, each in vars(self).items()}
        return {**plain, "verdict": self.verdict}


def measure(
    cases: Sequence[AuditCase], method: Method, progress: Callable[[int], None] = lambda done: None
) -> ReuseGate:
    """Each question's next token without reuse, the same with its documents reversed, and with the method."""
    agrees: list[float] = []
    reversed_agrees: list[float] = []
    known: dict[str, float] = {}
    total = cacheable = 0
    for case in cases:
        request = case.request(None, method)
        if request.report.method_ran == method.name:
            base, base_known = _next_token(case, case.request(None, _without(case)))
            turned, _ = _next_token(case, case.request(range(case.document_count)[::-1], _without(case)))
            own, own_known = _next_token(case, request)
            agrees.append(float(own.argmax() == base.argmax()))
            reversed_agrees.append(float(turned.argmax() == base.argmax()))
            if own_known is not None and base_known is not None:
                known[str(len(agrees))] = own_known - base_known
            for prompt in request.candidates():
                total += len(prompt.tokens.ids)
                cacheable += len(prompt.tokens.ids) - len(prompt.tokens.suffix)
        progress(1)
    if len(agrees) < FEWEST:
        raise RunError(f"{method.name} ran on {len(agrees)} questions; measuring reuse needs {FEWEST}")
    return ReuseGate(
        against=_without(cases[0]).name,
        questions=len(agrees),
        agreement=rate(agrees),
        reversed_agreement=rate(reversed_agrees),
        margin=rate([own - turned for own, turned in zip(agrees, reversed_agrees, strict=True)], least=-1),
        known=share(known) if len(known) >= FEWEST else None,
        cacheable=cacheable / total,
        pairs={case.document_count for case in cases} == {2},
    )


def _without(case: AuditCase) -> Method:
    """The requested method, or the plain one if it reuses documents or runs several prompts."""
    own = case.recorded.request.origin.method_requested
    return NoMethod() if own.reusable_documents or own.runs_several else own


def _next_token(case: AuditCase, request: Request) -> tuple[Tensor, float | None]:
    """Log-probabilities ``[V]`` of the next token, and the highest log-probability of a known answer."""
    lm = case.recorded.lm
    before = request.origin.parts.suffix
    targets = [continuation_ids(lm.tokenizer, before, text) for text in case.question.answers]
    longest = max(map(len, targets), default=1)
    check_length(Request.longest_prompt(request.method, request.tokens), lm.window, longest)
    found = teacher_forced(lm.model, request, targets, lm.backend, lm.cache)
    return found.next_token, max(found.logprobs, default=None)
