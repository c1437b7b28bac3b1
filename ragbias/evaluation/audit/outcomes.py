"""Measurements of a pipeline: flips and their floor, preferred positions and changes, for each method."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ragbias.errors import RunError
from ragbias.evaluation.audit.cases import AuditCase, answers, answers_again, audit_orders
from ragbias.evaluation.measures.bootstrap import FEWEST, Interval, share
from ragbias.evaluation.measures.metrics import best_subspan_em, normalised, source
from ragbias.generation.report import Generation
from ragbias.generation.scoring import logprobs_of
from ragbias.methods import Method

WORTH = 0.10  # share of answers beyond the floor from which on the order is a problem
BINS = 5  # equal parts of the context that positions are counted in
POSITIONS = ("first", "middle", "last")

Progress = Callable[[str, int], None]


@dataclass(frozen=True)
class PositionPreference:
    """The positions that answers come from, against a model without preference.

    Attributes:
        answers, questions: those with a known document in two or more orders; ``asked``: all answers.
        excess: for each part of the positions, from the first to the last: share of answers from there minus the
            share expected if the order did not matter; the parts sum to 0. Empty with too few questions.
    """

    answers: int
    asked: int
    questions: int
    excess: list[Interval]


@dataclass(frozen=True)
class Outcome:
    """One method on all questions; intervals are of shares of questions.

    Attributes:
        floor: answers that differ between repetitions in the retrieved order; ``excess``: flips beyond it, paired.
        logprob_by_position: of the answer as its document is moved; None: not measured.
        accuracy_by_order, better: of questions with known answers; ``better`` is against the first method.
        changed: answers that differ from the first method's, in the retrieved order.
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
        return {name: _plain(value) for name, value in vars(self).items()}


@dataclass(frozen=True)
class Audit:
    """All measurements by label; the first one is the pipeline as it is.

    ``answers`` holds one for each question and order, ``repeats`` as many in the retrieved order.
    """

    outcomes: dict[str, Outcome]
    questions: int
    orders: int
    answers: dict[str, list[list[str]]]
    repeats: dict[str, list[list[str]]]

    @property
    def as_it_is(self) -> str:
        return next(iter(self.outcomes))


