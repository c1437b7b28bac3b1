"""Self-Extend.

Source: Jin et al., LLM Maybe LongLM: Self-Extend LLM Context Window Without Tuning, arXiv 2401.01325.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ragbias.attention import attend, merge, segment_scores
from ragbias.checks import check_whole
from ragbias.methods.base import AttentionMethod

if TYPE_CHECKING:
    from ragbias.methods.call import SequenceCall


@dataclass(frozen=True)
class SelfExtend(AttentionMethod):
    """Keys less than ``window`` positions away keep their positions, the others are grouped.

    For a far key the query stands at ``floor(i / group) + window - floor(window / group)`` and the key at
    ``floor(j / group)``; one softmax runs over near and far keys.

    Args:
        group: number of positions that become one, >= 1; 1 changes nothing.
        window: number of near positions, the query's own included, >= 1.
    """

    group: int = 4
    window: int = 1024

    name = "self-extend"
    needs_documents = False
    needs_rotary = True
    cost = "a second rotation of queries and keys, and the far scores apart from the near ones"
    source = "Jin et al., arXiv 2401.01325"

    def __post_init__(self) -> None:
        check_whole("self-extend: group", self.group, 1)
        check_whole("self-extend: window", self.window, 1)

    def attend_sequence(self, row: SequenceCall, prefill: bool) -> tuple[Tensor, Tensor]:
        total, new = row.key.shape[1], row.query.shape[1]
        i, scoring = torch.arange(total - new, total, device=row.key.device), replace(row.scoring, window=None)
        reach = total if row.scoring.window is None else row.scoring.window
        window = min(self.window, total)
        first = max(0, total - new - window + 1)  # no query sees a near key before this one
        near = attend(
            row.query,
            row.encoded("near", lambda new, first: scoring.encoding(new, _indices(new, first)))[:, first:],
            row.value[:, first:],
            positions=i,
            scoring=scoring,
            bounds=((i - min(window, reach) + 1).clamp_min(first) - first, i + 1 - first),
        )
        far_keys = row.encoded("far", lambda new, first: scoring.encoding(new, self._grouped(_indices(new, first))))
        last = total - window  # no query sees a far key from this one on
        if last <= 0 or reach <= window:
            return near
        sees_far = i >= window
        far_i = i[sees_far]
        far = attend(
            row.query[:, sees_far],
            far_keys[:, :last],
            row.value[:, :last],
            positions=self._shifted(far_i),
            scoring=scoring,
            bounds=((far_i - reach + 1).clamp_min(0), far_i - window + 1),
        )
        output, lse = near
        output[:, sees_far], lse[:, sees_far] = merge([(output[:, sees_far], lse[:, sees_far]), far])
        return output, lse

    def scores(self, row: SequenceCall, query: Tensor, i: Tensor, count: int) -> Tensor:
        """Scores of queries ``[H, Q, d]`` at positions ``i`` with the first keys, float32 ``[H, Q, count]``."""
        j, scoring = torch.arange(count, device=query.device), replace(row.scoring, window=None)
        if self.window >= row.key.shape[1]:  # all keys are near
            return segment_scores(query, row.scoring.encoding(row.key[:, :count], j), positions=i, scoring=row.scoring)
        near, far = (
            segment_scores(query, scoring.encoding(row.key[:, :count], keys), positions=queries, scoring=scoring)
            for queries, keys in ((i, j), (self._shifted(i), self._grouped(j)))
        )
        distance, reach = i[:, None] - j, row.scoring.window
        scores = torch.where(distance < self.window, near, far)
        return scores if reach is None else scores.masked_fill(distance >= reach, -torch.inf)

    def _grouped(self, positions: Tensor) -> Tensor:
        return positions // self.group

    def _shifted(self, positions: Tensor) -> Tensor:
        """Where a query stands for far keys."""
        return positions // self.group + self.window - self.window // self.group


def _indices(keys: Tensor, first: int) -> Tensor:
    return torch.arange(first, first + keys.shape[1], device=keys.device)
