"""Measurements of each method of an audit: flips, noise floor, preferred positions and changed answers."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, zip_longest
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np

from ragbias.data.questions import Question
from ragbias.errors import RunError
from ragbias.evaluation.audit.cases import AuditCase, audit_orders, generate_answers
from ragbias.evaluation.measures.bootstrap import FEWEST, Interval, share
from ragbias.evaluation.measures.metrics import best_subspan_em, same_answer, source
from ragbias.generation import Generation, Request
from ragbias.methods import AttentionMethod, Method

ENOUGH = 100  # number of questions for most verdicts
WORTH = 0.10  # smallest share of flips beyond the noise floor that is a problem
BINS = 5  # number of equal parts into which positions are grouped

Progress = Callable[[Mapping[str, int]], None]


@dataclass(frozen=True)
class PositionPreference:
    """Positions of the source documents of answers, compared with a model that ignores the order.

    Attributes:
        questions: number of questions whose source document is known in two or more orders.
        answer_count: number of answers to these questions whose source document is known.
        total_count: number of all answers.
        excess: share of answers from each part of the positions, minus the expected share. Empty with too few
            questions.
    """

    answer_count: int
    total_count: int
    questions: int
    excess: list[Interval]


@dataclass(frozen=True)
class Flips:
    """Shares of questions whose answers differ between orders (``flips``) and between repetitions (``floor``)."""

    flips: Interval
    floor: Interval
    excess: Interval

    @classmethod
    def of(cls, flips: Sequence[float], floor: Sequence[float]) -> Flips:
        """Compute the shares and their difference ``excess`` from a 0 or 1 for each question."""
        excess = [flip - noise for flip, noise in zip(flips, floor, strict=True)]
        return cls(rate(flips), rate(floor), rate(excess, least=-1))


class Answers(NamedTuple):
    """The answers to one question in each order, and to repetitions of the retrieved order."""

    by_order: list[str]
    repeated: list[str]
    ran: bool  # whether the method ran


@dataclass(frozen=True)
class Outcome:
    """Measurements of one method, compared with the first method, which is that of the unchanged pipeline.

    Attributes:
        answer_flips: shares of questions whose answers differ in meaning, see ``same_answer``.
        rightness: shares of questions with both right and wrong answers. None with too few accepted answers.
        accuracy_by_order: accuracy in each order, over questions with accepted answers.
        changed: share of questions whose answer in the retrieved order differs in meaning from the first method's.
        better: accuracy in the retrieved order, minus the first method's accuracy.
        ran: share of questions on which the method could run.
        answers: the answers to each question.
    """

    method: Method
    answer_flips: Flips
    rightness: Flips | None
    preference: PositionPreference
    accuracy_by_order: list[float] | None
    changed: Interval
    better: Interval | None
    ran: float
    answers: Sequence[Answers] = ()

    @property
    def headline(self) -> Flips:
        """The flips for the verdict: ``rightness`` if available, otherwise ``answer_flips``."""
        return self.rightness or self.answer_flips

    def as_dict(self) -> dict[str, Any]:
        """Return the figures as plain data for JSON. Intervals are ``[estimate, low, high]``."""
        right = {} if self.rightness is None else vars(self.rightness)
        named = {**vars(self), **vars(self.answer_flips), **{f"right_{name}": value for name, value in right.items()}}
        return {name: _plain(named[name]) for name in named if name not in ("answer_flips", "rightness", "answers")}


@dataclass(frozen=True)
class Audit:
    """All measurements by label. The first label is the unchanged pipeline."""

    outcomes: dict[str, Outcome]
    questions: int
    orders: int

    @property
    def as_it_is(self) -> str:
        return next(iter(self.outcomes))

    @property
    def labelled(self) -> bool:
        """Whether a flip is a change between right and wrong answers."""
        return self.outcomes[self.as_it_is].rightness is not None


def check_count(questions: int) -> None:
    """Raise ``RunError`` if there are too few different questions for an interval."""
    if questions < FEWEST:
        raise RunError(
            f"too few examples: {questions} different questions with two or more documents; an interval needs at least "
            f"{FEWEST}, better {ENOUGH}"
        )


def audit(
    cases: Sequence[AuditCase],
    methods: Mapping[str, Method],
    orders: int = 4,
    seed: int = 0,
    progress: Progress = lambda flips: None,
) -> Audit:
    """Answer every question with every method in several orders, and repeatedly in the retrieved order.

    The first method is that of the unchanged pipeline. After each method of each question, ``progress`` receives the
    number of flipped questions by label. After ``FEWEST`` questions, an interrupt returns the results so far.
    """
    check_count(len(cases))
    case_orders = [audit_orders(len(case.prompt.documents), orders, seed + index) for index, case in enumerate(cases)]
    answered: dict[str, list[Answers]] = {label: [] for label in methods}
    flips = dict.fromkeys(methods, 0)
    try:
        for case, arranged in zip(cases, case_orders, strict=True):
            runs = _CaseRuns(case)
            for label, method in methods.items():
                answers = runs.answer(arranged, method)
                answered[label].append(answers)
                flips[label] += differ(case.question, answers.by_order)
                progress(flips)
    except KeyboardInterrupt:
        if (finished := min(map(len, answered.values()))) < FEWEST:
            raise
        cases, case_orders = cases[:finished], case_orders[:finished]
        answered = {label: rows[:finished] for label, rows in answered.items()}
    first = next(iter(answered.values()))
    outcomes = {label: _outcome(cases, case_orders, methods[label], rows, first) for label, rows in answered.items()}
    return Audit(outcomes, len(cases), max(map(len, case_orders)))


class _CaseRuns:
    """Answer one question in several orders and with several methods. Equal greedy computations run only once."""

    def __init__(self, case: AuditCase) -> None:
        self._case = case
        self._computed: dict[Hashable, Generation] = {}

    def answer(self, orders: Sequence[Sequence[int]], method: Method) -> Answers:
        """Answer in all orders, then repeat the retrieved order. Greedy decoding repeats it once.

        With sampling, the number of repetitions is the number of the other orders. Nothing is repeated if all orders
        run the same computation, or if repetitions have equal answers.
        """
        case = self._case
        requests = [case.request(order, method) for order in orders]
        ran = requests[0].report.method_ran in ({method.name, "none"} if method.selective else {method.name})
        by_order = self._texts(requests)
        if case.exact or (case.greedy and len(set(map(_computation, requests))) == 1):
            return Answers(by_order, by_order[:1] * 2, ran)
        repetitions = [requests[0]] * (1 if case.greedy else len(orders) - 1)
        return Answers(by_order, [by_order[0], *self._texts(repetitions, first_attempt=1)], ran)

    def _texts(self, requests: Sequence[Request], first_attempt: int = 0) -> list[str]:
        if not self._case.greedy:
            return [generation.text for generation in generate_answers(self._case, requests, first_attempt)]
        keys = [(first_attempt, _computation(request)) for request in requests]
        missing = {key: request for key, request in zip(keys, requests, strict=True) if key not in self._computed}
        if missing:
            generations = generate_answers(self._case, list(missing.values()))
            self._computed.update(zip(missing, generations, strict=True))
        return [self._computed[key].text for key in keys]


def _computation(request: Request) -> Hashable:
    """Return a key for the computation of a request. Requests with equal keys run the same tokens in the same way."""
    method = request.method
    prompts = [candidate.tokens for candidate in request.candidates()]
    if isinstance(method, AttentionMethod) and method.invariant:  # the model reads the documents in this order
        prompts = [prompt.reordered(method.document_order(prompt.documents)) for prompt in prompts]
    plain = method.acts_on in ("nothing", "order")
    return "" if plain else str(method), *((*prompt.ids, *(() if plain else prompt.spans)) for prompt in prompts)


def _outcome(
    cases: Sequence[AuditCase],
    case_orders: Sequence[Sequence[Sequence[int]]],
    method: Method,
    rows: Sequence[Answers],
    first: Sequence[Answers],
) -> Outcome:
    sources = [
        [source(text, case.prompt.documents, case.question.question) for text in answers.by_order]
        for case, answers in zip(cases, rows, strict=True)
    ]
    unlabelled = [Question(case.question.question) for case in cases]
    labelled = [index for index, case in enumerate(cases) if case.question.answers]
    right = [[is_right(cases[index].question, text) for text in rows[index].by_order] for index in labelled]
    by_order = [fmean(flag for flag in flags if flag is not None) for flags in zip_longest(*right)]
    first_right = [is_right(cases[index].question, first[index].by_order[0]) for index in labelled]
    rightness = better = None
    if len(labelled) >= FEWEST:
        rightness = _flips([cases[index].question for index in labelled], [rows[index] for index in labelled])
        better = rate([float(flags[0]) - base for flags, base in zip(right, first_right, strict=True)], least=-1)
    retrieved = [(answers.by_order[0], plain.by_order[0]) for answers, plain in zip(rows, first, strict=True)]
    return Outcome(
        method=method,
        answer_flips=_flips(unlabelled, rows),
        rightness=rightness,
        preference=position_preference(sources, case_orders),
        accuracy_by_order=by_order or None,
        changed=rate([float(not same_answer(*pair)) for pair in retrieved]),
        better=better,
        ran=sum(answers.ran for answers in rows) / len(rows),
        answers=rows,
    )


def _flips(questions: Sequence[Question], rows: Sequence[Answers]) -> Flips:
    pairs = list(zip(questions, rows, strict=True))
    return Flips.of(
        [float(differ(question, answers.by_order)) for question, answers in pairs],
        [float(differ(question, answers.repeated)) for question, answers in pairs],
    )


def _plain(value: Any) -> Any:
    if isinstance(value, Interval):
        return value.as_list()
    if isinstance(value, PositionPreference):
        counts = {"answers": value.answer_count, "total": value.total_count, "questions": value.questions}
        return {**counts, "excess": _plain(value.excess)}
    if isinstance(value, Method):
        return str(value)
    return [_plain(item) for item in value] if isinstance(value, list) else value


def is_right(question: Question, answer: str) -> bool:
    """Whether an answer contains an accepted answer."""
    return best_subspan_em(answer.strip(), question.answers) == 1


def differ(question: Question, answers: Sequence[str]) -> bool:
    """Whether some answers are right and some wrong. Without accepted answers, whether any two differ in meaning."""
    if question.answers:
        return len({is_right(question, answer) for answer in answers}) > 1
    return any(not same_answer(*pair) for pair in combinations(answers, 2))


def rate(values: Sequence[float], least: float = 0.0) -> Interval:
    """Mean of values between ``least`` and 1, with its 95% interval.

    If all ``n`` values are equal, resampling gives no interval. Then other values may have a share of up to ``p``, for
    which ``n`` equal values still have a probability of 5%: ``(1 - p)^n = 0.05``. The interval extends by ``p``.
    """
    if len(set(values)) > 1:
        return share({str(index): value for index, value in enumerate(values)})
    (estimate,) = set(values)
    reach = 1 - 0.05 ** (1 / len(values))
    return Interval(estimate, max(least, estimate - reach), min(1.0, estimate + reach))


def position_preference(
    sources: Sequence[Sequence[int | None]], orders: Sequence[Sequence[Sequence[int]]]
) -> PositionPreference:
    """Measure the share of answers from each part of the positions, minus the expected share.

    The answer in order ``k`` is from document ``s_k``, whose position in order ``l`` is ``p_l(s_k)``. The observed
    share counts the orders ``k`` with ``p_k(s_k)`` in the part. The expected share counts the pairs ``k, l`` with
    ``p_l(s_k)`` in the part. If the order has no effect, both shares are equal for any ranking of the retriever.
    Questions with fewer than two known sources are excluded, because their shares are always equal.

    ``sources[q][k]`` is the retrieved index of ``s_k`` for question ``q``, or None if it is unknown.
    ``orders[q][k][i]`` is the retrieved index of the document at position ``i`` in order ``k``.
    """
    parts = min(BINS, *(len(arranged[0]) for arranged in orders))
    excess: dict[str, list[float]] = {}
    answer_count = 0
    for index, (documents, arranged) in enumerate(zip(sources, orders, strict=True)):
        pairs = [(order, document) for order, document in zip(arranged, documents, strict=True) if document is not None]
        if len(pairs) < 2:
            continue
        answer_count += len(pairs)
        counts = np.zeros(parts)
        for order, document in pairs:
            part = [position * parts // len(order) for position in np.argsort(order)]  # part of each document
            counts[part[document]] += len(pairs)
            for _, other in pairs:
                counts[part[other]] -= 1
        excess[str(index)] = (counts / len(pairs) ** 2).tolist()  # whole counts, so that 0 is exact
    enough = len(excess) >= FEWEST
    intervals = [
        share({name: values[part] for name, values in excess.items()}) for part in range(parts if enough else 0)
    ]
    return PositionPreference(answer_count, sum(map(len, sources)), len(excess), intervals)
