"""Recommend a method for each kind of task, from the studies of real models.

A setting is one model, task and number of documents. In each setting, take the method's mean score minus the plain
model's mean score. The *margin* is the low end of the 95% interval of this difference, divided by the tolerated loss
(``TOLERATED``). With a margin above 0, the method is better than the plain model. With a margin from -1 to 0, the
method's loss is tolerated. If both log-probability and accuracy were measured, the larger margin counts, and neither
measure may show a loss.

A method qualifies for a kind of task if two conditions hold in every setting:

- The interval does not lie below 0.
- The method is better than the plain model, or its loss is tolerated and it is order-invariant without reordering.

Among methods that qualify, invariant methods come first, then methods that are better in every setting. Ties are
broken by a method's lowest margin. If no method qualifies, the plain model is recommended.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TypeAlias

from ragbias.methods import DEFAULT_METHOD
from ragbias_eval import ACCURACY, JUDGES, LOGPROB, REFERENCE

TOLERATED = {LOGPROB: 0.1, ACCURACY: 0.02}  # in nats, and as a share of right answers
MEASURES = {ACCURACY: "accuracy", LOGPROB: "log-probability"}
LONG = 4_000  # minimum number of prompt tokens that counts as a long context, for any task
LONG_CONTEXT = "long context"
KINDS = {  # tasks by kind; other tasks, such as lm-eval's, are not evidence
    "one fact in one passage": ("mdqa", "kv-retrieval", "tiny"),
    "several passages": ("musique", "longbench"),
    "judge": JUDGES,
    LONG_CONTEXT: (),
}
ENOUGH = 100  # number of questions per case below which evidence is weak
NO_EVIDENCE = "no evidence"
STRENGTHS = {4: "good", 2: "fair", 1: "weak", 0: NO_EVIDENCE}  # key: minimum number of models

Figure: TypeAlias = tuple[float, float, float]  # estimate, and low and high end of its 95% interval


@dataclass(frozen=True)
class Effect:
    """A method compared with the plain model, paired by question.

    Attributes:
        acts_on, invariant: declared by the method.
        mean, worst, best: the method's mean over positions minus the plain model's mean, worst position and best
            position. None if there is no gold document.
        cost: prefill time relative to the plain model; None: not measured.
    """

    acts_on: str
    invariant: bool
    mean: Figure
    worst: Figure | None
    best: Figure | None
    cost: float | None


@dataclass(frozen=True)
class Case:
    """The effects measured for one model, task, number of documents and measure.

    Attributes:
        study: folder of the study in ``docs/results``.
        measure: ``"accuracy"`` or ``"logprob"`` (of the gold answer, in nats).
        tokens: mean number of prompt tokens.
        gap: the plain model's best position minus its worst position; None without positions.
        effects: effects by method with parameters.
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
        method: recommended method with parameters; ``"none"``: the plain model.
        others: other methods that qualify, best first.
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
        """The cases in which the method was measured. For the plain model these are all cases."""
        return [case for case in self.cases if self.method == REFERENCE or self.method in case.effects]

    @property
    def invariant(self) -> bool:
        return any(effect.invariant for case in self.cases if (effect := case.effects.get(self.method)))

    @property
    def evidence(self) -> str:
        """Describe the evidence, such as ``weak evidence: 1 model, 60 to 120 questions``."""
        if not self.cases:
            return NO_EVIDENCE
        models, questions = len({case.model for case in self.cases}), [case.questions for case in self.measured]
        fewest, most = min(questions), max(questions)
        counted = f"{most} questions" if fewest == most else f"{fewest} to {most} questions"
        return f"{self.strength} evidence: {models} model{'s' * (models > 1)}, {counted}"


def recommend_all(evidence: Iterable[Case]) -> list[Advice]:
    """Make the recommendation for each kind of task."""
    known = list(evidence)
    return [
        recommend(
            kind, [case for case in known if (case.tokens >= LONG if kind == LONG_CONTEXT else case.task in tasks)]
        )
        for kind, tasks in KINDS.items()
    ]


def recommend(kind: str, cases: Sequence[Case]) -> Advice:
    """Make the recommendation for one kind of task from its cases."""
    ranks = {label: rank for label in _labels(cases) if (rank := _rank(label, cases))}
    first, *others = sorted(ranks, key=ranks.__getitem__) or [REFERENCE]
    return Advice(kind, first, tuple(others), tuple(cases), rate_evidence(cases))


