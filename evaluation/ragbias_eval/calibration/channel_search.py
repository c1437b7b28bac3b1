"""Find channels of the hidden state that encode position, by Algorithm 1 of the paper or of the authors' code.

Source: Yu et al., Mitigate Position Bias in Large Language Models via Scaling a Single Dimension, arXiv 2406.02536,
and the authors' ``seach_dim_by_statistic.py``, whose results are in ``tests/golden/channel_search``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.signal import savgol_filter

from ragbias import limits
from ragbias.errors import MethodError

Array = NDArray[np.float64]

FIT_DEGREE, SAVGOL_WINDOW, SAVGOL_DEGREE = 3, 10, 3
AUTHORS_LENGTH = 1000
SKIPS = {"released": (300, 200), "paper": (30, 30)}  # first positions to skip in the fit and in smoothing
MIN_LENGTH = limits.STRING_LENGTH.least
MIN_DEPTH = 8  # with fewer layers, the authors' range 2..n-2 is too short


class NoPositionalChannelError(MethodError):
    """No channel is monotone in any layer. The model cannot be calibrated."""


@dataclass(frozen=True)
class SearchRange:
    """The positions and layers that the search tests."""

    skip_fit: int  # the monotone test ignores this many first positions
    skip_smooth: int  # the smoothness test ignores this many first positions
    first: int  # first tested layer
    last: int  # last tested layer

    @classmethod
    def for_shape(cls, n_layers: int, length: int, variant: str = "released") -> SearchRange:
        """Return the authors' range: layers 2 to ``n_layers - 2``, and all positions except the first ones.

        The released code omits the first 300 positions from the fit and the first 200 from smoothing. The paper omits
        the first 30 from both. With fewer than 1000 positions, these numbers decrease in proportion. With fewer than 8
        layers, all layers except the last are tested.
        """
        if length < MIN_LENGTH:
            raise MethodError(f"random strings of {length} tokens are too short; expected at least {MIN_LENGTH}")
        skip_fit, skip_smooth = (min(skip, skip * length // AUTHORS_LENGTH) for skip in SKIPS[variant])
        first = 2 if n_layers >= MIN_DEPTH else 0
        return cls(skip_fit, skip_smooth, first, last=max(n_layers - 2, 0))


@dataclass(frozen=True)
class ChannelRanking:
    """Result of the search.

    ``passed`` has the channels that are monotone in enough layers. ``ranked`` has the best channels of ``passed``, with
    the smoothest first. If ``passed`` is empty, ``ranked`` has the best channels that are monotone in any layer. These
    are sorted by the number of monotone layers, and for equal numbers by smoothness.
    """

    monotone: dict[int, list[int]]  # by channel, the layers with a monotone fit
    roughness: dict[int, float]  # by channel: minimum over monotone layers (released), mean over tested (paper)
    ranked: list[int]  # channels to measure, best first
    passed: list[int]  # channels that are monotone in enough layers, ascending
    search_range: SearchRange


def layer_outputs(states: Array) -> Array:
    """Return ``states`` ``[n_states, T, D]`` without the embeddings if ``n_states`` is odd; otherwise return all.

    The authors' code has the same rule.
    """
    return states[1:] if len(states) % 2 else states


def rank_channels(
    states: Array, top: int = 10, search_range: SearchRange | None = None, variant: str = "released"
) -> ChannelRanking:
    """Rank channels by how smoothly their mean activation changes with the token position.

    Args:
        states: mean hidden states ``[n_states, T, D]`` as in transformers, with the embeddings first.
        top: maximum number of ranked channels.

    Raises:
        NoPositionalChannelError: no channel is monotone in any layer.
    """
    outputs = layer_outputs(states)
    n_layers, length, channels = outputs.shape
    search_range = search_range or SearchRange.for_shape(n_layers, length, variant)
    layers = range(search_range.first, search_range.last + 1)
    directions = np.stack([_curve_directions(outputs[layer, search_range.skip_fit :]) for layer in layers])
    monotone = {}
    for channel in range(channels):
        # the layers in which the curve rises, or those in which it falls, whichever are more
        falling, rising = (np.flatnonzero(directions[:, channel] == sign) for sign in (-1, 1))
        monotone[channel] = [search_range.first + int(at) for at in max(falling, rising, key=len)]
    passed = [channel for channel, where in monotone.items() if len(where) > n_layers // 4]
    tried = passed or [channel for channel, where in monotone.items() if where]
    if not tried:
        raise NoPositionalChannelError(
            f"none of the {channels} channels is monotone in any of the layers {search_range.first} to "
            f"{search_range.last}; the model seems to have no positional channel, or the mean is too noisy: try more "
            "random strings"
        )
    roughness = {}
    for channel in tried:
        where = monotone[channel] if variant == "released" else layers
        by_layer = [curve_roughness(outputs[layer, search_range.skip_smooth :, channel]) for layer in where]
        roughness[channel] = min(by_layer) if variant == "released" else float(np.mean(by_layer))

    def key(channel: int) -> tuple[int, float, int]:
        count = 0 if passed else -len(monotone[channel])
        rough = np.nan_to_num(roughness[channel], nan=np.inf)  # constant channels come last
        return count, float(rough), channel

    ranked = sorted(tried, key=key)[:top]
    return ChannelRanking(
        monotone, {channel: roughness[channel] for channel in passed or ranked}, ranked, passed, search_range
    )


def _curve_directions(curves: Array) -> NDArray[np.int64]:
    """Return, for each curve in ``[T, D]``, 1 if its cubic fit rises, -1 if it falls, otherwise 0."""
    scaled = _scale_to_unit(curves)
    usable = np.isfinite(scaled).all(0)
    positions = np.linspace(-1, 1, len(scaled))
    basis = np.polynomial.legendre.legvander(positions, FIT_DEGREE)
    coefficients, *_ = np.linalg.lstsq(basis, np.where(usable, scaled, 0), rcond=None)
    steps = np.diff(basis @ coefficients, axis=0)
    rises, falls = (steps >= 0).all(0), (steps < 0).all(0)
    directions = np.where(rises, 1, np.where(falls, -1, 0))
    return np.where(usable, directions, 0)


def curve_roughness(curve: Array) -> float:
    """Sum the squared second differences of the smoothed curve ``[T]``."""
    smooth = savgol_filter(_scale_to_unit(curve), SAVGOL_WINDOW, SAVGOL_DEGREE)
    return float((np.diff(smooth, n=2) ** 2).sum())


def _scale_to_unit(curves: Array) -> Array:
    """Scale curves to [0, 1] along the first axis. A constant curve becomes NaN."""
    low, high = curves.min(0), curves.max(0)
    with np.errstate(invalid="ignore", divide="ignore"):
        scaled: Array = (curves - low) / (high - low)
    return scaled
