"""Multiply attention weights by factors, in the scores of the plain model or after any method."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from ragbias import attention
from ragbias.errors import MethodError
from ragbias.methods import AttentionCall, AttentionMethod
from ragbias.methods.base import QUERIES_AT_ONCE

if TYPE_CHECKING:
    from torch import Tensor


class Reweighting(NamedTuple):
    """Factors for the attention weights of some queries of a sequence: one factor per key.

    Attributes:
        queries: bool ``[K]``, whether each token so far is one of the queries.
        factors: float32 ``[K]``, a factor for each key.
        renormalised: whether the sum of a query's weights is preserved.
    """

    queries: Tensor
    factors: Tensor
    renormalised: bool


def replace_value(call: AttentionCall, value: Tensor) -> AttentionCall:
    """Return the call with other values ``[batch, G, K, d]``."""

    def plain(query: Tensor, key: Tensor, value: Tensor = value) -> Tensor:
        return call.plain(query, key, value)

    return replace(call, value=value, plain=plain)


def attend_with_bias(
    call: AttentionCall,
    changes: Sequence[Sequence[Reweighting]],
    query: Tensor,
    key: Tensor,
    value: Tensor | None = None,
) -> Tensor:
    """Compute the model's attention ``[batch, Q, H, d]`` with the logarithms of the factors added to its scores.

    Args:
        call: call whose queries and keys are already rotated to their positions.
        changes: renormalised changes, each with an entry per sequence.
        query, key, value: as in ``call.plain``.
    """
    value = call.value if value is None else value
    output = call.plain(query, key, value)
    for index, layout in enumerate(call.layouts):
        own = [change[index] for change in changes]
        new, count = query.shape[2], key.shape[2] - layout.pad
        for positions in _changed_queries(own, count, min(new, count)):
            scores = attention.segment_scores(
                query[index][:, positions - count],
                key[index, :, layout.pad :],
                positions=positions,
                scoring=call.scorings[index],
                bounds=(positions * 0, positions + 1),
            )
            for each in own:
                scores[:, each.queries[positions]] += each.factors.log()
            weighed, _ = attention.torch_backend.weigh(scores, value[index, :, layout.pad :])
            output[index, positions - count] = weighed.transpose(0, 1)
    return output


def _changed_queries(changes: Sequence[Reweighting], count: int, new: int) -> Sequence[Tensor]:
    """Return the indices of changed queries among the last ``new`` of ``count`` tokens, in blocks."""
    import torch

    if not changes:
        return []
    changed = torch.stack([each.queries for each in changes]).any(0)
    positions = changed[count - new :].nonzero()[:, 0] + count - new
    return positions.split(QUERIES_AT_ONCE) if len(positions) else []


def reweight(method: AttentionMethod, call: AttentionCall, changes: Sequence[Sequence[Reweighting]]) -> Tensor:
    """Compute a method's output with changed weights. Each change has an entry per sequence.

    The output of any method is linear in the values. So multiplying the value of a key multiplies the weight on it. If
    all values are one, the output is the sum of the weights.

    Raises:
        MethodError: a query has weight only on hidden keys, so it cannot be renormalised.
    """
    import torch

    if not changes:
        return method.attention(call)
    *before, change = changes
    output = reweight(method, call, before)
    columns, new = call.key.shape[2], call.query.shape[2]
    queries = torch.zeros(len(change), columns, dtype=torch.bool, device=output.device)
    factors = torch.ones(len(change), columns, dtype=call.value.dtype, device=call.value.device)
    for index, (layout, each) in enumerate(zip(call.layouts, change, strict=True)):
        queries[index, layout.pad :] = each.queries
        factors[index, layout.pad :] = each.factors
    queries = queries[:, columns - new :, None, None]
    if not queries.any():
        return output
    by_key = factors[:, None, :, None]
    changed = reweight(method, replace_value(call, call.value * by_key), before)
    if change[0].renormalised:
        ones = torch.zeros_like(call.value)
        ones[..., :2] = torch.cat([by_key, torch.ones_like(by_key)], -1)
        now, was = reweight(method, replace_value(call, ones), before)[..., :2].float().split(1, -1)
        if ((now == 0) & queries).any():
            raise MethodError(
                f"{method.name}: in layer {call.layer} a query has weight only on hidden keys; hide fewer keys, or "
                "hide them on the plain model, where the intervention changes scores instead of weights"
            )
        changed = (changed * (was / now)).to(output.dtype)
    return torch.where(queries, changed, output)
