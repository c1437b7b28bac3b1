"""Measure where a positional channel comes from, and the effect of scaling it.

    python -m studies.perturbation --model tiny --out perturbation.png

Source: Yu et al., Mitigate Position Bias in Large Language Models via Scaling a Single Dimension, arXiv 2406.02536.
``channel_curves`` perturbs the mask and the position ids. Scaling the channel up should shift the last token's
attention to the beginning of the context. A negative factor should shift it to the end.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from matplotlib.figure import Figure
from rich.table import Table
from torch import Tensor

from ragbias.lm import DebiasedLM
from ragbias.methods import ChannelScaling, Profile
from ragbias.methods.profiles import find_profile, profile_of_model
from ragbias.prompt import TokenisedPrompt
from ragbias_eval.calibration.samples import Sample
from ragbias_eval.report.figures import PALE, draw_line, make_styles
from ragbias_eval.report.tables import make_table
from ragbias_eval.tasks.task import spread_positions
from studies.channel_curves import PAPERS_LENGTH, PLAIN, ChannelCurves, measure_curves
from studies.experiment import Result, Track, arrange_by_question, draw_curves, intervals, make_page, parser, run
from studies.layer_attention import attention_by_head

FACTORS = (2.0, 1.5, 1.0, 0.5, 0.0, -0.5, -1.0)
POINTS, PANELS = 50, 3


@dataclass(frozen=True)
class Perturbations(Result):
    """The curves of a channel, and the effect of scaling it.

    Attributes:
        perturbed: curves of the channel, plain and perturbed.
        thirds: ``[Q, P, F, 2]``, by factor, the last token's attention to the first and the last third of all document
            tokens.
    """

    perturbed: ChannelCurves
    thirds: Tensor

    def figure(self) -> Figure:
        found = self.perturbed
        layers = spread_positions(found.states[PLAIN].shape[1], PANELS)
        figure, axes = make_page(len(layers) + 1)
        named = {PLAIN: PLAIN, **{name: f"{name} perturbed" for name in found.perturbations}}
        ends = ["attention to the first third", "attention to the last third"]
        styles = make_styles([*named.values(), *ends])
        thin = {label: style | {"marker": ""} for label, style in styles.items()}
        width = max(1, found.length // POINTS)
        first = found.span[0] // width
        middles = [begin + min(width, found.length - begin) / 2 for begin in range(0, found.length, width)]
        for axis, layer in zip(axes, layers, strict=False):
            means = {
                name: torch.stack([part.mean(1) for part in states[:, layer].split(width, dim=1)], 1)
                for name, states in found.states.items()
            }
            title = f"channel {found.channel} after layer {layer}: r with position {found.follows[layer]:.2f}"
            plain = {PLAIN: means[PLAIN]}
            draw_curves(axis, middles, plain, title, "position", "value", from_zero=False, styles=thin)
            for name in found.perturbations:  # equal to the plain curve before the span
                points = intervals(means[name][:, first:])
                draw_line(axis, middles[first:], points, thin[named[name]], named[name])
            axis.axvspan(*found.span, color=PALE, alpha=0.3, linewidth=0, zorder=0)
        lines = {label: self.thirds[..., index].mean(1) for index, label in enumerate(ends)}
        draw_curves(
            axes[-1], FACTORS, lines, "the last token's attention", "factor of the channel", "share", styles=styles
        )
        return figure

    def table(self) -> Table:
        found = self.perturbed
        title = f"Channel {found.channel}: {found.where}; change ± 2 standard errors, and change expected if it moved"
        headings = [f"{name}: {column}" for name in found.perturbations for column in ("change", "if it moved")]
        table = make_table(title, "after layer", "r, position", "r, halves", *headings, wrap=True)
        for layer, (follows, repeats) in enumerate(zip(found.follows, found.repeats, strict=True)):
            cells = [
                _format_with_error(measured(name)[:, layer])
                for name in found.perturbations
                for measured in (found.change, found.expected)
            ]
            table.add_row(str(layer), f"{follows:.2f}", f"{repeats:.2f}", *cells)
        return table

    def as_dict(self) -> dict[str, Any]:
        found = self.perturbed
        sizes = dict(
            channel=found.channel, strings=found.strings, length=found.length, span=list(found.span), by=found.by
        )
        return {
            **sizes,
            "correlation_with_position": found.follows,
            "correlation_of_halves": found.repeats,
            "perturbations": {
                name: {
                    "change": _summarise(found.change(name)),
                    "if_moved_all_the_way": _summarise(found.expected(name)),
                }
                for name in found.perturbations
            },
            "curves": {name: states.mean(0).tolist() for name, states in found.states.items()},
            "attention_by_factor": [
                {"factor": factor, "first_third": first, "last_third": last}
                for factor, (first, last) in zip(FACTORS, self.thirds.mean((0, 1)).tolist(), strict=True)
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
        strings, length, seed, batch_size, track: see ``measure_curves``.

    Raises:
        MethodError: the profile is for a model of another shape, or the length exceeds the model's window.
    """
    config = lm.model.config.get_text_config()
    ChannelScaling.from_profile(profile).validate(config.hidden_size, config.num_hidden_layers)
    return Perturbations(
        measure_curves(lm, profile.channel, strings, length, seed, batch_size, track),
        attention_by_factor(lm, profile, samples, track),
    )


