"""Whether documents may be computed once: how that changes answers to the user's questions, and what it saves.

With a method whose documents are reusable, answers are bit-identical with and without the cache. Accuracy suffers
because documents cannot attend to each other. So the method is compared with one that does not reuse: the pipeline's
own method, or the plain model if that method has reusable documents or is a vote.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor

from ragbias.errors import RunError
from ragbias.evaluation.audit.cases import AuditCase
from ragbias.evaluation.audit.outcomes import WORTH, rate
from ragbias.evaluation.measures.bootstrap import FEWEST, Interval, share
from ragbias.generation.request import Request, check_length
from ragbias.generation.scoring import continuation_ids, kl, teacher_forced
from ragbias.methods import Method, NoMethod

LESS_PROBABLE = 0.10  # nats that a known answer may lose: a tenth of its probability


@dataclass(frozen=True)
class ReuseGate:
    """A method with reusable documents against one without reuse, by the token after the prompt.

    Attributes:
        questions: those on which the method ran; the others do not count.
        agreement: share of them where the most probable token is the same; ``divergence`` the mean KL in nats.
        reversed_agreement, reversed_divergence: for the method without reuse, with its documents reversed.
        margin: ``agreement - reversed_agreement``, paired by question.
        known: change of a known answer's log-probability in nats; None: too few are known.
        kept: share of the prompts' tokens that need no computation once the documents are cached.
        again: share of these that occur again among the questions.
        pairs: whether all prompts have two documents, as a judge's have.
    """

    against: str
    questions: int
    agreement: Interval
    divergence: Interval
    reversed_agreement: Interval
    reversed_divergence: Interval
    margin: Interval
    known: Interval | None
    kept: float
    again: float
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
    found: list[_Compared] = []
    prompts: list[Request] = []
    for case in cases:
        request = case.request(None, method)
        if request.report.method_ran == method.name:
            found.append(_compared(case, request))
            prompts += request.candidates()
        progress(1)
    if len(found) < FEWEST:
        raise RunError(f"{method.name} ran on {len(found)} questions; measuring reuse needs {FEWEST}")
    kept, again = _kept(prompts)
    known = {str(index): each.known for index, each in enumerate(found) if each.known is not None}
    return ReuseGate(
        against=_without(cases[0]).name,
        questions=len(found),
        agreement=rate([each.agrees for each in found]),
        divergence=_mean([each.divergence for each in found]),
        reversed_agreement=rate([each.reversed_agrees for each in found]),
        reversed_divergence=_mean([each.reversed_divergence for each in found]),
        margin=rate([each.agrees - each.reversed_agrees for each in found], least=-1),
        known=share(known) if len(known) >= FEWEST else None,
        kept=kept,
        again=again,
        pairs={len(each.tokens.documents) for each in (case.recorded.request.origin for case in cases)} == {2},
    )


class _Compared(NamedTuple):
    """One question, see ``ReuseGate``."""

    agrees: float
    divergence: float
    reversed_agrees: float
    reversed_divergence: float
    known: float | None


def _compared(case: AuditCase, request: Request) -> _Compared:
    without = _without(case)
    base, base_known = _asked(case, case.request(None, without))
    turned, _ = _asked(case, case.request(range(case.document_count)[::-1], without))
    own, own_known = _asked(case, request)
    return _Compared(
        agrees=float(own.argmax() == base.argmax()),
        divergence=kl(base, own),
        reversed_agrees=float(turned.argmax() == base.argmax()),
        reversed_divergence=kl(base, turned),
        known=None if own_known is None or base_known is None else own_known - base_known,
    )


def _without(case: AuditCase) -> Method:
    """The method without reuse."""
    own = case.recorded.request.origin.method_requested
    return NoMethod() if own.reusable_documents or own.runs_several else own


def _asked(case: AuditCase, request: Request) -> tuple[Tensor, float | None]:
    """Log-probabilities ``[V]`` of the next token, and that of the known answer that is the most probable."""
    lm = case.recorded.lm
    before = request.origin.parts.suffix
    targets = [continuation_ids(lm.tokenizer, before, text) for text in case.question.answers]
    longest = max(map(len, targets), default=1)
    check_length(Request.longest_prompt(request.method, request.tokens), lm.window, longest)
    found = teacher_forced(lm.model, request, targets, lm.backend, lm.cache)
    return found.next_token, max(found.logprobs, default=None)


def _mean(values: Sequence[float]) -> Interval:
    return share({str(index): value for index, value in enumerate(values)})


def _kept(prompts: Sequence[Request]) -> tuple[float, float]:
    """Shares: of the tokens, those that can be kept; and of these, those that came up before."""
    seen: set[tuple[tuple[int, ...], tuple[int, ...]]] = set()
    kept = again = 0
    for tokens in (each.tokens for each in prompts):
        prefix = tuple(tokens.prefix)
        for part in (((), prefix), *((prefix, tuple(document)) for document in tokens.documents)):
            kept += len(part[1])
            again += len(part[1]) if part in seen else 0
            seen.add(part)
    return kept / sum(len(each.tokens.ids) for each in prompts), again / kept
