"""Interventions on a channel of the input of the query and key projections.

Source: Yu et al., Mitigate Position Bias in Large Language Models via Scaling a Single Dimension, arXiv 2406.02536.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from ragbias import limits
from ragbias.checks import Bounds, check_between, check_channel_exists, check_choice, check_whole_between
from ragbias.methods.base import LayerRange
from studies.interventions.base import Intervention

if TYPE_CHECKING:
    from torch import Tensor

NUMBER = Bounds(-1_000_000, 1_000_000)


class _Channel(Intervention):
    """Base class of interventions on one channel."""

    channel: int
    of: Literal["both", "query", "key"]

    def __post_init__(self) -> None:
        check_whole_between(f"{self.name}: channel", self.channel, limits.CHANNEL)
        check_choice(f"{self.name}: of", self.of, ("both", "query", "key"))

    def validate(self, hidden_size: int, n_layers: int) -> None:
        super().validate(hidden_size, n_layers)
        check_channel_exists(f"{self.name}: channel", self.channel, hidden_size)

    def changed(self, hidden: Tensor, of: Literal["query", "key"]) -> Tensor:
        if self.of not in ("both", of):
            return hidden
        result = hidden.clone()
        result[..., self.channel] = self._value(hidden[..., self.channel])
        return result

    def _value(self, channel: Tensor) -> Tensor:
        raise NotImplementedError


@dataclass(frozen=True)
class ScaleChannel(_Channel):
    """Multiply a channel of the input of the query and key projections by a factor, for all tokens.

    Args:
        channel: index into the hidden state, the output of the layer norm before attention.
        factor: -1,000,000 to 1,000,000; 1 changes nothing.
        layers: first and last layer, both included; ``None``: all.
        of: ``"query"``, ``"key"`` or ``"both"``.
    """

    channel: int
    factor: float
    layers: LayerRange | None = None
    of: Literal["both", "query", "key"] = "both"

    name = "scale-channel"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_between(f"{self.name}: factor", self.factor, NUMBER)

    def _value(self, channel: Tensor) -> Tensor:
        return channel * self.factor


@dataclass(frozen=True)
class AddToChannel(_Channel):
    """Add a number to a channel of the input of the query and key projections, for all tokens.

    Args:
        channel, layers, of: see ``ScaleChannel``.
        amount: -1,000,000 to 1,000,000; 0 changes nothing.
    """

    channel: int
    amount: float
    layers: LayerRange | None = None
    of: Literal["both", "query", "key"] = "both"

    name = "add-to-channel"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_between(f"{self.name}: amount", self.amount, NUMBER)

    def _value(self, channel: Tensor) -> Tensor:
        return channel + self.amount
