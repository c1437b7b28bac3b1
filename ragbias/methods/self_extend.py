"""Self-Extend.

Source: Jin et al., LLM Maybe LongLM: Self-Extend LLM Context Window Without Tuning, arXiv 2401.01325.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ragbias.attention import attend, merge, placed_scores
from ragbias.checks import check_whole
from ragbias.methods.base import AttentionMethod

if TYPE_CHECKING:
    from ragbias.binding.call import RowCall


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

    def attend_row(self, row: RowCall, prefill: bool) -> tuple[Tensor, Tensor]:
        total, new = row.key.shape[1], row.query.shape[1]
        keys = torch.arange(total, device=row.key.device)
        queries, scoring = keys[-new:], replace(row.scoring, window=None)
        distance = queries[:, None] - keys
        reach = total if row.scoring.window is None else row.scoring.window
        first = max(0, total - new - self.window + 1)  # no query sees a near key before this one
        near = attend(
            row.query,
            scoring.encoding.key(row.key[:, first:], keys[first:]),
            row.value[:, first:],
            positions=queries,
            starts=keys.new_zeros(1, 1, 1),
            lengths=[total - first],
            scoring=scoring,
            visible=((distance >= 0) & (distance < min(self.window, reach)))[:, first:],
        )
        far, last = queries >= self.window, total - self.window  # queries that see far keys, and the end of those
        if last <= 0 or reach <= self.window:
            return near
        over_far = attend(
            row.query[:, far],
            scoring.encoding.key(row.key[:, :last], self._grouped(keys[:last])),
            row.value[:, :last],
            positions=self._shifted(queries[far]),
            starts=keys.new_zeros(1, 1, 1),
            lengths=[last],
            scoring=scoring,
            visible=((distance >= self.window) & (distance < reach))[far, :last],
        )
        output, lse = near
        output[:, far], lse[:, far] = merge([(output[:, far], lse[:, far]), over_far])
        return output, lse

    def scores(self, row: RowCall, query: Tensor, positions: Tensor, count: int) -> Tensor:
        """Scores of queries ``[H, Q, d]`` at ``positions`` with the first ``count`` keys: float32 ``[H, Q, count]``."""
        keys, encoding = torch.arange(count, device=query.device), row.scoring.encoding
        distance = positions[:, None] - keys
        near, far = (
            placed_scores(
                query,
                encoding.key(row.key[:, :count], at),
                positions=stand,
                starts=keys.new_zeros(1, 1, 1),
                lengths=[count],
                scoring=replace(row.scoring, window=None),
            )
            for at, stand in ((keys, positions), (self._grouped(keys), self._shifted(positions)))
        )
        reach = row.scoring.window
        scores = torch.where(distance < self.window, near, far)
        return scores if reach is None else scores.masked_fill(distance >= reach, -torch.inf)

    def _grouped(self, positions: Tensor) -> Tensor:
        return positions // self.group

    def _shifted(self, positions: Tensor) -> Tensor:
        """Where a query stands for far keys."""
        return positions // self.group + self.window - self.window // self.group
