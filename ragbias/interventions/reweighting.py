"""Weights of attention multiplied by factors: in the scores of the plain model, or on top of any method."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from ragbias import attention
from ragbias.errors import MethodError
from ragbias.methods.base import QUERIES_AT_ONCE, AttentionMethod

if TYPE_CHECKING:
    from torch import Tensor

    from ragbias.methods.call import AttentionCall


class Reweighting(NamedTuple):
    """Weights of some queries of a sequence, multiplied by a factor for each key.

    Attributes:
        queries: bool ``[K]``, which of the tokens so far they are.
        factors: float32 ``[K]``.
        renormalised: whether the weights of a query shall sum to what they summed to before.
    """

    queries: Tensor
    factors: Tensor
    renormalised: bool


def biased(
    call: AttentionCall,
    changes: Sequence[Sequence[Reweighting]],
    query: Tensor,
    key: Tensor,
    value: Tensor | None = None,
) -> Tensor:
    """The model's attention ``[batch, Q, H, d]`` with the logarithms of factors added to its scores.

    Args:
        call: its scorings do not rotate queries and keys any more.
        changes: each for every sequence of the batch, all of them renormalised.
        query, key, value: as of ``call.plain``.
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
            output[index, positions - count] = attention.weigh(scores, value[index, :, layout.pad :])[0].transpose(0, 1)
    return output


def _changed_queries(changes: Sequence[Reweighting], count: int, new: int) -> Sequence[Tensor]:
    """Positions of the queries whose weights are changed, among the last ``new`` of ``count``, in parts."""
    import torch

    if not changes:
        return []
    changed = torch.stack([each.queries for each in changes]).any(0)
    positions = changed[count - new :].nonzero()[:, 0] + count - new
    return positions.split(QUERIES_AT_ONCE) if len(positions) else []


def reweighted(method: AttentionMethod, call: AttentionCall, changes: Sequence[Sequence[Reweighting]]) -> Tensor:
    """A method's output with changed weights, where each change has an entry for every sequence of the batch.

    It is linear in the values, whatever the method does. So multiplying the values of keys multiplies the weights on
    them, and the attention of ones is the sum of the weights.

    Raises:
        MethodError: a query's weights on what is left of the keys are all 0, so they cannot be made to sum to 1.
    """
    import torch

    if not changes:
        return method.attention(call)
    *before, change = changes
    output = reweighted(method, call, before)
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
    changed = reweighted(method, call.with_value(call.value * by_key), before)
    if change[0].renormalised:
        ones = torch.zeros_like(call.value)
        ones[..., :2] = torch.cat([by_key, torch.ones_like(by_key)], -1)
        now, was = reweighted(method, call.with_value(ones), before)[..., :2].float().split(1, -1)
        if ((now == 0) & queries).any():
            raise MethodError(
                f"{method.name}: in layer {call.layer} all the weight of a query lies on the keys to be hidden, so "
                "nothing is left of it; hide fewer keys, or on the plain model, where scores are changed instead"
            )
        changed = (changed * (was / now)).to(output.dtype)
    return torch.where(queries, changed, output)