def attention_by_factor(lm: DebiasedLM, profile: Profile, samples: Sequence[Sample], track: Track) -> Tensor:
    """Measure the last token's attention to the first and the last third of all document tokens, by factor.

    The attention is averaged over the profile's layers and heads. Returns ``[Q, P, F, 2]``.
    """
    first, last = profile.layers
    scalings = [ChannelScaling(profile.channel, factor, layers=profile.layers) for factor in FACTORS]
    masses = []
    for sample in track(samples):
        by_head = torch.stack([attention_by_head(lm, split_thirds(sample.prompt), scaling) for scaling in scalings])
        masses.append(by_head[:, first : last + 1, :, [0, 2]].mean((1, 2)))
    return arrange_by_question(samples, masses)[1]


def split_thirds(prompt: TokenisedPrompt) -> TokenisedPrompt:
    """Split all document tokens of a prompt into three parts of equal length, up to one token."""
    parts = torch.tensor([token for document in prompt.documents for token in document]).tensor_split(3)
    return replace(prompt, documents=[part.tolist() for part in parts])


def _standard_error(by_string: Tensor) -> Tensor:
    """Standard error of the mean over strings ``[strings, ...]``; 0 for a single string."""
    count = len(by_string)
    return by_string.std(0) / count**0.5 if count > 1 else torch.zeros_like(by_string[0])


def _format_with_error(by_string: Tensor) -> str:
    return f"{float(by_string.mean()):.3f} ± {2 * float(_standard_error(by_string)):.3f}"


def _summarise(by_string: Tensor) -> dict[str, list[float]]:
    return {"mean": by_string.mean(0).tolist(), "standard_error": _standard_error(by_string).tolist()}


def main(arguments: Sequence[str] | None = None) -> None:
    options = parser(__doc__, depths=5)
    options.add_argument("--profile", help="profile file or name; default: the model's profile")
    options.add_argument("--channel", type=int, help="channel; default: the profile's channel")
    options.add_argument("--strings", type=int, default=200, help="number of random strings")
    options.add_argument("--length", type=int, help="tokens per string; default: 1000, or the window if smaller")
    options.add_argument("--batch-size", type=int, default=8, help="strings per batch")

    def measured(lm: DebiasedLM, samples: list[Sample], track: Track, parsed: Namespace) -> Perturbations:
        profile = profile_of_model(parsed.model) if parsed.profile is None else find_profile(parsed.profile)
        if parsed.channel is not None:
            profile = replace(profile, channel=parsed.channel)
        length = parsed.length or min(PAPERS_LENGTH, lm.window)
        return measure(lm, profile, samples, parsed.strings, length, parsed.seed, parsed.batch_size, track)

    run(options, arguments, measured, "Perturbations of a channel\n{model}, {strings} strings")


if __name__ == "__main__":
    main()
