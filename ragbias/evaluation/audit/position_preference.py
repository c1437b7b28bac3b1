"""The positions that answers come from, found without labels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ragbias.evaluation.audit.cases import AuditCase
from ragbias.evaluation.measures.bootstrap import FEWEST, Interval, share
from ragbias.generation.report import Generation
from ragbias.generation.scoring import logprobs_of
from ragbias.methods import Method

BINS = 5  # equal parts of the context that positions are counted in
POSITIONS = ("first", "middle", "last")


@dataclass(frozen=True)
class PositionPreference:
    """The positions that answers come from, against a model without preference.

    Attributes:
        answers: number of answers whose document is known, in two or more orders of the question.
        asked: number of all answers.
        questions: number of questions with such answers.
        excess: for each part of the positions, from the first to the last: share of answers from there minus the
            share expected if the order did not matter; the parts sum to 0. Empty with too few questions.
    """

    answers: int
    asked: int
    questions: int
    excess: list[Interval]


def position_preference(
    sources: Sequence[Sequence[int | None]], orders: Sequence[Sequence[Sequence[int]]]
) -> PositionPreference:
    """How much more often answers come from each fifth of the positions than they would if the order did not matter.

    For a question, ``s_k`` is the document that the answer under order ``k`` was taken from and ``p_k(s)`` the position
    of document ``s`` there. The share observed is that of ``k`` with ``p_k(s_k)`` in the part; the one expected is that
    of all pairs ``k, l`` with ``p_k(s_l)`` in the part, the same documents under any order. Where the order does not
    matter the two are equal, whatever the retriever's ranking. A question with one known source is left out, as there
    the two are equal anyway.

    Args:
        sources: by question and order, indices of documents as retrieved.
        orders: by question; ``orders[q][k][i]`` is the document at position ``i``.
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
    """Log-probability (nats) of each question's first answer, as the document it was taken from is moved.

    That document is put first, in the middle and last among the others in retrieved order. Each log-probability is
    taken minus the mean of the three, and averaged over questions.

    Returns:
        None for a vote, which has no probabilities, and with too few questions of known source.
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
