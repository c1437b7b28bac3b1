"""Which method to use for which task, by the studies on real models.

A method's *margin* in a case is the low end of the 95% interval of its mean minus the plain model's mean, in units of
the tolerated loss (``TOLERATED``): above 0 the method is better than the plain model, from -1 up its loss is tolerated.
Where a model, task and number of documents was measured by log-probability and by accuracy, the greater margin counts,
and neither may show a loss.

A method qualifies for a task if in every case of the task, on every model,

- no interval lies below 0, and
- it is better than the plain model; or its loss is tolerated, if it is invariant and does more than fix the order.

Of those that qualify, invariant ones go first, then those that are better in every case, then the one with the greatest
lowest margin. Where none qualifies, the plain model is recommended.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TypeAlias

from ragbias.evaluation import ACCURACY, JUDGES, LOGPROB, REFERENCE
from ragbias.methods import DEFAULT_METHOD

TOLERATED = {LOGPROB: 0.1, ACCURACY: 0.02}  # nats, and share of right answers
MEASURES = {ACCURACY: "accuracy", LOGPROB: "log-probability"}
LONG = 4_000  # tokens from which on a prompt is evidence for long contexts, whatever the task
LONG_CONTEXT = "long context"
KINDS = {  # tasks by what they ask for; tasks of other names, such as lm-eval's, are no evidence
    "one fact in one passage": ("mdqa", "kv-retrieval", "tiny"),
    "several passages": ("musique", "longbench"),
    "judge": JUDGES,
    LONG_CONTEXT: (),
}
ENOUGH = 100  # questions
NO_EVIDENCE = "no evidence"
STRENGTHS = {4: "good", 2: "fair", 1: "weak", 0: NO_EVIDENCE}  # by the least number of models

Figure: TypeAlias = tuple[float, float, float]  # estimate, and the ends of its 95% interval


@dataclass(frozen=True)
class Effect:
    """One method against the plain model, paired by question.

    Attributes:
        acts_on, invariant: as the method declares.
        mean, worst, best: its mean over positions minus the plain model's mean over positions, its worst and its best
            position; None without positions of a gold document.
        cost: its prefill in units of the plain model's; None: not measured.
    """

    acts_on: str
    invariant: bool
    mean: Figure
    worst: Figure | None
    best: Figure | None
    cost: float | None


@dataclass(frozen=True)
class Case:
    """The effects found for one model, task, number of documents and measure.

    Attributes:
        study: its folder in ``docs/results``.
        measure: ``"accuracy"`` or ``"logprob"`` (of the gold answer, in nats).
        tokens: of a prompt, on average.
        gap: the plain model's best position minus its worst; None without positions.
        effects: by method, with its parameters.
    """

    study: str
    model: str
    task: str
    documents: int
    measure: str
    questions: int
    tokens: float
    gap: Figure | None
    effects: Mapping[str, Effect]


@dataclass(frozen=True)
class Advice:
    """The recommendation for a kind of task.

    Attributes:
        method: its name with parameters; ``"none"``: the plain model.
        others: the other methods that qualify, in order.
        cases: the evidence.
        strength: ``"no evidence"``, ``"weak"`` (one model, or fewer than 100 questions in a case), ``"fair"`` (two
            or three models), or ``"good"``.
    """

    kind: str
    method: str
    others: tuple[str, ...]
    cases: tuple[Case, ...]
    strength: str

    @property
    def measured(self) -> list[Case]:
        """The cases that measured the method; for the plain model, all."""
        return [case for case in self.cases if self.method == REFERENCE or self.method in case.effects]

    @property
    def invariant(self) -> bool:
        return any(effect.invariant for case in self.cases if (effect := case.effects.get(self.method)))

    @property
    def evidence(self) -> str:
        """``weak evidence: 1 model, 120 questions``, the fewest and the most questions of a case."""
        if not self.cases:
            return NO_EVIDENCE
        models, questions = len({case.model for case in self.cases}), [case.questions for case in self.measured]
        fewest, most = min(questions), max(questions)
        asked = f"{most} questions" if fewest == most else f"{fewest} to {most} questions"
        return f"{self.strength} evidence: {models} model{'s' * (models > 1)}, {asked}"


def advised(evidence: Iterable[Case]) -> list[Advice]:
    """The advice for each kind of task."""
    known = list(evidence)
    return [
        advice(kind, [case for case in known if (case.tokens >= LONG if kind == LONG_CONTEXT else case.task in tasks)])
        for kind, tasks in KINDS.items()
    ]


def advice(kind: str, cases: Sequence[Case]) -> Advice:
    """The recommendation for a kind of task by these cases."""
    ranks = {label: rank for label in _labels(cases) if (rank := _rank(label, cases))}
    first, *others = sorted(ranks, key=ranks.__getitem__) or [REFERENCE]
    return Advice(kind, first, tuple(others), tuple(cases), strength(cases))


def strength(cases: Sequence[Case]) -> str:
    """How far evidence carries, by its numbers of models and questions."""
    models = len({case.model for case in cases})
    if any(case.questions < ENOUGH for case in cases):
        models = 1
    return next(word for least, word in STRENGTHS.items() if models >= least)


def _labels(cases: Sequence[Case]) -> list[str]:
    return list(dict.fromkeys(label for case in cases for label in case.effects))


def _rank(label: str, cases: Sequence[Case]) -> tuple[bool, bool, float, str] | None:
    """Sorts the methods that qualify; None: this one does not."""

    def setting(case: Case) -> tuple[str, str, int]:
        return case.model, case.task, case.documents

    lowest = min(_margin(label, list(same)) for _, same in groupby(sorted(cases, key=setting), key=setting))
    effect = next(case.effects[label] for case in cases if label in case.effects)
    least = -1.0 if effect.invariant and effect.acts_on != "order" else math.nextafter(0, 1)
    if effect.acts_on == "nothing" or lowest < least:
        return None
    return not effect.invariant, lowest <= 0, -lowest, label


def _margin(label: str, cases: Sequence[Case]) -> float:
    """In cases of one model, task and number of documents; minus infinity: not measured, or a loss was shown."""
    effects = [(case.effects[label].mean, TOLERATED[case.measure]) for case in cases if label in case.effects]
    if not effects or any(high < 0 for (_, _, high), _ in effects):
        return -math.inf
    return max(low / tolerated for (_, low, _), tolerated in effects)


def heading(each: Advice) -> str:
    """``judge: none (weak evidence: 1 model, 60 questions)``."""
    return f"{each.kind}: {each.method} ({each.evidence})" if each.cases else f"{each.kind}: {NO_EVIDENCE}"


def reasons(each: Advice) -> Iterator[str]:
    """Sentences that justify the advice; ``evidence_tables`` has the figures."""
    if not each.cases:
        yield "Nothing was measured; compare methods on your own questions with `ragbias bench`."
    elif each.method == REFERENCE:
        yield "No method is clearly as good as the plain model."
    else:
        yield "It is order-invariant." if each.invariant else "The answer still depends on the order of the documents."
    if each.others:
        yield f"Also qualified: {', '.join(_with_cost(label, each.cases) for label in each.others)}."
    models = sorted({case.model for case in each.cases})
    for model in models if len(models) > 1 else ():
        alone = advice(each.kind, [case for case in each.cases if case.model == model])
        if alone.method != each.method:
            yield f"On {model} alone: {alone.method}."


def nearest(case: Case) -> str:
    """The method whose mean has the highest low end."""
    return max(case.effects, key=lambda name: case.effects[name].mean[1])


def in_words(figure: Figure, form: str = "+.2f") -> str:
    """``+0.57 (+0.21 to +0.91)``."""
    value, low, high = (format(each + 0.0, form) for each in figure)
    return f"{value} ({low} to {high})"


def _with_cost(label: str, cases: Sequence[Case]) -> str:
    costs = [effect.cost for case in cases if (effect := case.effects.get(label)) and effect.cost]
    return f"{label} (prefill x{max(costs):.2f})" if costs else label


def default_in_words(found: Sequence[Advice]) -> str:
    """Whether the evidence supports the default method."""
    known = [each for each in found if each.cases]
    good = [each.kind for each in known if DEFAULT_METHOD in (each.method, *each.others)]
    bad = [each.kind for each in known if each.kind not in good]
    verdicts = [f"it qualifies for {', '.join(good)}"] if good else []
    if bad:
        verdicts.append(f"it is not recommended for {', '.join(bad) if good else 'any of these tasks'}")
    return f"The default method is {DEFAULT_METHOD}: {' and '.join(verdicts) or 'it was not measured'}."
