"""Scaling of a positional hidden channel.

Source: Yu et al., Mitigate Position Bias in Large Language Models via Scaling a Single Dimension, arXiv 2406.02536.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from ragbias.attention import attend, causal_mask
from ragbias.errors import MethodError
from ragbias.methods.base import AttentionMethod, LayerRange, check_finite, check_whole

if TYPE_CHECKING:
    from ragbias.binding.call import AttentionCall


@dataclass(frozen=True)
class ChannelScaling(AttentionMethod):
    """Queries of the last token and all keys are computed with one channel of the hidden state scaled.

    ``h'`` is ``h`` (the output of the layer norm before attention) with channel ``c`` multiplied by ``s``; ``q', k'``
    come from ``h'``, ``v`` from ``h``. In the prefill all rows are plain attention of ``(q, k, v)``, then the last row
    is replaced by attention of ``(q', k', v)``. The cache holds ``k'`` only, so every token that follows attends as the
    last one did, at no cost.

    Args:
        channel: index ``c`` into the hidden state.
        factor: ``s``; 0 removes the channel, 1 changes nothing.
        layers: first and last layer, both included; ``None`` as last: to the end.
        last: number of rows at the end of the prompt that are recomputed, or ``"all"``.
    """

    channel: int
    factor: float
    layers: LayerRange | None
    last: int | Literal["all"] = 1

    name = "channel-scaling"
    needs_documents = False
    positions = "model"
    acts_in = "the profile's"
    cost = "one projection of the keys and one row of scores in the prefill; none in decoding"
    source = "Yu et al., arXiv 2406.02536"

    def __post_init__(self) -> None:
        check_whole("channel-scaling: channel", self.channel, 0)
        check_finite("channel-scaling: factor", self.factor)
        if self.last != "all":
            check_whole("channel-scaling: last", self.last, 1)

    @classmethod
    def from_profile(cls, name: str) -> ChannelScaling:
        """The channel, factor and layers that the paper found for a model.

        Args:
            name: a hub name, e.g. ``"mistralai/Mistral-7B-Instruct-v0.2"``; matched without the organisation and
                regardless of case.

        Raises:
            MethodError: there is no profile for this model.
        """
        profiles = json.loads(resources.files("ragbias.calibration").joinpath("profiles.json").read_text())
        wanted = name.rstrip("/").rsplit("/", 1)[-1].lower()
        for known, profile in profiles.items():
            if known.rsplit("/", 1)[-1].lower() == wanted:
                return cls(profile["channel"], profile["factor"], layers=(profile["layers"][0], profile["layers"][1]))
        raise MethodError(
            f"no channel-scaling profile for {name!r}; known: {', '.join(profiles)}. Give channel, factor and layers "
            "yourself: ChannelScaling(channel, factor, layers=(first, last)), as found by `ragbias calibrate`"
        )

    def validate(self, hidden_size: int, n_layers: int) -> None:
        super().validate(hidden_size, n_layers)
        if self.channel >= hidden_size:
            raise MethodError(
                f"channel-scaling: channel={self.channel}, but the hidden state has {hidden_size} channels"
            )

    def key_input(self, hidden: Tensor, layer: int) -> Tensor:
        return self._scaled(hidden) if self._acts_in(layer) else hidden

    def query_input(self, hidden: Tensor, layer: int, prefill: bool) -> Tensor:
        plain = (prefill and self.last != "all") or not self._acts_in(layer)
        return hidden if plain else self._scaled(hidden)

    def attention(self, call: AttentionCall) -> Tensor:
        if not call.prefill or self.last == "all" or not self._acts_in(call.layer):
            return call.plain(call.query, call.key)
        output = call.plain(call.query, call.rotate(call.project_key(call.hidden)))
        last = min(self.last, call.query.shape[2])
        query = call.rotate(call.project_query(self._scaled(call.hidden[:, -last:])))
        for row in call.rows():
            count = row.key.shape[1]
            rows = min(last, count)
            positions = torch.arange(count - rows, count, device=query.device)
            replaced, _ = attend(
                query[row.index, :, -rows:],
                row.key,
                row.value,
                positions=positions,
                starts=positions.new_zeros(1, 1, 1),
                lengths=[count],
                scoring=row.scoring,
                visible=causal_mask(rows, count, query.device),
            )
            output[row.index, -rows:] = replaced.transpose(0, 1)
        return output

    def _acts_in(self, layer: int) -> bool:
        first, last = self.layers or (0, None)
        return first <= layer and (last is None or layer <= last)

    def _scaled(self, hidden: Tensor) -> Tensor:
        scaled = hidden.clone()
        scaled[..., self.channel] *= self.factor
        return scaled
