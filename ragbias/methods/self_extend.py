"""Self-Extend, Jin et al., arXiv 2401.01325."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from ragbias import attention
from ragbias.checks import Bounds, check_whole_between
from ragbias.methods.base import AttentionCall, SequenceCall, Tensor, attend_each
from ragbias.methods.compose import Reweightable
from ragbias.methods.siw import SIW


@dataclass(frozen=True)
class SelfExtend(Reweightable):
    """Group the positions of far keys. Keys less than ``window`` positions away have their true positions.

    For a far key ``j``, query ``i`` has the position ``floor(i / group) + window - floor(window / group)``, and the key
    has the position ``floor(j / group)``. One softmax runs over near and far keys.

    Args:
        group: number of positions in a group, 1 to 1,000,000; 1 changes nothing.
        window: number of near positions, including that of the query, 1 to 10,000,000.
    """

    group: int = 4
    window: int = 1024

    name = "self-extend"
    needs_documents = False
    needs_rotary = True
    cost = "a second rotation of queries and keys, and separate scores for far keys"
    source = "Jin et al., arXiv 2401.01325"

    def __post_init__(self) -> None:
        check_whole_between("self-extend: group", self.group, Bounds(1, 1_000_000))
        check_whole_between("self-extend: window", self.window, Bounds(1, 10_000_000))

    def attend_sequence(self, seq: SequenceCall) -> tuple[Tensor, Tensor]:
        total, new = seq.key.shape[1], seq.query.shape[1]
        i = seq.arange(total - new, total)
        scoring = replace(seq.scoring, window=None)
        reach = total if seq.scoring.window is None else seq.scoring.window
        window = min(self.window, total)
        first = max(0, total - new - window + 1)  # first near key of any query
        near_keys = seq.encoded("near", lambda x, begin: scoring.encoding(x, seq.arange(begin, total)))
        near = attention.attend(
            seq.query,
            near_keys[:, first:],
            seq.value[:, first:],
            positions=i,
            scoring=scoring,
            bounds=((i - min(window, reach) + 1).clamp_min(first) - first, i + 1 - first),
        )
        far_keys = seq.encoded("far", lambda x, begin: scoring.encoding(x, seq.arange(begin, total) // self.group))
        last = total - window  # end of the far keys of all queries
        if last <= 0 or reach <= window:
            return near
        sees_far = i >= window
        far_i = i[sees_far]
        far = attention.attend(
            seq.query[:, sees_far],
            far_keys[:, :last],
            seq.value[:, :last],
            positions=self._shifted(far_i),
            scoring=scoring,
            bounds=((far_i - reach + 1).clamp_min(0), far_i - window + 1),
        )
        output, lse = near
        near = output[:, sees_far], lse[:, sees_far]
        output[:, sees_far], lse[:, sees_far] = attention.merge([near, far])
        return output, lse

    def reweighted(self, call: AttentionCall, by: SIW) -> Tensor:
        return attend_each(call, lambda seq: by.corrected(seq, *self.attend_sequence(seq), self.scores))

    def scores(self, seq: SequenceCall, query: Tensor, i: Tensor, count: int) -> Tensor:
        """Score the first ``count`` keys for queries ``[H, Q, d]`` at positions ``i``: ``[H, Q, count]``."""
        j, scoring = seq.arange(count), replace(seq.scoring, window=None)
        keys = seq.key[:, :count]
        if self.window >= seq.key.shape[1]:  # all keys are near
            return attention.segment_scores(query, scoring.encoding(keys, j), positions=i, scoring=seq.scoring)
        near_keys = scoring.encoding(keys, j)
        near = attention.segment_scores(query, near_keys, positions=i, scoring=scoring)
        far_keys = scoring.encoding(keys, j // self.group)
        far = attention.segment_scores(query, far_keys, positions=self._shifted(i), scoring=scoring)
        distance = i[:, None] - j
        scores = near.where(distance < self.window, far)
        reach = seq.scoring.window
        return scores if reach is None else scores.masked_fill(distance >= reach, -math.inf)

    def _shifted(self, positions: Tensor) -> Tensor:
        """Return the positions of queries for far keys, see the class."""
        return positions // self.group + self.window - self.window // self.group