class _Answers(NamedTuple):
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

    The first method is the pipeline as it is. ``progress`` is called with a label and a number of prompts; ``work``
    gives their sum.
    """
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
    right, right_before = _right(cases, given), _right(cases, first)
    better = None
    if len(right) >= FEWEST:
        better = rate([own[0] - before[0] for own, before in zip(right, right_before, strict=True)], least=-1)
    wanted = {method.name, "none"} if method.selective else {method.name}
    return Outcome(
        method=method,
        flips=rate(flips),
        floor=rate(floor),
        excess=rate([flip - noise for flip, noise in zip(flips, floor, strict=True)], least=-1),
        preference=position_preference(sources, arranged),
        logprob_by_position=logprob_by_position(cases, retrieved, [own[0] for own in sources], method, progress),
        accuracy_by_order=_by_order(right) if right else None,
        changed=rate(
            [float(_differ(pair)) for pair in zip(retrieved, (own[0] for own in first.by_order), strict=True)]
        ),
        better=better,
        ran=sum(answer.report.method_ran in wanted for answer in retrieved) / len(retrieved),
    )


def _plain(value: Any) -> Any:
    if isinstance(value, Interval):
        return value.as_list()
    if isinstance(value, PositionPreference):
        return {name: _plain(each) for name, each in vars(value).items()}
    if isinstance(value, Method):
        return str(value)
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list) else value


def _differ(generations: Sequence[Generation]) -> bool:
    return len({normalised(each.text) for each in generations}) > 1


def _right(cases: Sequence[AuditCase], given: _Answers) -> list[list[float]]:
    """Whether each answer holds one of the right ones, by question with known answers and order."""
    return [
        [best_subspan_em(each.text.strip(), case.question.answers) for each in own]
        for case, own in zip(cases, given.by_order, strict=True)
        if case.question.answers
    ]


def _by_order(right: Sequence[Sequence[float]]) -> list[float]:
    columns = [[own[order] for own in right if order < len(own)] for order in range(max(map(len, right)))]
    return [sum(column) / len(column) for column in columns]


def rate(values: Sequence[float], least: float = 0.0) -> Interval:
    """Mean, between ``least`` and 1, and its interval.

    Where all questions agree, the interval is what they do not rule out: a share ``p`` of other questions is ruled out
    at 95% if ``(1 - p)^n < 0.05``.
    """
    if len(set(values)) > 1:
        return share({str(index): value for index, value in enumerate(values)})
    (estimate,) = set(values)
    reach = 1 - 0.05 ** (1 / len(values))
    return Interval(estimate, max(least, estimate - reach), min(1.0, estimate + reach))


def position_preference(
    sources: Sequence[Sequence[int | None]], orders: Sequence[Sequence[Sequence[int]]]
) -> PositionPreference:
    """How much more often answers come from each fifth of the positions than they would if the order did not matter.

    For a question, ``s_k`` is the document that the answer under order ``k`` was taken from and ``p_k(s)`` the position
    of document ``s`` there. The share observed is that of ``k`` with ``p_k(s_k)`` in the part; the one expected is that
    of all pairs ``k, l`` with ``p_k(s_l)`` in the part, the same documents under any order. Where the order does not
    matter the two are equal, whatever the retriever's ranking. A question with one known source is left out, as there
    the two are equal anyway. ``sources[q][k]`` is a document as retrieved, ``orders[q][k][i]`` that at position ``i``.
    """
    parts = min(BINS, *(len(each[0]) for each in orders))
    excess: dict[str, list[float]] = {}
    answers = 0
    for index, (own, arranged) in enumerate(zip(sources, orders, strict=True)):
        known = [(order, document) for order, document in zip(arranged, own, strict=True) if document is not None]
        if len(known) < 2:
            continue
        answers += len(known)
        counts = np.zeros(parts)
        for order, document in known:
            part = [position * parts // len(order) for position in np.argsort(order)]  # of each document
            counts[part[document]] += len(known)
            for _, other in known:
                counts[part[other]] -= 1
        excess[str(index)] = (counts / len(known) ** 2).tolist()  # whole numbers until here, so that 0 is exact
    enough = len(excess) >= FEWEST
    intervals = [share({name: each[part] for name, each in excess.items()}) for part in range(parts if enough else 0)]
    return PositionPreference(answers, sum(map(len, sources)), len(excess), intervals)


def arrangements(document: int, count: int) -> list[list[int]]:
    """Orders of ``count`` documents with one put at each of ``POSITIONS``, the others left in their order."""
    others = [other for other in range(count) if other != document]
    return [[*others[:position], document, *others[position:]] for position in positions_of(count)]


def positions_of(count: int) -> tuple[int, int, int]:
    """``POSITIONS`` among ``count`` documents, counted from 0."""
    return 0, (count - 1) // 2, count - 1


def logprob_by_position(
    cases: Sequence[AuditCase],
    answers: Sequence[Generation],
    sources: Sequence[int | None],
    method: Method,
    progress: Callable[[int], None] = lambda done: None,
) -> dict[str, Interval] | None:
    """Log-probability (nats) of each question's first answer with its document first, in the middle and last.

    Each is taken minus the mean of the three, and averaged over questions. None for a vote, which has no probabilities,
    and with too few questions of known source.
    """
    moved: dict[str, list[float]] = {}
    for index, (case, answer, document) in enumerate(zip(cases, answers, sources, strict=True)):
        progress(1)
        if method.runs_several or document is None or not answer.token_ids:
            continue
        lm = case.recorded.lm
        totals = []
        for order in arrangements(document, case.document_count):
            request = case.request(order, method)
            totals.append(sum(logprobs_of(lm.model, request, answer.token_ids, lm.backend, lm.cache)))
        moved[str(index)] = [total - sum(totals) / 3 for total in totals]
    if len(moved) < FEWEST:
        return None
    return {
        position: share({name: each[index] for name, each in moved.items()}) for index, position in enumerate(POSITIONS)
    }
