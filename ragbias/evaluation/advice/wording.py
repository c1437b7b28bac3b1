"""Advice in words, with the figures that it follows from: for a terminal and as the table of the docs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ragbias.evaluation.advice.evidence import Case, Effect, Figure
from ragbias.evaluation.advice.rule import BORNE, NO_EVIDENCE, Advice, advice
from ragbias.evaluation.names import ACCURACY, LOGPROB, REFERENCE
from ragbias.methods import DEFAULT_METHOD

MEASURES = {ACCURACY: "accuracy", LOGPROB: "log-probability"}
UNKNOWN = "Nothing was measured; compare methods on your own questions with `ragbias bench`."
ONE_ANSWER = "It gives one answer for all orders of the documents."
ORDER_STILL_MATTERS = "The answer still depends on the order of the documents."
NOTHING_PAYS = (
    "No method is sure to be better than the plain model's mean over positions, or, if it is invariant, to lose no "
    f"more than {BORNE[LOGPROB]:g} nats, or {BORNE[ACCURACY]:g} of the accuracy."
)


def heading(each: Advice) -> str:
    """The task, and what to take for it: ``judge: none (weak evidence: 1 model, 60 questions)``."""
    return f"{each.kind}: {each.method} ({evidence_in_words(each)})" if each.cases else f"{each.kind}: {NO_EVIDENCE}"


def evidence_in_words(each: Advice) -> str:
    """How strong the evidence is: its models, and the fewest and the most questions of a case with the method."""
    if not each.cases:
        return NO_EVIDENCE
    fewest, most = (ends(case.questions for case in _asked(each)) for ends in (min, max))
    questions = f"{most} questions" if fewest == most else f"{fewest} to {most} questions"
    return f"{each.strength} evidence: {_count(len(each.models), 'model')}, {questions}"


def reasons(each: Advice) -> Iterator[str]:
    """Sentences that say why, with the figures of every case."""
    if not each.cases:
        yield UNKNOWN
        return
    if each.method == REFERENCE:
        yield NOTHING_PAYS
    else:
        yield ONE_ANSWER if _is_invariant(each) else ORDER_STILL_MATTERS
    for case in _asked(each):
        yield _case_in_words(case, each.method)
    if each.others:
        yield f"These qualify as well: {', '.join(_with_cost(label, each.cases) for label in each.others)}."
    if len(each.models) > 1:
        for model in each.models:
            own = advice(each.kind, [case for case in each.cases if case.model == model])
            if own.method != each.method:
                yield f"On {model} alone: {own.method}."


def _asked(each: Advice) -> list[Case]:
    """The cases that measured the method; of the plain model, all."""
    return [case for case in each.cases if each.method == REFERENCE or each.method in case.effects]


def _is_invariant(each: Advice) -> bool:
    return any(effect.invariant for case in each.cases if (effect := case.effects.get(each.method)))


def _case_in_words(case: Case, method: str) -> str:
    """What a method did in a case; of the plain model, what the best of the others did."""
    label = method if method != REFERENCE else max(case.effects, key=lambda name: case.effects[name].mean[1])
    nearest = "" if label == method else f"the nearest is {label}, "
    bias = f" (whose best position is {_figure(case.gap, '.2f')} above its worst)" if case.gap else ""
    effect = case.effects[label]
    cost = f"; prefill x{effect.cost:.2f}" if effect.cost else ""
    return (
        f"{case.study}: {case.model}, {case.task}, {case.documents} documents, {_count(case.questions, 'question')}, "
        f"{MEASURES[case.measure]}: {nearest}{_differences(effect)} of the plain model{bias}{cost}."
    )


def _differences(effect: Effect) -> str:
    parts = [f"{_figure(effect.mean)} against the mean"]
    for name, figure in (("worst", effect.worst), ("best", effect.best)):
        if figure:
            parts.append(f"{_figure(figure)} against the {name} position")
    return ", ".join(parts)


def _with_cost(label: str, cases: Sequence[Case]) -> str:
    costs = [effect.cost for case in cases if (effect := case.effects.get(label)) and effect.cost]
    return f"{label} (prefill x{max(costs):.2f})" if costs else label


def _figure(figure: Figure, form: str = "+.2f") -> str:
    value, low, high = (format(each + 0.0, form) for each in figure)
    return f"{value} ({low} to {high})"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def default_in_words(found: Sequence[Advice]) -> str:
    """Whether the evidence is for the method that runs where none is named."""
    known = [each for each in found if each.cases]
    good = [each.kind for each in known if DEFAULT_METHOD in (each.method, *each.others)]
    bad = [each.kind for each in known if each.kind not in good]
    verdicts = [f"it qualifies for {', '.join(good)}"] if good else []
    verdicts += [f"it does not qualify for {', '.join(bad)}"] if bad else []
    return f"The default everywhere is {DEFAULT_METHOD}: {' and '.join(verdicts) or 'nothing was measured of it'}."


def as_markdown(found: Sequence[Advice], why: bool = True) -> str:
    """A table: a row for each kind of task; ``why``: with the reasons."""
    rows = [["task", "take", "one answer for all orders", "evidence"], ["---"] * 4]
    rows += ([each.kind, _taken(each), _one_answer(each), evidence_in_words(each)] for each in found)
    if why:
        last = ["because", "---", *(" ".join(reasons(each)) for each in found)]
        rows = [[*row, cell] for row, cell in zip(rows, last, strict=True)]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _taken(each: Advice) -> str:
    return f"`{each.method}`" if each.cases else "-"


def _one_answer(each: Advice) -> str:
    return ("yes" if _is_invariant(each) else "no") if each.cases else "-"
