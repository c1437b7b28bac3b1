"""Measure how often a method's answers depend on the document order, and from which positions they come."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, zip_longest
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np

from ragbias.data.intervals import MIN_QUESTIONS, Interval, share
from ragbias.data.questions import Question, best_subspan_em
from ragbias.errors import RunError
from ragbias.generation import Generation, Request
from ragbias.methods import AttentionMethod, Method, ReorderingMethod
from ragbias_eval.audit.cases import AuditCase, audit_orders, generate_answers
from ragbias_eval.metrics import find_source, same_answer

RECOMMENDED_QUESTIONS = 100  # enough questions for a verdict in most audits
THRESHOLD = 0.10  # smallest share of flips above the noise floor that is a problem
MAX_PARTS = 5  # maximum number of equal parts into which positions are grouped

Progress = Callable[[int, int], None]  # arguments: number of finished answers, number of all answers


class PositionPreference(NamedTuple):
    """Shares of answers that come from each part of the prompt.

    Questions with fewer than two answers from a known document are excluded.
    """

    answers: int  # number of answers with a known source document
    total: int  # number of all answers
    excess: list[Interval]  # share of answers from each part, minus the expected share; empty with too few questions


@dataclass(frozen=True)
class Flips:
    """Shares of questions whose answers differ.

    ``flips`` compares orders, and ``floor`` compares repetitions of the retrieved order. ``excess`` is the difference.
    """

    flips: Interval  # between orders
    floor: Interval  # between repetitions of the retrieved order
    excess: Interval  # ``flips - floor``

    @classmethod
    def of(cls, flips: Sequence[float], floor: Sequence[float]) -> Flips:
        """Compute the shares. Arguments have one value per question: 1 if its answers differ, else 0."""
        excess = [flip - noise for flip, noise in zip(flips, floor, strict=True)]
        return cls(estimate_mean(flips), estimate_mean(floor), estimate_mean(excess, least=-1))


class Answers(NamedTuple):
    """Answers to one question with one method."""

    by_order: list[str]
    repeated: list[str]  # in the retrieved order
    ran: bool  # whether the method ran


@dataclass(frozen=True)
class Outcome:
    """Measurements of one method.

    ``rightness`` has the shares of questions with both right and wrong answers. It is None if too few questions have
    accepted answers, or if no answer of any method is right.
    """

    method: Method
    answer_flips: Flips  # shares of questions whose answers differ in meaning, see ``same_answer``
    rightness: Flips | None
    preference: PositionPreference
    accuracy_by_order: list[float] | None  # over questions with accepted answers
    changed: Interval  # share of questions whose answer in the retrieved order differs from the unchanged pipeline's
    better: Interval | None  # accuracy in the retrieved order, minus the unchanged pipeline's
    ran: float  # share of questions on which the method could run
    answers: Sequence[Answers] = ()  # to each question

    @property
    def headline(self) -> Flips:
        """The flip rates that the verdict uses: ``rightness`` if available, otherwise ``answer_flips``."""
        return self.rightness or self.answer_flips

    def as_dict(self) -> dict[str, Any]:
        """Convert the results to JSON data."""
        right = {} if self.rightness is None else vars(self.rightness)
        values = {**vars(self), **vars(self.answer_flips), **{f"right_{name}": value for name, value in right.items()}}
        values |= {"method": str(self.method), "preference": self.preference._asdict()}
        return {name: values[name] for name in values if name not in ("answer_flips", "rightness", "answers")}


@dataclass(frozen=True)
class Audit:
    """The outcome of each method, by the method's label. The first label is that of the unchanged pipeline."""

    outcomes: dict[str, Outcome]
    questions: int
    orders: int

    @property
    def unchanged_label(self) -> str:
        return next(iter(self.outcomes))

    @property
    def uses_accepted_answers(self) -> bool:
        """Whether flips are changes between right and wrong, instead of changes of meaning."""
        return self.outcomes[self.unchanged_label].rightness is not None


def check_count(questions: int) -> None:
    """Raise ``RunError`` if there are too few questions for an interval."""
    if questions < MIN_QUESTIONS:
        raise RunError(
            f"too few examples: {questions} different questions with two or more documents; an interval needs at least "
            f"{MIN_QUESTIONS}, better {RECOMMENDED_QUESTIONS}"
        )


