"""Which places answers are taken from, told without labels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ragbias.evaluation.audit.asking import Subject
from ragbias.evaluation.statistics import FEWEST, Interval, share
from ragbias.methods import Method, PermutationVote
from ragbias.report import Generation
from ragbias.scoring import logprobs_of

BINS = 5  # parts that the places are counted in
PLACES = ("first", "middle", "last")


@dataclass(frozen=True)
class Lean:
    """Which places the answers are taken from, against a model that takes them wherever they stand.

    Attributes:
        attributed: share of answers whose document could be told.
        questions: those with at least one such answer.
        excess: for each part of the places, from the first to the last: share of answers taken from there, less the
            share expected if the order did not matter; the parts sum to 0.
    """

    attributed: float
    questions: int
    excess: list[Interval]


def lean(sources: Sequence[Sequence[int | None]], orders: Sequence[Sequence[Sequence[int]]]) -> Lean | None:
    """How much oftener answers come from each fifth of the places than they would if the order did not matter.

    For a question, ``s_k`` is the document that the answer under order ``k`` was taken from and ``p_k(s)`` the place
    of document ``s`` there. The share observed is that of ``k`` with ``p_k(s_k)`` in the part; the one expected is that
    of all pairs ``k, l`` with ``p_k(s_l)`` in the part, the same documents under any order. Where the order does not
    matter the two are equal, whatever the retriever's ranking.

    Args:
        sources: by question and order, indices of documents as retrieved.
        orders: by question; ``orders[q][k][i]`` is the document at place ``i``.

    Returns:
        None for too few questions with a known source.
    """
    parts = min(BINS, *(len(each[0]) for each in orders))
    excess: dict[str, list[float]] = {}
    for index, (own, arranged) in enumerate(zip(sources, orders, strict=True)):
        known = [(order, document) for order, document in zip(arranged, own, strict=True) if document is not None]
        if not known:
            continue
        row = np.zeros(parts)
        for order, document in known:
            part = [place * parts // len(order) for place in np.argsort(order)]  # of each document
            row[part[document]] += len(known)
            for _, other in known:
                row[part[other]] -= 1
        excess[str(index)] = (row / len(known) ** 2).tolist()  # whole numbers until here, so that 0 is exact
    if len(excess) < FEWEST:
        return None
    count = sum(document is not None for own in sources for document in own)
    intervals = [share({name: row[part] for name, row in excess.items()}) for part in range(parts)]
    return Lean(count / sum(map(len, sources)), len(excess), intervals)


def logprob_by_place(
    subjects: Sequence[Subject],
    answers: Sequence[Generation],
    sources: Sequence[int | None],
    method: Method,
    progress: Callable[[int], None] = lambda done: None,
) -> dict[str, Interval] | None:
    """Log-probability (nats) of each question's first answer, as the document it was taken from is moved.

    That document is put first, in the middle and last, the others stay as retrieved. Each log-probability is taken
    minus the mean of the three, and averaged over questions.

    Returns:
        None for a vote, which gives no probabilities, and for too few questions with a known source.
    """
    moved: dict[str, list[float]] = {}
    for index, (subject, answer, document) in enumerate(zip(subjects, answers, sources, strict=True)):
        progress(1)
        if isinstance(method, PermutationVote) or document is None or not answer.token_ids:
            continue
        model, count = subject.asked.lm.model, len(subject.asked.request.origin.tokens.documents)
        others = [other for other in range(count) if other != document]
        totals = []
        for place in (0, (count - 1) // 2, count - 1):
            request = subject.request([*others[:place], document, *others[place:]], method)
            totals.append(sum(logprobs_of(model, request, answer.token_ids)))
        moved[str(index)] = [total - sum(totals) / 3 for total in totals]
    if len(moved) < FEWEST:
        return None
    return {place: share({name: row[at] for name, row in moved.items()}) for at, place in enumerate(PLACES)}
