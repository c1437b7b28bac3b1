"""Measure how scaling a channel changes attention to the gold document and the answer's loss, by factor and layers.

    python -m studies.factors --model tiny --out factors.png

Source: Yu et al., Mitigate Position Bias in Large Language Models via Scaling a Single Dimension, arXiv 2406.02536.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.table import Table
from torch import Tensor

from ragbias.display import shown
from ragbias.errors import RunError
from ragbias.generation.scoring import continuation_logits
from ragbias.lm import DebiasedLM
from ragbias.methods import ChannelScaling, Method, NoMethod
from ragbias_eval.calibration.measurements import retrieving_layers
from ragbias_eval.calibration.samples import Sample
from ragbias_eval.report.figures import PALE, draw_line, make_styles
from ragbias_eval.report.tables import make_table
from studies.experiment import (
    Result,
    Track,
    arrange_by_question,
    format_layers,
    intervals,
    make_method,
    make_page,
    parser,
    run,
)
from studies.layer_attention import attention_by_head, gold_and_other

Range = tuple[int, int]
SPREAD = 0.7  # width over which the factors at one x are spread


@dataclass(frozen=True)
class FactorSweep(Result):
    """The effect of each factor in each range of layers.

    Attributes:
        positions: positions of the gold document, counted from 0.
        factors: factors; a factor of 1 is the plain model.
        layers: ranges of layers, with both ends included.
        attention: ``[Q, P, R, F]``, attention to the gold document, averaged over heads and over the layers that
            retrieve in the plain model (``retrieval_layers``).
        loss: ``[Q, P, R, F]``, mean negative log-likelihood per token of the answer, in nats.
        plain_loss: ``[Q, P]``, the loss of the plain model.
    """

    channels: tuple[int, ...]
    positions: list[int]
    factors: list[float]
    layers: list[Range]
    attention: Tensor
    loss: Tensor
    plain_loss: Tensor
    retrieval_layers: list[int]

    def figure(self) -> Figure:
        figure, (attention, loss, swept) = make_page(3)
        change, own = self.loss - self.plain_loss[..., None, None], self._scaled[0]
        numbered = [position + 1 for position in self.positions]
        self._draw(attention, numbered, self.attention[:, :, 0], f"attention to the gold document, {own}", "attention")
        self._draw(loss, numbered, change[:, :, 0], f"change of the answer's loss, {own}", "nats per token")
        title = "change of the answer's loss, mean over positions"
        self._draw(swept, range(len(self.layers)), change.mean(1), title, "nats per token")
        for axis in (attention, loss):
            axis.set_xticks(numbered)
            axis.set_xlabel("position of the gold document")
        attention.set_ylim(bottom=0)
        swept.set_xticks(range(len(self.layers)), self._scaled)
        swept.set_xlabel("layers in which the channel is scaled")
        return figure

    def _draw(self, axis: Axes, xs: Sequence[float], values: Tensor, title: str, label: str) -> None:
        """Draw ``[Q, len(xs), F]`` as a point with an interval for each x and factor."""
        styles = make_styles(f"factor {factor:g}" for factor in self.factors)
        for index, (name, style) in enumerate(styles.items()):
            shift = SPREAD * ((index + 0.5) / len(styles) - 0.5)
            points = intervals(values[..., index])
            draw_line(axis, [x + shift for x in xs], points, style | {"linestyle": "none"}, name, band=False)
        axis.axhline(0, color=PALE, linewidth=0.8, zorder=1)
        axis.set_title(title, fontsize=10)
        axis.set_ylabel(label)

    def table(self) -> Table:
        title = "Loss of the answer; in brackets: attention to the gold document"
        table = make_table(title, "scaled in", *(f"factor {factor:g}" for factor in self.factors))
        for index, layers in enumerate(self._scaled):
            both = zip(*(each[:, :, index].mean((0, 1)).tolist() for each in (self.loss, self.attention)), strict=True)
            table.add_row(layers, *(f"{loss:.3f} ({attention:.3f})" for loss, attention in both))
        return table

    @property
    def _scaled(self) -> list[str]:
        """Describe the ranges of layers."""
        return [format_layers(range(first, last + 1)) for first, last in self.layers]


def measure(
    lm: DebiasedLM,
    samples: Sequence[Sample],
    scaling: ChannelScaling,
    factors: Sequence[float],
    layers: Sequence[Range] | None,
    track: Track,
) -> FactorSweep:
    """Measure the effect of all factors in all ranges of layers.

    Args:
        scaling: method whose channel is scaled.
        layers: ranges with both ends included; None: the layers of ``scaling``, each half of the model, and all layers.

    Raises:
        MethodError: the model has no such channel or layers.
    """
    config = lm.model.config.get_text_config()
    scaling.validate(config.hidden_size, config.num_hidden_layers)
    ranges = list(layers or _default_ranges(scaling, config.num_hidden_layers))
    methods = [[replace(scaling, factor=factor, layers=each) for factor in factors] for each in ranges]
    for method in (method for row in methods for method in row):
        method.validate(config.hidden_size, config.num_hidden_layers)
    plain = torch.stack([_gold_by_layer(lm, sample, NoMethod()) for sample in track(samples)]).mean(0)
    retrieve = sorted(retrieving_layers(plain.tolist()))
    plain_loss, measured = [], []
    for sample in track(samples):
        attention = [[_gold_by_layer(lm, sample, each)[retrieve, 0].mean() for each in row] for row in methods]
        loss = [[_loss(lm, sample, each) for each in row] for row in methods]
        plain_loss.append(_loss(lm, sample, NoMethod()))
        measured.append(torch.tensor([attention, loss]))
    positions, both = arrange_by_question(samples, measured)
    _, plain_losses = arrange_by_question(samples, plain_loss)
    return FactorSweep(
        scaling.channels, positions, list(factors), ranges, both[:, :, 0], both[:, :, 1], plain_losses, retrieve
    )


def _default_ranges(scaling: ChannelScaling, n_layers: int) -> list[Range]:
    own, half = scaling.layer_indices(n_layers), n_layers // 2
    return list(dict.fromkeys([(own[0], own[-1]), (0, half - 1), (half, n_layers - 1), (0, n_layers - 1)]))


def _gold_by_layer(lm: DebiasedLM, sample: Sample, method: Method) -> Tensor:
    """Measure the attention to the gold document and to one other document, averaged over heads: ``[n_layers, 2]``."""
    mass = attention_by_head(lm, sample.prompt, method)[:, :, : len(sample.prompt.documents)].mean(1)
    return gold_and_other(mass, sample.gold)


def _loss(lm: DebiasedLM, sample: Sample, method: Method) -> Tensor:
    logits = continuation_logits(lm.loaded, sample.prompt, method, sample.answer)
    return torch.nn.functional.cross_entropy(logits, torch.tensor(sample.answer, device=logits.device)).cpu()


def parse_ranges(text: str) -> list[Range]:
    """Parse ranges of layers, such as ``10-25,0-31``.

    Raises:
        RunError: the text is not such a list.
    """
    matches = [re.fullmatch(r"(\d{1,4})-(\d{1,4})", part.strip()) for part in text.split(",")]
    if not all(matches):
        raise RunError(f"layers={shown(text)}; expected ranges with both ends included, e.g. 10-25,0-31")
    return [(int(match[1]), int(match[2])) for match in matches if match]


def parse_factors(text: str) -> list[float]:
    """Parse factors, such as ``1,0.5,-1``. Raise ``RunError`` if the text is malformed."""
    try:
        return list(dict.fromkeys(float(part) for part in text.split(",")))
    except ValueError:
        raise RunError(f"factors={shown(text)}; expected comma-separated numbers, e.g. 1,0.5,-1") from None


def main(arguments: Sequence[str] | None = None) -> None:
    options = parser(__doc__, method="channel-scaling", limit=10, depths=5)
    options.add_argument("--factors", default="1,0.5,0,-0.5,-1", help="factors; 1 is the plain model")
    options.add_argument("--layers", help="ranges of layers, e.g. 10-25,0-31; default: the method's, each half, all")
    run(
        options,
        arguments,
        lambda lm, samples, track, parsed: measure(
            lm, samples, make_method(parsed.method, parsed.model, ChannelScaling), parse_factors(parsed.factors),
            None if parsed.layers is None else parse_ranges(parsed.layers), track,
        ),
        "Channel scaled by factors\n{model}",
    )  # fmt: skip


if __name__ == "__main__":
    main()
