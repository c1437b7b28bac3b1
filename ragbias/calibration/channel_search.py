"""Which channels of the hidden state carry the position: Algorithm 1, as the paper or its code has it.

Source: Yu et al., Mitigate Position Bias in Large Language Models via Scaling a Single Dimension, arXiv 2406.02536,
and the authors' ``seach_dim_by_statistic.py``, which ``tests/golden/channel_search`` fixes.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ragbias import checks as bounds
from ragbias.errors import MethodError
from ragbias.extras import required

required("scipy.signal", "calibrate")

from scipy.signal import savgol_filter  # noqa: E402

Array = NDArray[np.float64]

FIT_DEGREE, SAVGOL_WINDOW, SAVGOL_DEGREE = 3, 10, 3
AUTHORS_LENGTH = 1000
SKIPS = {"released": (300, 200), "paper": (30, 30)}  # positions dropped before fit and smoothing, of AUTHORS_LENGTH
MIN_LENGTH = bounds.STRING_LENGTH.least
SHALLOW = 8  # layers; below, the authors' range 2..n-2 is too short for any channel to pass the count n // 4


class NoPositionalChannelError(MethodError):
    """Not one channel is monotone in any layer, so there is nothing to calibrate."""


@dataclass(frozen=True)
class SearchRange:
    """The positions and layers that the tests look at.

    Attributes:
        skip_fit, skip_smooth: positions dropped before the monotone test and before the smoothness.
        first, last: layers of the test, both included.
    """

    skip_fit: int
    skip_smooth: int
    first: int
    last: int

    @classmethod
    def for_shape(cls, n_layers: int, length: int, variant: str = "released") -> SearchRange:
        """The authors' numbers (300, 200, in the paper 30; layers 2 to n-2), less for short strings or shallow models.

        Below 1000 positions the skips shrink in proportion. Below 8 layers all but the last are tested; what the last
        one puts out no attention reads.
        """
        if length < MIN_LENGTH:
            raise MethodError(f"random strings of {length} tokens are too short for a cubic fit; use {MIN_LENGTH} up")
        skip_fit, skip_smooth = (min(skip, skip * length // AUTHORS_LENGTH) for skip in SKIPS[variant])
        return cls(
            skip_fit=skip_fit,
            skip_smooth=skip_smooth,
            first=2 if n_layers >= SHALLOW else 0,
            last=max(n_layers - 2, 0),
        )


@dataclass(frozen=True)
class Ranking:
    """What the search found.

    Attributes:
        monotone: by channel, the layers where the cubic fit is monotone, all in one direction.
        roughness: by channel that passed (or is ranked), the sum of squared second differences: the smallest over its
            monotone layers as released, the mean over all tested layers in the paper.
        ranked: the channels to try, best first.
        passed: the channels that passed the count (all, where it is left out), in order of index; if none, ``ranked``
            goes by the number of monotone layers.
        searched: where the tests looked.
    """

    monotone: dict[int, list[int]]
    roughness: dict[int, float]
    ranked: list[int]
    passed: list[int]
    searched: SearchRange


def layer_outputs(states: Array) -> Array:
    """Hidden states ``[n_hs, T, D]`` without the embeddings where the authors drop them: where ``n_hs`` is odd."""
    return states[1:] if len(states) % 2 else states


def search(
    states: Array,
    top: int = 10,
    searched: SearchRange | None = None,
    variant: str = "released",
    without: Collection[str] = (),
) -> Ranking:
    """Rank channels by how well their mean value follows the position.

    Args:
        states: mean hidden states ``[n_hs, T, D]`` as transformers gives them, the embeddings first.
        top: how many channels to keep.
        searched: where to look; default: where the authors do, scaled to the shape.
        variant: ``"released"`` or ``"paper"``: what is dropped, and how a channel's roughness is made of its layers'.
        without: of ``calibration_settings.ABLATIONS``, what does not count: without monotonicity every channel passes,
            without smoothness those that are monotone in the most layers come first.

    Raises:
        NoPositionalChannelError: no channel is monotone in any layer.
    """
    outputs = layer_outputs(states)
    n_layers, length, channels = outputs.shape
    searched = searched or SearchRange.for_shape(n_layers, length, variant)
    layers = range(searched.first, searched.last + 1)
    directions = np.stack([_directions(outputs[layer, searched.skip_fit :]) for layer in layers])
    monotone = {channel: _one_direction(directions[:, channel], searched.first) for channel in range(channels)}
    monotonicity = "monotonicity" not in without
    passed = [channel for channel, found in monotone.items() if not monotonicity or len(found) > n_layers // 4]
    tried = passed or [channel for channel, found in monotone.items() if found]
    if not tried:
        raise NoPositionalChannelError(
            f"none of the {channels} channels is monotone in any of the layers {searched.first} to {searched.last}; "
            "the model seems to keep no position in a single channel, or the mean is too noisy: try more random strings"
        )
    roughness = {}
    for channel in tried:
        where = monotone[channel] if variant == "released" and monotonicity else layers
        by_layer = [_roughness(outputs[layer, searched.skip_smooth :, channel]) for layer in where]
        roughness[channel] = min(by_layer) if variant == "released" else float(np.mean(by_layer))
    by_count = not passed or "smoothness" in without
    by_roughness = "smoothness" not in without
    order = sorted(
        tried, key=lambda c: (-len(monotone[c]) if by_count else 0, _or_last(roughness[c]) if by_roughness else 0, c)
    )
    ranked = order[:top]
    return Ranking(monotone, {channel: roughness[channel] for channel in passed or ranked}, ranked, passed, searched)


def _or_last(roughness: float) -> float:
    """A number that sorts; a constant channel has no roughness, and comes last."""
    return roughness if np.isfinite(roughness) else float("inf")


def _directions(curves: Array) -> NDArray[np.int64]:
    """For curves ``[T, D]``: 1 where the cubic fit rises everywhere, -1 where it falls, 0 where neither."""
    scaled = _min_max(curves)
    usable = np.isfinite(scaled).all(0)
    positions = np.linspace(-1, 1, len(scaled))
    basis = np.polynomial.legendre.legvander(positions, FIT_DEGREE)
    coefficients, *_ = np.linalg.lstsq(basis, np.where(usable, scaled, 0), rcond=None)
    steps = np.diff(basis @ coefficients, axis=0)
    directions = np.where((steps >= 0).all(0), 1, np.where((steps < 0).all(0), -1, 0))
    return np.where(usable, directions, 0)


def _one_direction(directions: NDArray[np.int64], first: int) -> list[int]:
    """The layers that rise or those that fall, whichever are more; those that fall if equal."""
    rising, falling = np.flatnonzero(directions > 0), np.flatnonzero(directions < 0)
    return [int(layer) + first for layer in (rising if len(rising) > len(falling) else falling)]


def _roughness(curve: Array) -> float:
    """Sum of squared second differences of the smoothed curve ``[T]``."""
    smooth = savgol_filter(_min_max(curve), SAVGOL_WINDOW, SAVGOL_DEGREE)
    return float((np.diff(smooth, n=2) ** 2).sum())


def _min_max(curves: Array) -> Array:
    """Scaled to [0, 1] along the first axis; NaN where a curve is constant."""
    low, high = curves.min(0), curves.max(0)
    with np.errstate(invalid="ignore", divide="ignore"):
        scaled: Array = (curves - low) / (high - low)
    return scaled
