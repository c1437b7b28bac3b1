"""The rule that makes recommendations of evidence.

A method's *margin* in a case is the low end of the 95% interval of its mean minus the plain model's mean, in units of
the loss that is borne (``BORNE``). Above 0 the method is better than the plain model, from -1 up it is no worse than
what is borne. Where one model, task and number of documents was measured by log-probability and by accuracy, the surer
one counts, and neither may show a loss.

A method qualifies for a task if in every case of the task, on every model,

- no interval lies below 0: none shows a loss, and
- it is better than the plain model; or, if it is invariant and does more than fix the order, no worse.

Of those that qualify, invariant ones go first, then those that are better in every case, then the one whose lowest
margin is highest. Where none qualifies, the recommendation is the plain model.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from ragbias.evaluation.advice.evidence import Case
from ragbias.evaluation.names import ACCURACY, JUDGES, LOGPROB, REFERENCE

BORNE = {LOGPROB: 0.1, ACCURACY: 0.02}  # nats, and share of right answers
LONG = 4_000  # tokens of a prompt from which on it is a long context, whatever the task
LONG_CONTEXT = "long context"
KINDS = {  # tasks by what they ask for; those of other names, as lm-eval's, are evidence for none of them
    "one fact in one passage": ("mdqa", "kv-retrieval", "tiny"),
    "several passages": ("musique", "longbench"),
    "judge": JUDGES,
    LONG_CONTEXT: (),
}
ENOUGH = 100  # questions
NO_EVIDENCE = "no evidence"
STRENGTHS = {4: "good", 2: "fair", 1: "weak", 0: NO_EVIDENCE}  # by the least number of models


@dataclass(frozen=True)
class Advice:
    """What is recommended for a kind of task.

    Attributes:
        method: its name with parameters; ``"none"``: the plain model.
        others: the methods that qualify as well, in order.
        cases: the evidence; empty: there is none.
        strength: ``"no evidence"``, ``"weak"`` (one model, or fewer than 100 questions in a case), ``"fair"`` (two
            models or three), or ``"good"``.
    """

    kind: str
    method: str
    others: tuple[str, ...]
    cases: tuple[Case, ...]
    strength: str

    @property
    def models(self) -> list[str]:
        return sorted({case.model for case in self.cases})


def advised(evidence: Iterable[Case]) -> list[Advice]:
    """The advice for each kind of task."""
    known = list(evidence)
    return [advice(kind, [case for case in known if is_of(case, kind)]) for kind in KINDS]


def is_of(case: Case, kind: str) -> bool:
    """Whether a case is evidence for a kind of task."""
    return case.tokens >= LONG if kind == LONG_CONTEXT else case.task in KINDS[kind]


def advice(kind: str, cases: Sequence[Case]) -> Advice:
    """What is recommended for a kind of task by all its evidence, or by that of some models."""
    candidates = (_Candidate.of(label, cases) for label in _labels(cases))
    qualified = sorted((each for each in candidates if each), key=_Candidate.rank)
    first, *others = [each.label for each in qualified] or [REFERENCE]
    return Advice(kind, first, tuple(others), tuple(cases), strength(cases))


def strength(cases: Sequence[Case]) -> str:
    """How far evidence carries, by its numbers of models and questions."""
    models = len({case.model for case in cases})
    if any(case.questions < ENOUGH for case in cases):
        models = 1
    return next(word for least, word in STRENGTHS.items() if models >= least)


def _labels(cases: Sequence[Case]) -> list[str]:
    return list(dict.fromkeys(label for case in cases for label in case.effects))


@dataclass(frozen=True)
class _Candidate:
    """A method that qualifies, and what it is ranked by."""

    label: str
    invariant: bool
    margin: float

    def rank(self) -> tuple[bool, bool, float, str]:
        """The lowest is the best."""
        return not self.invariant, self.margin <= 0, -self.margin, self.label

    @classmethod
    def of(cls, label: str, cases: Sequence[Case]) -> _Candidate | None:
        """None where the method does not qualify."""
        lowest = min(_margin(label, list(same)) for _, same in groupby(sorted(cases, key=_setting), key=_setting))
        effect = next(case.effects[label] for case in cases if label in case.effects)
        no_worse_will_do = effect.invariant and effect.acts_on != "order"
        if effect.acts_on == "nothing" or not (lowest > 0 or (no_worse_will_do and lowest >= -1)):
            return None
        return cls(label, effect.invariant, lowest)


def _setting(case: Case) -> tuple[str, str, int]:
    return case.model, case.task, case.documents


def _margin(label: str, cases: Sequence[Case]) -> float:
    """In cases of one model, task and number of documents; minus infinity: not measured, or a loss was shown."""
    effects = [(case.effects[label].mean, BORNE[case.measure]) for case in cases if label in case.effects]
    if not effects or any(high < 0 for (_, _, high), _ in effects):
        return -math.inf
    return max(low / borne for (_, low, _), borne in effects)
