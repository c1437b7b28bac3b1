"""In-context re-ranking, Chen et al., arXiv 2410.02642."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, stdev
from typing import Any

from ragbias import attention
from ragbias.checks import check_not_cancelled
from ragbias.methods.base import (
    QUERIES_AT_ONCE,
    AttentionMethod,
    DocumentScorer,
    Ranking,
    ReorderingMethod,
    SequenceCall,
    Tensor,
)

OUTLIER = 2  # number of standard deviations below the mean from which tokens are dropped


@dataclass(frozen=True)
class InContextReranking(ReorderingMethod):
    """Sort the documents by the attention that the query adds to them, highest first.

    ``a(t)`` is the attention to token ``t``, averaged over the tokens after the documents and summed over layers and
    heads. ``x(t)`` is ``a(t)`` with the query minus ``a(t)`` with "N/A" as the query. A document's score is the sum of
    ``x(t)`` over its tokens without outliers. Outliers are at least two standard deviations (``n - 1`` in the
    denominator) below the document's mean. One pass measures both values of ``a(t)``, see ``QueryContrast``.
    """

    name = "icr"
    cost = "one more prefill"
    source = "Chen et al., arXiv 2410.02642"

    def rank(self, documents: Sequence[Sequence[int]], scorer: DocumentScorer) -> Ranking:
        scores = [_score(contrast) for contrast in scorer.contrast()]
        best_first = sorted(range(len(scores)), key=lambda index: -scores[index])
        return Ranking(tuple(best_first), tuple(scores))


def _score(contrast: Sequence[float]) -> float:
    """Sum the values without outliers."""
    if len(contrast) == 1:
        return contrast[0]
    least = mean(contrast) - OUTLIER * stdev(contrast)
    return sum(value for value in contrast if value > least)


class QueryContrast(AttentionMethod):
    """The plain model. It measures ``x(t)`` on a prompt with an appended copy of its end, in which the query is "N/A".

    ``queries`` is the span of the original end, after the documents. The copy begins at the same position and does not
    see the original. ``found`` is ``x``, float64, for each token before ``queries``.
    """

    name = "query-contrast"
    cost = "the scores of the queries after the documents"
    source = "Chen et al., arXiv 2410.02642"

    def __init__(self, queries: tuple[int, int], cancelled: threading.Event | None = None) -> None:
        self._begin, self._end = queries
        self._cancelled = cancelled
        self.found: Tensor | None = None

    def attend_sequence(self, seq: SequenceCall, prefill: bool) -> tuple[Tensor, Tensor]:
        import torch

        check_not_cancelled(self._cancelled)
        begin, end, total = self._begin, self._end, seq.key.shape[1]
        first, second = seq.arange(end), seq.arange(begin, begin + total - end)
        keys = seq.scoring.encoding(seq.key, torch.cat((first, second - begin)))
        parts = []
        for queries, positions, segments, starts, sign in (
            (slice(0, end), first, [(0, end)], [0], 1),
            (slice(end, total), second, [(0, begin), (end, total)], [0, begin], -1),
        ):
            seen: dict[str, Any] = dict(scoring=seq.scoring, segments=segments, starts=first.new_tensor([[starts]]))
            query = seq.query[:, queries]
            parts.append(seq.attend(query, keys, positions=positions, causal=True, **seen))
            last = positions[positions >= begin]
            found = sign * _attention(query[:, -len(last) :], keys, last, seen, begin)
            self.found = found if self.found is None else self.found + found
        return attention.keys.concatenate(parts)


def _attention(query: Tensor, keys: Tensor, positions: Tensor, seen: dict[str, Any], count: int) -> Tensor:
    """Return the attention of queries ``[H, Q, d]`` at the end of a segment to the first ``count`` keys, float64."""
    import torch

    begin, end = seen["segments"][-1]
    first_not_seen = torch.arange(end - begin - len(positions) + 1, end - begin + 1, device=positions.device)
    total = torch.zeros(count, dtype=torch.float64)
    for at in range(0, len(positions), QUERIES_AT_ONCE):
        block = slice(at, at + QUERIES_AT_ONCE)
        bounds = torch.zeros_like(first_not_seen[block]), first_not_seen[block]
        scores = attention.segment_scores(query[:, block], keys, positions=positions[block], bounds=bounds, **seen)
        total += scores.softmax(-1)[..., :count].sum((0, 1)).double().cpu()
    return total / len(positions)
