"""Measurements of a pipeline: flips and their floor, preferred positions and changes, for each method."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np

from ragbias.errors import RunError
from ragbias.evaluation.audit.cases import AuditCase, answers, audit_orders
from ragbias.evaluation.data.questions import Question
from ragbias.evaluation.measures.bootstrap import FEWEST, Interval, share
from ragbias.evaluation.measures.metrics import best_subspan_em, same_answer, source
from ragbias.generation.report import Generation
from ragbias.generation.request import Request
from ragbias.methods import Method

ENOUGH = 100  # questions, for most verdicts
WORTH = 0.10  # share of flips beyond the floor from which on the order is a problem
BINS = 5  # equal parts of the context that positions are counted in

Progress = Callable[[Mapping[str, int]], None]


@dataclass(frozen=True)
class PositionPreference:
    """Positions that answers come from, compared with a model without preference.

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
class Flips:
    """Shares of questions that flip: between orders, between repetitions in the retrieved order, and the difference."""

    flips: Interval
    floor: Interval
    excess: Interval

    @classmethod
    def of(cls, flips: Sequence[float], floor: Sequence[float]) -> Flips:
        """Flips from one 0 or 1 per question; the excess is paired by question."""
        excess = [flip - noise for flip, noise in zip(flips, floor, strict=True)]
        return cls(rate(flips), rate(floor), rate(excess, least=-1))


@dataclass(frozen=True)
class Outcome:
    """One method on all questions; intervals are of shares of questions.

    Attributes:
        answers: flips of the answer's meaning, see ``same_answer``.
        rightness: flips between right and wrong, of the questions with known answers; None: too few.
        accuracy_by_order, better: of questions with known answers; ``better`` is the accuracy in the retrieved order
            minus that of the first method.
        changed: answers that mean something else than the first method's, in the retrieved order.
        ran: share of questions on which the method could run.
    """

    method: Method
    answers: Flips
    rightness: Flips | None
    preference: PositionPreference
    accuracy_by_order: list[float] | None
    changed: Interval
    better: Interval | None
    ran: float

    @property
    def headline(self) -> Flips:
        """The flips behind the verdict: of rightness if accepted answers are known, else of meaning."""
        return self.rightness or self.answers

    def as_dict(self) -> dict[str, Any]:
        """The figures as plain data, fit for JSON; intervals are ``[estimate, low, high]``."""
        right = {} if self.rightness is None else vars(self.rightness)
        named = {**vars(self), **vars(self.answers), **{f"right_{name}": value for name, value in right.items()}}
        return {name: _plain(value) for name, value in named.items() if name not in ("answers", "rightness")}


@dataclass(frozen=True)
class Audit:
    """All measurements by label; the first one is the pipeline as it is.

    ``answers`` holds one for each question and order, ``repeats`` those in the retrieved order.
    """

    outcomes: dict[str, Outcome]
    questions: int
    orders: int
    answers: dict[str, list[list[str]]]
    repeats: dict[str, list[list[str]]]

    @property
    def as_it_is(self) -> str:
        return next(iter(self.outcomes))

    @property
    def labelled(self) -> bool:
        """Whether flips are counted between right and wrong."""
        return self.outcomes[self.as_it_is].rightness is not None


class _Answers(NamedTuple):
    """One question's answers with one method, and whether the method ran."""

    by_order: list[str]
    again: list[str]
    ran: bool


def check_count(questions: int) -> None:
    """Raise ``RunError`` where there are too few different questions for an interval."""
    if questions < FEWEST:
        raise RunError(
            f"too few examples: an interval needs {FEWEST} different questions with two or more documents, and there "
            f"are {questions}; give {ENOUGH} or more"
        )


def audit(
    cases: Sequence[AuditCase],
    methods: Mapping[str, Method],
    orders: int = 4,
    seed: int = 0,
    progress: Progress = lambda flips: None,
) -> Audit:
    """Answer every question in several orders, and again in the retrieved order, with every method.

    The first method is the pipeline as it is. ``progress`` is called after each method of each question, with the
    numbers of questions that have flipped by label. An interrupt after five questions or more ends the audit with
    those.
    """
    check_count(len(cases))
    arranged = [audit_orders(case.document_count, orders, seed + index) for index, case in enumerate(cases)]
    found: dict[str, list[_Answers]] = {label: [] for label in methods}
    flips = dict.fromkeys(methods, 0)
    try:
        for case, own in zip(cases, arranged, strict=True):
            computed = _Computed(case)
            for label, method in methods.items():
                given = computed.answers(own, method)
                found[label].append(given)
                flips[label] += differ(case.question, given.by_order)
                progress(flips)
    except KeyboardInterrupt:
        if (finished := min(map(len, found.values()))) < FEWEST:
            raise
        cases, arranged = cases[:finished], arranged[:finished]
    first, *_ = (found[label][: len(cases)] for label in methods)
    outcomes = {
        label: _outcome(cases, arranged, method, found[label][: len(cases)], first) for label, method in methods.items()
    }
    by_order = {label: [answered.by_order for answered in given[: len(cases)]] for label, given in found.items()}
    again = {label: [answered.again for answered in given[: len(cases)]] for label, given in found.items()}
    return Audit(outcomes, len(cases), max(map(len, arranged)), by_order, again)


