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

OUTLIER = 2  # outliers are at least this number of standard deviations below the mean


@dataclass(frozen=True)
class InContextReranking(ReorderingMethod):
    """Sort the documents by the additional attention that they get from the query, highest first.

    ``a(t)`` is the attention to token ``t``, averaged over the tokens after the documents and summed over layers and
    heads. ``b(t)`` is this attention if the query is "N/A". One forward pass measures both, and ``x(t) = a(t) - b(t)``.
    A document's score is the sum of ``x(t)`` over its tokens. The sum leaves out outliers, which are at least two
    sample standard deviations below the document's mean.
    """

    name = "icr"
    cost = "one more prefill"
    source = "Chen et al., arXiv 2410.02642"

    def rank(self, documents: Sequence[Sequence[int]], scorer: DocumentScorer) -> Ranking:
        scores = [_sum_without_outliers(contrast) for contrast in scorer.contrast()]
        best_first = sorted(range(len(scores)), key=lambda index: -scores[index])
        return Ranking(tuple(best_first), tuple(scores))


def _sum_without_outliers(contrast: Sequence[float]) -> float:
    if len(contrast) == 1:
        return contrast[0]
    least = mean(contrast) - OUTLIER * stdev(contrast)
    return sum(value for value in contrast if value > least)


class QueryContrast(AttentionMethod):
    """The plain model. One forward pass also measures ``x(t)`` of ``InContextReranking``.

    The text after the documents is appended once more, with "N/A" as the query. This copy begins at the same position
    as the original text, and does not attend to it. ``queries`` is the span of the original text. ``contrast`` is ``x``
    for all tokens before ``queries``, float64.
    """

    name = "query-contrast"
    cost = "the scores of the queries after the documents"
    source = "Chen et al., arXiv 2410.02642"

    def __init__(self, queries: tuple[int, int], cancelled: threading.Event | None = None) -> None:
        self._begin, self._end = queries
        self._cancelled = cancelled
        self.contrast: Tensor | None = None

    def attend_sequence(self, seq: SequenceCall) -> tuple[Tensor, Tensor]:
        import torch

        check_not_cancelled(self._cancelled)
        begin, end, total = self._begin, self._end, seq.key.shape[1]
        original = seq.arange(end)  # positions of the prompt
        copy = seq.arange(begin, begin + total - end)  # positions of the copied text
        keys = seq.scoring.encoding(seq.key, torch.cat((original, copy - begin)))

        def measure(
            query: Tensor, positions: Tensor, segments: attention.keys.Segments, starts: list[int]
        ) -> tuple[tuple[Tensor, Tensor], Tensor]:
            """Return the output of the queries, and the attention of the text after the documents to earlier keys."""
            options: dict[str, Any] = dict(scoring=seq.scoring, segments=segments)
            options["starts"] = positions.new_tensor([[starts]])
            output = seq.attend(query, keys, positions=positions, causal=True, **options)
            last = positions[positions >= begin]
            return output, _attention(query[:, -len(last) :], keys, last, options, begin)

        output, with_query = measure(seq.query[:, :end], original, [(0, end)], [0])
        output_of_copy, without_query = measure(seq.query[:, end:], copy, [(0, begin), (end, total)], [0, begin])
        if self.contrast is not None:  # of earlier layers
            with_query = self.contrast + with_query
        self.contrast = with_query - without_query
        return attention.keys.concatenate([output, output_of_copy])


def _attention(query: Tensor, keys: Tensor, positions: Tensor, options: dict[str, Any], count: int) -> Tensor:
    """Return the attention to each of the first ``count`` keys, summed over heads and averaged over queries."""
    import torch

    lower, upper = attention.keys.causal_bounds(options["segments"], len(positions), positions.device)
    total = torch.zeros(count, dtype=torch.float64)
    for first in range(0, len(positions), QUERIES_AT_ONCE):
        block = slice(first, first + QUERIES_AT_ONCE)
        bounds = lower[block], upper[block]
        scores = attention.segment_scores(query[:, block], keys, positions=positions[block], bounds=bounds, **options)
        total += scores.softmax(-1)[..., :count].sum((0, 1)).double().cpu()
    return total / len(positions)
