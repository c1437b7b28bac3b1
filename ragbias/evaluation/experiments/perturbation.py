"""Where a positional channel comes from: its curve with the causal mask perturbed, and with the position ids.

Source: Yu et al., Mitigate Position Bias in Large Language Models via Scaling a Single Dimension, arXiv 2406.02536.
Over strings of 1000 random tokens, tokens 400 to 600 are kept from seeing tokens 1 to 400, or 200 is subtracted from
their position ids. If the channel's curve there moves with the one and stays with the other, the channel comes from the
causal mask. And scaling the channel up should turn the last token's attention to the beginning of the context, a
negative factor to its end.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.table import Table
from torch import Tensor

import ragbias
from ragbias.binding.architectures import architecture_of
from ragbias.checks import Bounds, check_whole_between
from ragbias.evaluation.bounds import STRING_LENGTH
from ragbias.evaluation.experiments.drawing import curves, page
from ragbias.evaluation.experiments.questions import Track
from ragbias.evaluation.inspect.layer_attention import attention_by_head
from ragbias.evaluation.prompts.random_strings import random_strings
from ragbias.evaluation.prompts.samples import Sample
from ragbias.evaluation.report.figures.panels import open_frame
from ragbias.evaluation.report.looks import literal, looks_of
from ragbias.evaluation.report.plain_table import plain_table
from ragbias.evaluation.tasks.orders import evenly_spread
from ragbias.interventions import HideKeys, Intervened, ShiftPositions
from ragbias.lm import DebiasedLM
from ragbias.methods import ChannelScaling
from ragbias.methods.profiles import Profile
from ragbias.prompt import TokenisedPrompt

PAPERS_LENGTH = 1000
SPAN, BY = (
    (400, 600),
    200,
)  # of the paper: the tokens that are perturbed, and what is subtracted from their position ids
NOISY = 30  # positions at the beginning that correlations leave out, as the paper's search does
FACTORS = (2.0, 1.5, 1.0, 0.5, 0.0, -0.5, -1.0)
PLAIN, MASK, IDS = "plain", "mask", "position ids"
POINTS, PANELS = 50, 3


@dataclass(frozen=True)
class Perturbations:
    """What became of a channel.

    Attributes:
        channel: index into the hidden state.
        strings, length: of the random strings.
        span, by: the tokens that were perturbed, and what was subtracted from their position ids.
        curves: by perturbation, the channel's mean after each layer but the last, float64 ``[n_layers - 1, T]``.
        halves: the same without perturbation, of every second string, ``[2, n_layers - 1, T]``.
        changes: by perturbation, what it added to the channel's mean in the span, each string for itself, float64
            ``[strings, n_layers - 1]``.
        expected: by perturbation, what it would add if the span's curve became that of the positions where the mask, or
            the ids, put it: from the first one on, or ``by`` earlier.
        thirds: by factor, the last token's attention to the first and to the last third of the documents' tokens.
    """

    channel: int
    strings: int
    length: int
    span: tuple[int, int]
    by: int
    curves: dict[str, Tensor]
    halves: Tensor
    changes: dict[str, Tensor]
    expected: dict[str, Tensor]
    thirds: dict[float, tuple[float, float]]

    @property
    def _noisy(self) -> int:
        return NOISY * self.length // PAPERS_LENGTH

    @property
    def repeats(self) -> list[float]:
        """By layer, how alike the curves of both halves of the strings are: Pearson's correlation; 1 without noise."""
        first, second = self.halves[..., self._noisy :]
        return [_correlation(*pair) for pair in zip(first, second, strict=True)]

    @property
    def follows(self) -> list[float]:
        """By layer, Pearson's correlation of the curve with the position."""
        positions = torch.arange(self._noisy, self.length, dtype=torch.float64)
        return [_correlation(curve, positions) for curve in self.curves[PLAIN][:, self._noisy :]]

    @property
    def where(self) -> str:
        """The perturbed tokens in words, and why they are other ones than the paper's, if so."""
        begin, end = self.span
        said = f"tokens {begin} to {end} do not see those before {begin}, or have position ids less {self.by}"
        if self.length == PAPERS_LENGTH:
            return said
        return f"{said} (scaled from the paper's 400, 600 and 200 of 1000 tokens to {self.length})"

    def figure(self, title: str) -> Figure:
        layers = evenly_spread(len(self.curves[PLAIN]), PANELS)
        figure, axes = page(f"{title}\n{self.where}", [3.4] * len(layers) + [3.8], height=4.3)
        for axis, layer in zip(axes, layers, strict=False):
            self._draw(axis, layer)
        factors = sorted(self.thirds)
        lines = {
            f"{which} third of the documents": [self.thirds[factor][index] for factor in factors]
            for index, which in enumerate(("first", "last"))
        }
        curves(axes[-1], factors, lines, "the last token's attention", "factor of the channel", "attention")
        return figure

    def _draw(self, axis: Axes, layer: int) -> None:
        width = max(1, self.length // POINTS)
        looks = looks_of(self.curves)
        for name, by_layer in self.curves.items():
            means = by_layer[layer].split(width)
            axis.plot(
                [index * width + len(part) / 2 for index, part in enumerate(means)],
                [float(part.mean()) for part in means],
                color=looks[name].colour, linestyle=looks[name].dashes, linewidth=1.3,
                label=literal("plain" if name == PLAIN else f"{name} perturbed"),
            )  # fmt: skip
        axis.axvspan(*self.span, color="#dddddd", zorder=0)
        axis.set_title(
            f"channel {self.channel} after layer {layer}: r with position {self.follows[layer]:.2f}", fontsize=9
        )
        axis.set_xlabel("position", fontsize=9)
        axis.set_ylabel(f"mean over strings, {width} positions each" if width > 1 else "mean over strings", fontsize=9)
        axis.tick_params(labelsize=8)
        open_frame(axis)
        axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.17), frameon=False, handlelength=4, fontsize=8.5)

    def table(self) -> Table:
        title = f"Channel {self.channel}: {self.where}; change there ± 2 standard errors, and that if it moved along"
        headings = [f"{name}: {column}" for name in self.changes for column in ("change", "if it moved")]
        table = plain_table(title, "after layer", "r, position", "r, halves", *headings, wrap=True)
        for layer, (follows, repeats) in enumerate(zip(self.follows, self.repeats, strict=True)):
            cells = [
                _with_error(measured[name][:, layer])
                for name in self.changes
                for measured in (self.changes, self.expected)
            ]
            table.add_row(str(layer), f"{follows:.2f}", f"{repeats:.2f}", *cells)
        return table

    def as_dict(self) -> dict[str, Any]:
        sizes = dict(channel=self.channel, strings=self.strings, length=self.length, span=list(self.span), by=self.by)
        return {
            **sizes,
            "correlation_with_position": self.follows,
            "correlation_of_halves": self.repeats,
            "perturbations": {
                name: {"change": _summary(self.changes[name]), "if_moved_all_the_way": _summary(self.expected[name])}
                for name in self.changes
            },
            "curves": {name: curve.tolist() for name, curve in self.curves.items()},
            "attention_by_factor": [
                {"factor": factor, "first_third": first, "last_third": last}
                for factor, (first, last) in self.thirds.items()
            ],
        }