def audit(
    cases: Sequence[AuditCase],
    methods: Mapping[str, Method],
    orders: int = 4,
    seed: int = 0,
    progress: Progress = lambda done, total: None,
) -> Audit:
    """Answer every question with every method, in several orders and in repetitions of the retrieved order.

    The first method is that of the unchanged pipeline. ``progress`` is called after each batch of answers.
    ``KeyboardInterrupt`` after ``MIN_QUESTIONS`` questions returns the results so far.
    """
    check_count(len(cases))
    case_orders = [audit_orders(len(case.prompt.documents), orders, seed + index) for index, case in enumerate(cases)]
    answered: dict[str, list[Answers]] = {label: [] for label in methods}
    pairs = list(zip(cases, case_orders, strict=True))
    total = len(methods) * sum(len(each) + case.count_repetitions(len(each)) for case, each in pairs)
    done = 0

    def advance(answers: int) -> None:
        nonlocal done
        done += answers
        progress(done, total)

    try:
        advance(0)
        for case, arranged in pairs:
            runs = _CaseRuns(case, advance)
            for label, method in methods.items():
                answered[label].append(runs.answer(arranged, method))
    except KeyboardInterrupt:
        finished = min(map(len, answered.values()))
        if finished < MIN_QUESTIONS:
            raise
        cases, case_orders = cases[:finished], case_orders[:finished]
        answered = {label: rows[:finished] for label, rows in answered.items()}
    first = next(iter(answered.values()))
    outcomes = {label: _summarise(cases, case_orders, methods[label], rows, first) for label, rows in answered.items()}
    if not any(any(outcome.accuracy_by_order or ()) for outcome in outcomes.values()):
        outcomes = {label: replace(outcome, rightness=None) for label, outcome in outcomes.items()}
    return Audit(outcomes, len(cases), max(map(len, case_orders)))


class _CaseRuns:
    """Run one question in several orders with several methods. Identical greedy computations run only once.

    ``advance`` is called with the number of answers that were just computed or copied.
    """

    def __init__(self, case: AuditCase, advance: Callable[[int], None]) -> None:
        self._case = case
        self._advance = advance
        self._computed: dict[Hashable, Generation] = {}

    def answer(self, orders: Sequence[Sequence[int]], method: Method) -> Answers:
        """Answer the question in all orders, then again in the retrieved order.

        The repetitions copy the first answer if equal requests always get equal answers. They also copy it if decoding
        is greedy and all orders run the same computation.
        """
        case = self._case
        requests = [case.request(order, method) for order in orders]
        ran = requests[0].report.method_ran in ({method.name, "none"} if method.selective else {method.name})
        by_order = self._answer_texts(requests)
        count = case.count_repetitions(len(orders))
        if case.exact or (case.greedy and len(set(map(_computation_key, requests))) == 1):
            self._advance(count)
            return Answers(by_order, by_order[:1] * (1 + count), ran)
        repeated = self._answer_texts(requests[:1] * count, first_attempt=1)
        return Answers(by_order, [by_order[0], *repeated], ran)

    def _answer_texts(self, requests: Sequence[Request], first_attempt: int = 0) -> list[str]:
        if not self._case.greedy:
            generations = generate_answers(self._case, requests, first_attempt)
            self._advance(len(requests))
            return [generation.text for generation in generations]
        keys = [(first_attempt, _computation_key(request)) for request in requests]
        missing = {key: request for key, request in zip(keys, requests, strict=True) if key not in self._computed}
        if missing:
            generations = generate_answers(self._case, list(missing.values()))
            self._computed.update(zip(missing, generations, strict=True))
        self._advance(len(requests))
        return [self._computed[key].text for key in keys]


def _computation_key(request: Request) -> Hashable:
    """Return a key of a request's tokens and method. Requests with equal keys run the same computation."""
    if not request.tokens.ids:  # the model runs elsewhere
        return request.prompt.flat.text
    method = request.method
    prompts = [candidate.tokens for candidate in request.candidates()]
    if isinstance(method, AttentionMethod) and method.invariant:  # these methods read a canonical order
        prompts = [prompt.reordered(method.document_order(prompt.documents)) for prompt in prompts]
    if method.is_plain or isinstance(method, ReorderingMethod):  # these run the plain model
        return "", *(tuple(prompt.ids) for prompt in prompts)
    return str(method), *((*prompt.ids, *prompt.spans) for prompt in prompts)