class _Computed:
    """Answers one question; orders and methods that share a greedy computation run it once."""

    def __init__(self, case: AuditCase) -> None:
        self._case = case
        self._first: dict[Hashable, Generation] = {}
        self._again: dict[Hashable, Generation] = {}

    def answers(self, orders: Sequence[Sequence[int]], method: Method) -> _Answers:
        """Answer in all orders in one batch, then repeat the retrieved order: once if greedy, else as often.

        An invariant method runs in two orders, and in the others only where these two differ.
        """
        case = self._case
        requests = [case.request(order, method) for order in orders]
        wanted = {method.name, "none"} if method.selective else {method.name}
        ran = requests[0].report.method_ran in wanted
        if case.greedy and method.invariant and ran and not method.selective:
            first, check = self._run(requests[:2], self._first)
            if first == check:
                return _Answers([first] * len(orders), [first, check], ran)
        by_order = self._run(requests, self._first)
        again = self._run([requests[0]] * (1 if case.greedy else len(orders) - 1), self._again, first_attempt=1)
        return _Answers(by_order, [by_order[0], *again], ran)

    def _run(
        self, requests: Sequence[Request], computed: dict[Hashable, Generation], first_attempt: int = 0
    ) -> list[str]:
        if not self._case.greedy:
            return [answer.text for answer in answers(self._case, requests, first_attempt)]
        keys = [_computation(request) for request in requests]
        missing = {key: request for key, request in zip(keys, requests, strict=True) if key not in computed}
        if missing:
            computed.update(zip(missing, answers(self._case, list(missing.values())), strict=True))
        return [computed[key].text for key in keys]


def _computation(request: Request) -> Hashable:
    """Equal for requests that run the same tokens in the same way."""
    plain = request.method.acts_on in ("nothing", "order")
    return tuple(request.tokens.ids), "" if plain else str(request.method), () if plain else tuple(request.tokens.spans)


def _outcome(
    cases: Sequence[AuditCase],
    arranged: Sequence[Sequence[Sequence[int]]],
    method: Method,
    found: Sequence[_Answers],
    first: Sequence[_Answers],
) -> Outcome:
    sources = [
        [source(answer, case.prompt.documents, case.question.question) for answer in given.by_order]
        for case, given in zip(cases, found, strict=True)
    ]
    unlabelled = [Question(case.question.question) for case in cases]
    known = [index for index, case in enumerate(cases) if case.question.answers]
    right = [[is_right(cases[index].question, answer) for answer in found[index].by_order] for index in known]
    before = [is_right(cases[index].question, first[index].by_order[0]) for index in known]
    enough = len(known) >= FEWEST
    retrieved = [(given.by_order[0], plain.by_order[0]) for given, plain in zip(found, first, strict=True)]
    return Outcome(
        method=method,
        answers=_flips(unlabelled, found),
        rightness=_flips([cases[index].question for index in known], [found[index] for index in known])
        if enough
        else None,
        preference=position_preference(sources, arranged),
        accuracy_by_order=_by_order(right) if right else None,
        changed=rate([float(not same_answer(*pair)) for pair in retrieved]),
        better=rate([float(own[0]) - base for own, base in zip(right, before, strict=True)], least=-1)
        if enough
        else None,
        ran=sum(given.ran for given in found) / len(found),
    )


def _flips(questions: Sequence[Question], found: Sequence[_Answers]) -> Flips:
    both = list(zip(questions, found, strict=True))
    return Flips.of(
        [float(differ(question, given.by_order)) for question, given in both],
        [float(differ(question, given.again)) for question, given in both],
    )


def _plain(value: Any) -> Any:
    if isinstance(value, Interval):
        return value.as_list()
    if isinstance(value, PositionPreference):
        return {name: _plain(item) for name, item in vars(value).items()}
    if isinstance(value, Method):
        return str(value)
    return [_plain(item) for item in value] if isinstance(value, list) else value


def is_right(question: Question, answer: str) -> bool:
    """Whether an answer contains an accepted answer."""
    return best_subspan_em(answer.strip(), question.answers) == 1


def differ(question: Question, answers: Sequence[str]) -> bool:
    """Whether some answers are right and others wrong; without known answers, whether two mean different things."""
    if question.answers:
        return len({is_right(question, answer) for answer in answers}) > 1
    return any(not same_answer(*pair) for pair in combinations(answers, 2))


def _by_order(right: Sequence[Sequence[bool]]) -> list[float]:
    columns = [[flags[order] for flags in right if order < len(flags)] for order in range(max(map(len, right)))]
    return [sum(column) / len(column) for column in columns]


def rate(values: Sequence[float], least: float = 0.0) -> Interval:
    """Mean, between ``least`` and 1, and its interval.

    Where all questions agree, the interval contains every share of other questions that ``n`` questions do not rule
    out. A share ``p`` is ruled out at 95% if ``(1 - p)^n < 0.05``.
    """
    if len(set(values)) > 1:
        return share({str(index): value for index, value in enumerate(values)})
    (estimate,) = set(values)
    reach = 1 - 0.05 ** (1 / len(values))
    return Interval(estimate, max(least, estimate - reach), min(1.0, estimate + reach))


def position_preference(
    sources: Sequence[Sequence[int | None]], orders: Sequence[Sequence[Sequence[int]]]
) -> PositionPreference:
    """Share of answers from each part of the positions, minus the share expected if the order did not matter.

    For a question, ``s_k`` is the document that the answer under order ``k`` was taken from and ``p_k(s)`` the position
    of document ``s`` there. The share observed is that of ``k`` with ``p_k(s_k)`` in the part; the one expected is that
    of all pairs ``k, l`` with ``p_k(s_l)`` in the part, the same documents under any order. Where the order does not
    matter the two are equal, whatever the retriever's ranking. A question with one known source is left out, as there
    the two are equal anyway. ``sources[q][k]`` is a document as retrieved, ``orders[q][k][i]`` that at position ``i``.
    """
    parts = min(BINS, *(len(arranged[0]) for arranged in orders))
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
    intervals = [
        share({name: values[part] for name, values in excess.items()}) for part in range(parts if enough else 0)
    ]
    return PositionPreference(answers, sum(map(len, sources)), len(excess), intervals)