def rate_evidence(cases: Sequence[Case]) -> str:
    """Rate the evidence by the numbers of models and questions."""
    models = len({case.model for case in cases})
    if any(case.questions < ENOUGH for case in cases):
        models = 1
    return next(word for least, word in STRENGTHS.items() if models >= least)


def _labels(cases: Sequence[Case]) -> list[str]:
    return list(dict.fromkeys(label for case in cases for label in case.effects))


def _rank(label: str, cases: Sequence[Case]) -> tuple[bool, bool, float, str] | None:
    """Return a sort key for a method that qualifies, or None if it does not qualify."""

    def setting(case: Case) -> tuple[str, str, int]:
        return case.model, case.task, case.documents

    lowest = min(_margin(label, list(same)) for _, same in groupby(sorted(cases, key=setting), key=setting))
    effect = next(case.effects[label] for case in cases if label in case.effects)
    least = -1.0 if effect.invariant and effect.acts_on != "order" else math.nextafter(0, 1)
    if effect.acts_on == "nothing" or lowest < least:
        return None
    return not effect.invariant, lowest <= 0, -lowest, label


def _margin(label: str, cases: Sequence[Case]) -> float:
    """Return the margin in a setting. Return minus infinity if the margin is unknown or any interval shows a loss."""
    effects = [(case.effects[label].mean, TOLERATED[case.measure]) for case in cases if label in case.effects]
    if not effects or any(high < 0 for (_, _, high), _ in effects):
        return -math.inf
    return max(low / tolerated for (_, low, _), tolerated in effects)


def format_heading(advised: Advice) -> str:
    """Format the heading, such as ``judge: none (weak evidence: 1 model, 60 questions)``."""
    if not advised.cases:
        return f"{advised.kind}: {NO_EVIDENCE}"
    return f"{advised.kind}: {advised.method} ({advised.evidence})"


def give_reasons(advised: Advice) -> Iterator[str]:
    """Yield sentences that justify the advice. ``evidence_tables`` has the numbers."""
    if not advised.cases:
        yield "Nothing was measured; compare methods on your own questions with `ragbias bench`."
    elif advised.method == REFERENCE:
        yield "No method is clearly as good as the plain model."
    else:
        dependent = "The answer still depends on the order of the documents."
        yield "It is order-invariant." if advised.invariant else dependent
    if advised.others:
        yield f"Also qualified: {', '.join(_with_cost(label, advised.cases) for label in advised.others)}."
    models = sorted({case.model for case in advised.cases})
    for model in models if len(models) > 1 else ():
        alone = recommend(advised.kind, [case for case in advised.cases if case.model == model])
        if alone.method != advised.method:
            yield f"On {model} alone: {alone.method}."


def closest_to_qualifying(case: Case) -> str:
    """Return the method whose interval of the mean has the highest low end."""
    return max(case.effects, key=lambda name: case.effects[name].mean[1])


def _with_cost(label: str, cases: Sequence[Case]) -> str:
    costs = [effect.cost for case in cases if (effect := case.effects.get(label)) and effect.cost]
    return f"{label} (prefill x{max(costs):.2f})" if costs else label


def describe_coverage(all_advice: Sequence[Advice]) -> str:
    """State which models were measured, and how to choose a method for other models."""
    models = sorted({case.model for advised in all_advice for case in advised.cases}) or ["no model"]
    return (
        f"The recommendations cover studies of {' and '.join(models)} without readers. A later study "
        "measured mixture with a reader: prefer this combination on smollm2 (see the findings)."
    )


def describe_default(all_advice: Sequence[Advice]) -> str:
    """State whether the evidence supports the default method."""
    known = [advised for advised in all_advice if advised.cases]
    good = [advised.kind for advised in known if DEFAULT_METHOD in (advised.method, *advised.others)]
    if not known:
        return f"The default method, {DEFAULT_METHOD}, was not measured."
    tasks = ", ".join(good) or "none of these tasks"
    return (
        f"The default method, {DEFAULT_METHOD}, qualifies for {tasks}; use it if answers must not depend on the order."
    )
