"""Scaling of a positional hidden channel, Yu et al., arXiv 2406.02536."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from ragbias import limits
from ragbias.checks import Bounds, check_between, check_channel_exists, check_parameters, check_whole_between
from ragbias.display import shown
from ragbias.errors import MethodError
from ragbias.methods.base import AttentionCall, LayerRange, Tensor, in_layers
from ragbias.methods.compose import Reweightable
from ragbias.methods.profiles import Profile, find_profile, profile_of_model
from ragbias.methods.siw import SIW


@dataclass(frozen=True)
class ChannelScaling(Reweightable):
    """Scale one channel of the hidden state in the queries and keys of the last token's attention.

    ``h`` is the output of the layer norm before attention. ``h'`` is ``h`` with channel ``c`` (``channel``) multiplied
    by ``s`` (``factor``). ``q, k, v`` are projections of ``h``, and ``q', k'`` are projections of ``h'``. In the
    prefill, the last token attends with ``(q', k', v)``, and all others attend with ``(q, k, v)``. The cache contains
    ``k'`` instead of ``k``. Therefore generated tokens attend like the last token at no extra cost.

    Args:
        channel: index ``c`` into the hidden state, or a tuple of channels (the paper's ablation has two).
        factor: ``s``; 0 removes the channel, 1 changes nothing.
        layers: first and last layer, both included; ``(2, None)`` ends at the model's last layer.
        last: number of tokens at the end of the prompt that attend with ``(q', k', v)``, or ``"all"``.
    """

    channel: int | tuple[int, ...]
    factor: float
    layers: LayerRange | None
    last: int | Literal["all"] = 1
    # hidden size and number of layers of the profile's model
    _calibrated_for: tuple[int, int] | None = field(default=None, init=False, compare=False, repr=False)

    name = "channel-scaling"
    needs_documents = False
    positions = "model"
    default_layers = "the profile's"
    cost = "one projection of the keys and the scores of one query in the prefill; none in decoding"
    source = "Yu et al., arXiv 2406.02536"

    def __post_init__(self) -> None:
        if isinstance(self.channel, list):
            object.__setattr__(self, "channel", tuple(self.channel))
        for channel in self.channels:
            check_whole_between("channel-scaling: channel", channel, limits.CHANNEL)
        if not self.channels or len(set(self.channels)) < len(self.channels):
            raise MethodError(
                f"channel-scaling: channel={shown(self.channel)}; expected different channels from {limits.CHANNEL}"
            )
        check_between("channel-scaling: factor", self.factor, limits.FACTOR)
        if self.last != "all":
            check_whole_between("channel-scaling: last", self.last, Bounds(1, 10_000_000))

    @classmethod
    def from_profile(cls, profile: str | os.PathLike[str] | Profile, last: int | Literal["all"] = 1) -> ChannelScaling:
        """Create the method from the channel, factor and layers that the paper or ``ragbias calibrate`` found.

        Args:
            profile: a hub name such as ``"mistralai/Mistral-7B-Instruct-v0.2"``, ignoring organisation and
                case; a file from ``ragbias calibrate`` (a path that exists or ends with ``.json``); or a ``Profile``.
            last: see the class.

        Raises:
            MethodError: there is no profile for this model, or the file is invalid. The returned method raises this
                error when it is attached to a model of another shape.
        """
        profile = find_profile(profile)
        method = cls(profile.channel, profile.factor, profile.layers, last)
        object.__setattr__(method, "_calibrated_for", (profile.hidden_size, profile.n_layers))
        return method

    @classmethod
    def from_parameters(cls, parameters: Mapping[str, Any], model_name: str | None) -> ChannelScaling:
        """Create the method from its parameters or from a ``profile``. The default is the model's shipped profile."""
        values = dict(parameters)
        profile = values.pop("profile", None)
        if values.keys() - {"last"}:
            if profile is not None:
                raise MethodError("a profile sets channel, factor and layers; pass only profile and, if needed, last")
            alone = f", or {cls.name!r} alone for the model's profile"
            check_parameters(cls.name, cls, parameters, alone)
            return cls(**parameters)
        default = profile_of_model(model_name or "(unnamed model)") if profile is None else None
        return cls.from_profile(default or profile, **values)

    def validate(self, hidden_size: int, n_layers: int) -> None:
        if self._calibrated_for is not None and self._calibrated_for != (hidden_size, n_layers):
            size, layers = self._calibrated_for
            raise MethodError(
                f"channel-scaling: the profile is for a model of hidden size {size} with {layers} layers, but this one "
                f"has hidden size {hidden_size} and {n_layers} layers; find its own channel with `ragbias calibrate`"
            )
        super().validate(hidden_size, n_layers)
        check_channel_exists("channel-scaling: channel", self.channel, hidden_size)

    def key_input(self, hidden: Tensor, layer: int) -> Tensor:
        return self._scale(hidden) if in_layers(self.layers, layer) else hidden

    def query_input(self, hidden: Tensor, layer: int, prefill: bool) -> Tensor:
        plain = (prefill and self.last != "all") or not in_layers(self.layers, layer)
        return hidden if plain else self._scale(hidden)

    def attention(self, call: AttentionCall) -> Tensor:
        if not call.prefill or self.last == "all" or not in_layers(self.layers, call.layer):
            return call.plain(call.query, call.key)
        key = call.rotate(call.project("key", call.hidden))
        outputs = call.plain(call.query, key)
        last = min(self.last, call.query.shape[2])
        query = call.rotate(call.project("query", self._scale(call.hidden[:, -last:])))
        for seq in call.sequences():
            count = seq.key.shape[1]
            replaced = min(last, count)
            positions = seq.arange(count - replaced, count)
            output, _ = seq.attend(query[seq.index, :, -replaced:], seq.key, positions=positions, causal=True)
            outputs[seq.index, -replaced:] = output.transpose(0, 1)
        return outputs

    def reweighted(self, call: AttentionCall, by: SIW) -> Tensor:
        return self.attention(replace(call, plain=lambda query, key: by.reweighted_plain(call, query, key)))

    @property
    def channels(self) -> tuple[int, ...]:
        """``channel`` as a tuple."""
        return self.channel if isinstance(self.channel, tuple) else (self.channel,)

    def _scale(self, hidden: Tensor) -> Tensor:
        scaled = hidden.clone()
        scaled[..., list(self.channels)] *= self.factor
        return scaled
