"""Measure a channel by position over random strings, with a perturbed causal mask or perturbed position ids.

Source: Yu et al., Mitigate Position Bias in Large Language Models via Scaling a Single Dimension, arXiv 2406.02536. In
strings of 1000 random tokens, tokens 400 to 600 are prevented from attending to tokens 1 to 400, or 200 is subtracted
from their position ids. If the mask moves the channel's curve and the position ids do not, the channel comes from the
causal mask.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

import ragbias
from ragbias import limits
from ragbias.binding.architectures import architecture_of
from ragbias.checks import Bounds, check_whole_between
from ragbias.lm import DebiasedLM
from ragbias_eval.calibration.samples import draw_strings
from studies.experiment import Track
from studies.interventions import HideKeys, Intervened, ShiftPositions

PAPERS_LENGTH = 1000
SPAN = (400, 600)  # tokens that the paper perturbs
BY = 200  # number that the paper subtracts from their position ids
NOISY = 30  # number of first positions that correlations ignore, as in the paper's search
PLAIN, MASK, IDS = "plain", "mask", "position ids"


@dataclass(frozen=True)
class ChannelCurves:
    """The curves of a channel, plain and perturbed.

    Attributes:
        channel: index into the hidden state.
        span, by: the perturbed tokens, and the number that is subtracted from their position ids.
        states: by perturbation, the channel after each layer but the last, float64 ``[strings, n_layers - 1, T]``.
    """

    channel: int
    span: tuple[int, int]
    by: int
    states: dict[str, Tensor]

    @property
    def strings(self) -> int:
        """Number of random strings."""
        return len(self.states[PLAIN])

    @property
    def length(self) -> int:
        """Length of the random strings."""
        return self.states[PLAIN].shape[2]

    @property
    def perturbations(self) -> list[str]:
        """Names of the perturbations."""
        return [name for name in self.states if name != PLAIN]

    def change(self, name: str) -> Tensor:
        """Change of the channel's mean in the span, ``[strings, n_layers - 1]``."""
        return self._in_span(name) - self._in_span(PLAIN)

    def expected(self, name: str) -> Tensor:
        """Expected change, if the span followed the plain curve at the positions to which it is moved.

        The mask moves the span to the first positions, and position ids move it ``by`` positions back.
        """
        begin, end = self.span
        source = {MASK: 0, IDS: begin - self.by}[name]
        return self.states[PLAIN][..., source : source + end - begin].mean(-1) - self._in_span(PLAIN)

    def _in_span(self, name: str) -> Tensor:
        return self.states[name][..., slice(*self.span)].mean(-1)

    @property
    def _noisy(self) -> int:
        return NOISY * self.length // PAPERS_LENGTH

    @property
    def repeats(self) -> list[float]:
        """Pearson's correlation between the curves of both halves of the strings, by layer; 1 without noise."""
        first, second = (self.states[PLAIN][half::2, :, self._noisy :].mean(0) for half in (0, 1))
        return [_correlation(*pair) for pair in zip(first, second, strict=True)]

    @property
    def follows(self) -> list[float]:
        """Pearson's correlation of the curve with the position, by layer."""
        positions = torch.arange(self._noisy, self.length, dtype=torch.float64)
        return [_correlation(curve, positions) for curve in self.states[PLAIN][..., self._noisy :].mean(0)]

    @property
    def where(self) -> str:
        """Description of the perturbed tokens, with the paper's numbers if strings have another length."""
        begin, end = self.span
        words = f"tokens {begin} to {end} do not see those before {begin}, or have position ids less {self.by}"
        if self.length == PAPERS_LENGTH:
            return words
        return f"{words} (scaled from the paper's 400, 600 and 200 of 1000 tokens to {self.length})"


def measure_curves(
    lm: DebiasedLM, channel: int, strings: int, length: int, seed: int, batch_size: int, track: Track
) -> ChannelCurves:
    """Measure the curves of a channel on random strings, plain and perturbed.

    Args:
        length: tokens per string. The paper's span and shift are scaled to this length.
        track: yields its items unchanged, and may show progress.

    Raises:
        MethodError: the length exceeds the model's window.
    """
    check_whole_between("perturbation: length", length, Bounds(limits.STRING_LENGTH.least, lm.window))
    begin, end, by = (number * length // PAPERS_LENGTH for number in (*SPAN, BY))
    changed = {MASK: HideKeys((begin, end), (0, begin)), IDS: ShiftPositions((begin, end), -by)}
    if architecture_of(lm.model).positions != "rotary":
        del changed[IDS]
    states: dict[str, list[Tensor]] = {name: [] for name in (PLAIN, *changed)}
    for first in track(range(0, strings, batch_size)):
        ids = draw_strings(lm, first, min(first + batch_size, strings), length, seed)
        states[PLAIN].append(channel_states(lm, ids, channel))
        for name, intervention in changed.items():
            states[name].append(channel_states(lm, ids, channel, Intervened(intervention)))
    return ChannelCurves(channel, (begin, end), by, {name: torch.cat(parts) for name, parts in states.items()})


@torch.no_grad()
def channel_states(lm: DebiasedLM, ids: Tensor, channel: int, method: Intervened | None = None) -> Tensor:
    """Return a channel of the hidden states after each layer but the last: float64 ``[strings, n_layers - 1, T]``."""
    with nullcontext() if method is None else ragbias.debias(lm.model, method):
        states = lm.model.get_decoder()(ids, output_hidden_states=True, use_cache=False).hidden_states
    return torch.stack([state[..., channel].double().cpu() for state in states[1:-1]], 1)


def _correlation(one: Tensor, other: Tensor) -> float:
    return float(torch.corrcoef(torch.stack([one, other]))[0, 1])