def measure(
    lm: DebiasedLM,
    profile: Profile,
    samples: Sequence[Sample],
    strings: int,
    length: int,
    seed: int,
    batch_size: int,
    track: Track,
) -> Perturbations:
    """Perturb random strings, and scale the profile's channel on samples.

    Args:
        length: of the strings; the paper's numbers of tokens are scaled to it.
        track: passes on what it is given, and may show how far it has come.

    Raises:
        MethodError: the profile is of a model of another shape, or the length exceeds the model's window.
    """
    check_whole_between("perturbation: length", length, Bounds(STRING_LENGTH.least, lm.window))
    config = lm.model.config.get_text_config()
    ChannelScaling.from_profile(profile).validate(config.hidden_size, config.num_hidden_layers)
    begin, end, by = (number * length // PAPERS_LENGTH for number in (*SPAN, BY))
    changed = {MASK: HideKeys((begin, end), (0, begin)), IDS: ShiftPositions((begin, end), -by)}
    if architecture_of(lm.model).positions != "rotary":
        del changed[IDS]
    sources = {MASK: 0, IDS: begin - by}  # where the span's curve would come from
    sums: dict[str, Any] = dict.fromkeys([PLAIN, *changed], 0)
    halves: Any = 0
    changes: dict[str, list[Tensor]] = {name: [] for name in changed}
    expected: dict[str, list[Tensor]] = {name: [] for name in changed}
    for first in track(range(0, strings, batch_size)):
        ids = random_strings(lm, first, min(first + batch_size, strings), length, seed)
        plain = channel_states(lm, ids, profile.channel)
        sums[PLAIN] = sums[PLAIN] + plain.sum(0)
        odd = (torch.arange(first, first + len(ids)) % 2).double()
        halves = halves + torch.stack([torch.einsum("b,blt->lt", part, plain) for part in (1 - odd, odd)])
        here = plain[..., begin:end].mean(-1)
        for name, intervention in changed.items():
            found = channel_states(lm, ids, profile.channel, Intervened(intervention))
            sums[name] = sums[name] + found.sum(0)
            changes[name].append(found[..., begin:end].mean(-1) - here)
            expected[name].append(plain[..., sources[name] : sources[name] + end - begin].mean(-1) - here)
    return Perturbations(
        profile.channel,
        strings,
        length,
        (begin, end),
        by,
        {name: total / strings for name, total in sums.items()},
        halves / torch.tensor([strings - strings // 2, max(1, strings // 2)])[:, None, None],
        {name: torch.cat(parts) for name, parts in changes.items()},
        {name: torch.cat(parts) for name, parts in expected.items()},
        attention_by_factor(lm, profile, samples, track),
    )


@torch.no_grad()
def channel_states(lm: DebiasedLM, ids: Tensor, channel: int, method: Intervened | None = None) -> Tensor:
    """The channel of the hidden states after each layer but the last: float64 ``[strings, n_layers - 1, T]``."""
    with nullcontext() if method is None else ragbias.debias(lm.model, method):
        states = lm.model.get_decoder()(ids, output_hidden_states=True, use_cache=False).hidden_states
    return torch.stack([state[..., channel].double().cpu() for state in states[1:-1]], 1)


def attention_by_factor(
    lm: DebiasedLM, profile: Profile, samples: Sequence[Sample], track: Track
) -> dict[float, tuple[float, float]]:
    """The last token's attention to the first and to the last third of the documents' tokens, for each factor.

    Averaged over the profile's layers, heads and samples.
    """
    first, last = profile.layers
    masses: dict[float, list[Tensor]] = {factor: [] for factor in FACTORS}
    for sample in track(samples):
        prompt = thirds(sample.prompt)
        for factor in FACTORS:
            found = attention_by_head(lm, prompt, ChannelScaling(profile.channel, factor, layers=profile.layers))
            masses[factor].append(found[first : last + 1, :, [0, 2]].mean((0, 1)))
    means = {factor: torch.stack(found).mean(0).tolist() for factor, found in masses.items()}
    return {factor: (beginning, end) for factor, (beginning, end) in means.items()}


def thirds(prompt: TokenisedPrompt) -> TokenisedPrompt:
    """The prompt with its documents' tokens cut into three equal parts, the first ones longer by one where need be."""
    parts = torch.tensor([token for document in prompt.documents for token in document]).tensor_split(3)
    return replace(prompt, documents=[part.tolist() for part in parts])


def _correlation(one: Tensor, other: Tensor) -> float:
    return float(torch.corrcoef(torch.stack([one, other]))[0, 1])


def _error(by_string: Tensor) -> Tensor:
    """Standard error of the mean over strings ``[strings, ...]``; 0 of a single one."""
    count = len(by_string)
    return by_string.std(0) / count**0.5 if count > 1 else torch.zeros_like(by_string[0])


def _with_error(by_string: Tensor) -> str:
    return f"{float(by_string.mean()):.3f} ± {2 * float(_error(by_string)):.3f}"


def _summary(by_string: Tensor) -> dict[str, list[float]]:
    return {"mean": by_string.mean(0).tolist(), "standard_error": _error(by_string).tolist()}
