"""Does a channel carry the position? The checks of the paper: `python -m ragbias.calibration.perturb --model tiny`.

Source: Yu et al., Mitigate Position Bias in Large Language Models via Scaling a Single Dimension, arXiv 2406.02536.
Scaling the channel up should turn the last token's attention to the beginning of the context, a negative factor to its
end. The channel should come from the causal mask and not from the position ids: letting each token see only the last
tokens changes its curve, shifting the ids hardly does.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from torch import Tensor
from transformers.utils import logging

from ragbias.calibration.attention import last_token_attention
from ragbias.calibration.calibrate import load
from ragbias.calibration.hidden import random_strings, summed_states
from ragbias.calibration.samples import Sample, calibration_set
from ragbias.calibration.settings import Settings
from ragbias.calibration.statistics import Windows, layer_outputs
from ragbias.errors import RagBiasError
from ragbias.lm import DebiasedLM
from ragbias.methods import ChannelScaling
from ragbias.profiles import Profile, find

FACTORS = (2.0, 1.5, 1.0, 0.5, 0.0, -0.5, -1.0)


def attention_by_factor(
    lm: DebiasedLM, profile: Profile, samples: Sequence[Sample], batch_size: int, progress: Callable[[int], None]
) -> list[dict[str, float]]:
    """The last token's attention to the first and to the last third of the documents' tokens, for each factor.

    Averaged over the profile's layers, heads and samples.
    """
    rows = []
    for factor in FACTORS:
        scaling = ChannelScaling(profile.channel, factor, layers=profile.layers)
        first, last = [], []
        for begin in range(0, len(samples), batch_size):
            part = samples[begin : begin + batch_size]
            weights = last_token_attention(lm.model, [sample.prompt.ids for sample in part], scaling)
            for sample, layers in zip(part, weights, strict=True):
                spans = sample.prompt.spans
                thirds = layers[profile.layers[0] : profile.layers[1] + 1, spans[0][0] : spans[-1][1]].tensor_split(
                    3, 1
                )
                first.append(float(thirds[0].sum(1).mean()))
                last.append(float(thirds[2].sum(1).mean()))
            progress(len(part))
        rows.append({"factor": factor, "first_third": mean(first), "last_third": mean(last)})
    return rows


def curve_correlations(
    lm: DebiasedLM,
    profile: Profile,
    strings: int,
    length: int,
    seed: int,
    batch_size: int,
    progress: Callable[[int], None],
) -> list[dict[str, Any]]:
    """How alike the channel's mean curve stays, by perturbation: Pearson's correlation for each layer's output.

    The strings are the same in every row, so what the content leaves in the mean counts as alike. The row with other
    strings says how much that is: a channel that carries the position is alike there too.
    """
    quarter, device = length // 4, lm.model.device
    shifted = torch.arange(length, device=device) + quarter
    gap = torch.arange(length, device=device) + quarter * (torch.arange(length, device=device) >= length // 2)
    runs: dict[str, tuple[int, dict[str, Tensor]]] = {
        "none": (0, {}),
        "other strings": (strings, {}),
        f"mask cropped to the last {quarter} tokens": (0, {"attention_mask": cropped_mask(lm, length, quarter)}),
        f"position ids plus {quarter}": (0, {"position_ids": shifted[None]}),
        f"position ids of the second half plus {quarter}": (0, {"position_ids": gap[None]}),
    }
    curves: dict[str, NDArray[np.float64]] = {}
    for name, (offset, inputs) in runs.items():
        total = np.zeros(())
        for begin in range(0, strings, batch_size):
            end = min(begin + batch_size, strings)
            ids = random_strings(lm, offset + begin, offset + end, length, seed)
            total = total + summed_states(lm, ids, **inputs)
            progress(end - begin)
        outputs = layer_outputs(total / strings)
        windows = Windows.for_shape(len(outputs), length)
        curves[name] = outputs[windows.first : windows.last + 1, windows.skip_fit :, profile.channel]
    return [
        {
            "perturbation": name,
            "correlation_by_layer": [_correlation(*pair) for pair in zip(curves["none"], found, strict=True)],
        }
        for name, found in curves.items()
        if name != "none"
    ]


def cropped_mask(lm: DebiasedLM, length: int, window: int) -> Tensor:
    """A mask ``[1, 1, T, T]`` to add to the scores: each token sees itself and the ``window - 1`` before it."""
    visible = torch.ones(length, length, dtype=torch.bool).tril().triu(1 - window)
    dtype = lm.model.dtype
    mask = torch.zeros(length, length, dtype=dtype).masked_fill(~visible, torch.finfo(dtype).min)
    return mask[None, None].to(lm.model.device)


def _correlation(left: NDArray[np.float64], right: NDArray[np.float64]) -> float:
    return round(float(np.corrcoef(left, right)[0, 1]), 4)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="tiny", help="'tiny', a hub name or a path")
    parser.add_argument("--profile", help="a profile's file or a model's name; default: that of the model")
    parser.add_argument("--questions", type=int, default=20, help="each with its gold document at five depths")
    parser.add_argument("--strings", type=int, default=200, help="random token strings")
    parser.add_argument("--length", type=int, help="their tokens; default: 1000 or the model's window")
    parser.add_argument("--seed", type=int, default=1, help="draws strings and questions")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--json", type=Path, help="write the results here")
    arguments = parser.parse_args()
    logging.disable_progress_bar()
    try:
        _run(arguments)
    except (RagBiasError, OSError, ImportError) as error:
        parser.exit(2, f"perturb: {' '.join(str(error).split())}\n")


def _run(arguments: argparse.Namespace) -> None:
    settings = Settings(
        arguments.model, strings=arguments.strings, length=arguments.length, questions=arguments.questions,
        seed=arguments.seed, batch_size=arguments.batch_size,
    )  # fmt: skip
    profile = find(arguments.profile or arguments.model)
    lm = load(settings.model)
    plan = settings.plan(lm.window)
    samples = calibration_set(lm, plan.task, plan.questions, None, plan.depths, plan.seed, None).choose
    console = Console()
    with Progress(console=console) as bar:
        task = bar.add_task("attention", total=len(FACTORS) * len(samples))
        attention = attention_by_factor(lm, profile, samples, settings.batch_size, lambda n: bar.advance(task, n))
        other = bar.add_task("channel curves", total=5 * plan.strings)
        curves = curve_correlations(
            lm, profile, plan.strings, plan.length, plan.seed, settings.batch_size, lambda n: bar.advance(other, n)
        )
    _show(console, profile, attention, curves)
    if arguments.json:
        results: dict[str, Any] = {
            "profile": {"model": profile.model, "channel": profile.channel, "layers": list(profile.layers)}
        }
        results |= {"settings": plan.as_dict(), "attention": attention, "curves": curves}
        arguments.json.write_text(json.dumps(results, indent=1) + "\n")


def _show(
    console: Console, profile: Profile, attention: Sequence[dict[str, float]], curves: Sequence[dict[str, Any]]
) -> None:
    table = Table(title=f"Attention of the last token, channel {profile.channel} scaled", box=None)
    for column in ("factor", "first third of the documents", "last third"):
        table.add_column(column, justify="right")
    for row in attention:
        table.add_row(f"{row['factor']:g}", f"{row['first_third']:.4f}", f"{row['last_third']:.4f}")
    console.print(table)
    table = Table(title="Correlation of the channel's curve with the unperturbed one", box=None)
    table.add_column("perturbation")
    table.add_column("by layer")
    for curve in curves:
        table.add_row(curve["perturbation"], " ".join(f"{value:.2f}" for value in curve["correlation_by_layer"]))
    console.print(table)


if __name__ == "__main__":
    main()
