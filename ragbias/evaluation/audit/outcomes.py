"""Measurements of a pipeline: flips and their floor, preferred positions and changes, for each method."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from ragbias.errors import RunError
from ragbias.evaluation.audit.cases import AuditCase, answers, answers_again, audit_orders
from ragbias.evaluation.audit.position_preference import PositionPreference, logprob_by_position, position_preference
from ragbias.evaluation.measures.bootstrap import FEWEST, Interval, share
from ragbias.evaluation.measures.metrics import best_subspan_em, normalised, source
from ragbias.generation.report import Generation
from ragbias.methods import Method

WORTH = 0.10  # share of answers beyond the floor from which on the order is a problem

Progress = Callable[[str, int], None]


@dataclass(frozen=True)
class Outcome:
    """One method on all questions.

    Attributes:
        flips: share of questions whose answer differs between orders.
        floor: share of questions whose answer differs between repetitions in the retrieved order.
        excess: their difference, paired by question.
        preference: positions that answers come from.
        logprob_by_position: of the answer as its document is moved; None: not measured.
        accuracy_by_order: share of right answers for each order, of the questions whose answer is known; None: of none.
        changed: share of questions answered differently by the first method, in the retrieved order.
        better: share of right answers in the retrieved order minus that of the first method; None: no answers known.
        ran: share of questions on which the method could run.
    """

    method: Method
    flips: Interval
    floor: Interval
    excess: Interval
    preference: PositionPreference
    logprob_by_position: dict[str, Interval] | None
    accuracy_by_order: list[float] | None
    changed: Interval
    better: Interval | None
    ran: float

    def as_dict(self) -> dict[str, Any]:
        """The figures as plain data, fit for JSON; intervals are ``[estimate, low, high]``."""
        return {each.name: _plain(getattr(self, each.name)) for each in fields(self)}


@dataclass(frozen=True)
class Audit:
    """All measurements.

    Attributes:
        outcomes: by label; the first one is the pipeline as it is.
        orders: the most orders of one question.
        answers: by label and question, one for each order; ``repeats`` those in the retrieved order.
    """

    outcomes: dict[str, Outcome]
    questions: int
    orders: int
    answers: dict[str, list[list[str]]]
    repeats: dict[str, list[list[str]]]

    @property
    def as_it_is(self) -> str:
        return next(iter(self.outcomes))


@dataclass(frozen=True)
class _Answers:
    """The answers of one method: ``by_order`` and ``again`` one list for each question."""

    by_order: list[list[Generation]]
    again: list[list[Generation]]


def audit(
    cases: Sequence[AuditCase],
    methods: Mapping[str, Method],
    orders: int = 4,
    seed: int = 0,
    progress: Progress = lambda label, done: None,
) -> Audit:
    """Answer every question in several orders, and as often in the retrieved order, with every method.

    Args:
        methods: by label; the first one is the pipeline as it is.
        orders: number of orders, with the retrieved and the reversed one, >= 2.
        seed: of the shuffled orders.
        progress: called with the label and the number of prompts that ran; ``work`` gives their sum.

    Raises:
        RunError: fewer questions than an interval needs.
    """
    if orders < 2:
        raise RunError(f"orders={orders}; expected at least 2, the retrieved one and its reverse")
    if len(cases) < FEWEST:
        raise RunError(
            f"too few examples: {len(cases)} questions with two or more documents, an interval needs {FEWEST}; "
            "give 50 or more"
        )
    arranged = [audit_orders(each.document_count, orders, seed + index) for index, each in enumerate(cases)]
    outcomes: dict[str, Outcome] = {}
    answered: dict[str, _Answers] = {}
    for label, method in methods.items():

        def advance(done: int, label: str = label) -> None:
            progress(label, done)

        answered[label] = _ask(cases, arranged, method, advance)
        first = answered[next(iter(methods))]
        outcomes[label] = _outcome(cases, arranged, method, answered[label], first, advance)
    return Audit(
        outcomes,
        len(cases),
        max(map(len, arranged)),
        {label: [[each.text for each in own] for own in theirs.by_order] for label, theirs in answered.items()},
        {label: [[each.text for each in own] for own in theirs.again] for label, theirs in answered.items()},
    )


def work(questions: int, methods: int, orders: int) -> int:
    """Number of steps that ``audit`` reports, at most: orders, repetitions, and one for the moved documents."""
    return questions * methods * (2 * orders - 1 + 1)


def _ask(
    cases: Sequence[AuditCase],
    arranged: Sequence[Sequence[Sequence[int]]],
    method: Method,
    progress: Callable[[int], None],
) -> _Answers:
    by_order: list[list[Generation]] = [[] for _ in cases]
    again: list[list[Generation]] = [[] for _ in cases]
    as_retrieved = [case.request(None, method) for case in cases]
    for attempt in range(max(map(len, arranged))):
        left = [index for index, own in enumerate(arranged) if attempt < len(own)]
        some = [cases[index] for index in left]
        requests = [cases[index].request(arranged[index][attempt], method) for index in left]
        for index, answer in zip(left, answers(some, requests, attempt, progress=progress), strict=True):
            by_order[index].append(answer)
        if attempt == 0:
            same = [own[0] for own in by_order]
        else:
            same = answers_again(some, [as_retrieved[index] for index in left], attempt, progress=progress)
        for index, answer in zip(left, same, strict=True):
            again[index].append(answer)
    return _Answers(by_order, again)


def _outcome(
    cases: Sequence[AuditCase],
    arranged: Sequence[Sequence[Sequence[int]]],
    method: Method,
    given: _Answers,
    first: _Answers,
    progress: Callable[[int], None],
) -> Outcome:
    flips, floor = ([float(_differ(own)) for own in questions] for questions in (given.by_order, given.again))
    sources = [
        [source(answer.text, case.documents, case.question.question) for answer in own]
        for case, own in zip(cases, given.by_order, strict=True)
    ]
    retrieved = [own[0] for own in given.by_order]
    before = [own[0] for own in first.by_order]
    right = [[_is_right(answer, case) for answer in own] for case, own in _labelled(cases, given)]
    right_before = [_is_right(own[0], case) for case, own in _labelled(cases, first)]
    wanted = {method.name, "none"} if method.selective else {method.name}
    return Outcome(
        method=method,
        flips=rate(flips),
        floor=rate(floor),
        excess=rate([flip - noise for flip, noise in zip(flips, floor, strict=True)], least=-1),
        preference=position_preference(sources, arranged),
        logprob_by_position=logprob_by_position(cases, retrieved, [own[0] for own in sources], method, progress),
        accuracy_by_order=_by_order(right) if right else None,
        changed=rate([float(_differ(pair)) for pair in zip(retrieved, before, strict=True)]),
        better=_better([own[0] for own in right], right_before),
        ran=sum(answer.report.method_ran in wanted for answer in retrieved) / len(retrieved),
    )


def _plain(value: Any) -> Any:
    if isinstance(value, Interval):
        return value.as_list()
    if isinstance(value, PositionPreference):
        return {each.name: _plain(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, Method):
        return str(value)
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list) else value


def _labelled(cases: Sequence[AuditCase], given: _Answers) -> list[tuple[AuditCase, list[Generation]]]:
    pairs = zip(cases, given.by_order, strict=True)
    return [(case, own) for case, own in pairs if case.question.answers]


def _differ(generations: Sequence[Generation]) -> bool:
    return len({normalised(each.text) for each in generations}) > 1


def _is_right(answer: Generation, case: AuditCase) -> float:
    """Whether the answer holds one of the right ones."""
    return best_subspan_em(answer.text.strip(), case.question.answers)


def _by_order(right: Sequence[Sequence[float]]) -> list[float]:
    columns = [[own[order] for own in right if order < len(own)] for order in range(max(map(len, right)))]
    return [sum(column) / len(column) for column in columns]


def _better(right: Sequence[float], before: Sequence[float]) -> Interval | None:
    if len(right) < FEWEST:
        return None
    return rate([own - other for own, other in zip(right, before, strict=True)], least=-1)


def rate(values: Sequence[float], least: float = 0.0) -> Interval:
    """Mean, between ``least`` and 1, and its interval.

    Where all questions agree, which a bootstrap takes for certainty, the interval is what they do not rule out: a share
    ``p`` of other questions is ruled out at 95% if ``(1 - p)^n < 0.05``.
    """
    if len(set(values)) > 1:
        return share({str(index): value for index, value in enumerate(values)})
    (estimate,) = set(values)
    reach = 1 - 0.05 ** (1 / len(values))
    return Interval(estimate, max(least, estimate - reach), min(1.0, estimate + reach))