def _summarise(
    cases: Sequence[AuditCase],
    case_orders: Sequence[Sequence[Sequence[int]]],
    method: Method,
    rows: Sequence[Answers],
    first: Sequence[Answers],
) -> Outcome:
    """Summarise ``rows``, the answers of one method. ``first`` contains the answers of the unchanged pipeline."""
    sources = [
        [find_source(text, case.prompt.documents, case.question.question) for text in answers.by_order]
        for case, answers in zip(cases, rows, strict=True)
    ]
    answered = [(case.question, answers, plain) for case, answers, plain in zip(cases, rows, first, strict=True)]
    labelled = [entry for entry in answered if entry[0].answers]
    right = [[is_right(question, text) for text in answers.by_order] for question, answers, _ in labelled]
    right_before = [is_right(question, plain.by_order[0]) for question, _, plain in labelled]
    gains = [float(flags[0]) - before for flags, before in zip(right, right_before, strict=True)]
    by_order = [fmean(flag for flag in flags if flag is not None) for flags in zip_longest(*right)]
    same = [same_answer(answers.by_order[0], plain.by_order[0]) for _, answers, plain in answered]
    enough = len(labelled) >= MIN_QUESTIONS
    return Outcome(
        method=method,
        answer_flips=_measure_flips([(Question(question.question), answers) for question, answers, _ in answered]),
        rightness=_measure_flips([(question, answers) for question, answers, _ in labelled]) if enough else None,
        preference=measure_position_preference(sources, case_orders),
        accuracy_by_order=by_order or None,
        changed=estimate_mean([float(not each) for each in same]),
        better=estimate_mean(gains, least=-1) if enough else None,
        ran=sum(answers.ran for answers in rows) / len(rows),
        answers=rows,
    )


def _measure_flips(pairs: Sequence[tuple[Question, Answers]]) -> Flips:
    return Flips.of(
        [float(answers_differ(question, answers.by_order)) for question, answers in pairs],
        [float(answers_differ(question, answers.repeated)) for question, answers in pairs],
    )


def is_right(question: Question, answer: str) -> bool:
    """Whether the answer contains an accepted answer of the question."""
    return best_subspan_em(answer.strip(), question.answers) == 1


def answers_differ(question: Question, answers: Sequence[str]) -> bool:
    """Whether some answers are right and others wrong or, without accepted answers, whether any two differ."""
    if question.answers:
        return len({is_right(question, answer) for answer in answers}) > 1
    return any(not same_answer(*pair) for pair in combinations(answers, 2))


def estimate_mean(values: Sequence[float], least: float = 0.0) -> Interval:
    """Compute the mean of values between ``least`` and 1, with its 95% interval.

    If all ``n`` values are equal, resampling gives no interval. Then the interval is the mean plus and minus
    ``p = 1 - 0.05^(1/n)``. Reason: even if other values had a share ``p`` in the population, a sample of size ``n``
    would miss all of them with a probability of 5%.
    """
    if len(set(values)) > 1:
        return share({str(index): value for index, value in enumerate(values)})
    (estimate,) = set(values)
    reach = 1 - 0.05 ** (1 / len(values))
    return Interval(estimate, max(least, estimate - reach), min(1.0, estimate + reach))


def measure_position_preference(
    sources: Sequence[Sequence[int | None]], orders: Sequence[Sequence[Sequence[int]]]
) -> PositionPreference:
    """Measure the share of answers from each part of the prompt, minus the expected share.

    Parts are up to ``MAX_PARTS`` equal ranges of positions. The source of an answer is the document that it comes from.
    The expected share assumes that sources do not depend on the order. It is computed from all pairs of a source and an
    order of the same question. Answers without a known source are left out. Questions with fewer than two remaining
    answers are skipped, because one answer always has the expected share.

    Args:
        sources: ``sources[q][k]`` is the source of the answer to question ``q`` in order ``k``, as an index. None if
            the source is unknown.
        orders: ``orders[q][k][i]`` is the index of the document at position ``i`` in order ``k`` of question ``q``.
    """
    parts = min(MAX_PARTS, *(len(arranged[0]) for arranged in orders))
    excess: dict[str, list[float]] = {}
    answer_count = 0
    for index, (documents, arranged) in enumerate(zip(sources, orders, strict=True)):
        pairs = [(order, document) for order, document in zip(arranged, documents, strict=True) if document is not None]
        if len(pairs) < 2:
            continue
        answer_count += len(pairs)
        counts = np.zeros(parts)
        for order, document in pairs:
            part = [position * parts // len(order) for position in np.argsort(order)]  # of each document
            counts[part[document]] += len(pairs)
            for _, other in pairs:
                counts[part[other]] -= 1
        excess[str(index)] = (counts / len(pairs) ** 2).tolist()  # the counts are whole numbers, so 0 is exact
    enough = len(excess) >= MIN_QUESTIONS
    intervals = [
        share({name: values[part] for name, values in excess.items()}) for part in range(parts if enough else 0)
    ]
    return PositionPreference(answer_count, sum(map(len, sources)), intervals)
