"""Does a channel carry the position? `python -m ragbias.calibration.perturbation --model tiny` checks as the paper did.

Source: Yu et al., Mitigate Position Bias in Large Language Models via Scaling a Single Dimension, arXiv 2406.02536.
Scaling the channel up should turn the last token's attention to the beginning of the context, a negative factor to its
end. The channel should come from the causal mask and not from the position ids: letting each token see only the last
tokens changes its curve, shifting the ids hardly does.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from torch import Tensor
from transformers.utils import logging

from ragbias.calibration.calibration_set import Sample, calibration_set
from ragbias.calibration.calibration_settings import CalibrationPlan, CalibrationSettings
from ragbias.calibration.channel_search import SearchRange, layer_outputs
from ragbias.calibration.gold_attention import attention_to
from ragbias.calibration.mean_hidden_states import states_by_batch
from ragbias.calibration.profile_record import rounded
from ragbias.errors import RagBiasError
from ragbias.evaluation.model_loading import load_onto_gpu
from ragbias.lm import DebiasedLM
from ragbias.methods import ChannelScaling
from ragbias.methods.attention_sorting import DocumentAttention
from ragbias.methods.call import AttentionCall
from ragbias.methods.profiles import Profile, find
from ragbias.prompt import TokenisedPrompt

FACTORS = (2.0, 1.5, 1.0, 0.5, 0.0, -0.5, -1.0)


class ScaledAttention(DocumentAttention):
    """Runs the model with a channel scaled and measures the attention of the prompt's last token meanwhile."""

    def __init__(self, scaling: ChannelScaling) -> None:
        super().__init__()
        self._scaling = scaling

    def key_input(self, hidden: Tensor, layer: int) -> Tensor:
        return self._scaling.key_input(hidden, layer)

    def attention(self, call: AttentionCall) -> Tensor:
        hidden = self._scaling.query_input(call.hidden[:, -1:], call.layer, prefill=False)
        last = call.rotate(call.project("query", hidden))
        super().attention(replace(call, query=torch.cat([call.query[:, :, :-1], last], dim=2)))
        return self._scaling.attention(call)


def attention_by_factor(
    lm: DebiasedLM, profile: Profile, samples: Sequence[Sample], batch_size: int, progress: Callable[[int], None]
) -> list[dict[str, float]]:
    """The last token's attention to the first and to the last third of the documents' tokens, for each factor.

    Averaged over the profile's layers, heads and samples.
    """
    prompts = [thirds(sample.prompt) for sample in samples]
    first, last = profile.layers
    found = []
    for factor in FACTORS:
        observe = partial(ScaledAttention, ChannelScaling(profile.channel, factor, layers=profile.layers))
        mass = torch.stack(attention_to(lm.model, prompts, batch_size, progress, observe))
        beginning, _, end = mass[:, first : last + 1].mean((0, 1)).tolist()
        found.append({"factor": factor, "first_third": beginning, "last_third": end})
    return found


def thirds(prompt: TokenisedPrompt) -> TokenisedPrompt:
    """The prompt with its documents' tokens cut into three equal parts, the first ones longer by one where need be."""
    parts = torch.tensor([token for document in prompt.documents for token in document]).tensor_split(3)
    return replace(prompt, documents=[part.tolist() for part in parts])


def curve_correlations(
    lm: DebiasedLM, profile: Profile, plan: CalibrationPlan, progress: Callable[[int], None]
) -> list[dict[str, Any]]:
    """How alike the channel's mean curve stays, by perturbation: Pearson's correlation for each layer's output.

    All use the same strings, so what the content leaves in the mean counts as alike. The entry with other strings
    says how much that is: a channel that carries the position is alike there too.
    """
    quarter, positions = plan.length // 4, torch.arange(plan.length, device=lm.model.device)
    gap = positions + quarter * (positions >= plan.length // 2)
    inputs_of: dict[str, dict[str, Tensor]] = {
        "none": {},
        "other strings": {},
        f"mask cropped to the last {quarter} tokens": {"attention_mask": cropped_mask(lm, plan.length, quarter)},
        f"position ids plus {quarter}": {"position_ids": positions[None] + quarter},
        f"position ids of the second half plus {quarter}": {"position_ids": gap[None]},
    }
    curves: dict[str, NDArray[np.float64]] = {}
    for name, inputs in inputs_of.items():
        total, begin = np.zeros(()), plan.strings if name == "other strings" else 0
        for states, count in states_by_batch(lm, plan, begin, begin + plan.strings, **inputs):
            total = total + states
            progress(count)
        outputs = layer_outputs(total)
        searched = SearchRange.for_shape(len(outputs), plan.length)
        curves[name] = outputs[searched.first : searched.last + 1, searched.skip_fit :, profile.channel]
    unperturbed = curves.pop("none")
    return [
        {
            "perturbation": name,
            "correlation_by_layer": [float(np.corrcoef(*pair)[0, 1]) for pair in zip(unperturbed, found, strict=True)],
        }
        for name, found in curves.items()
    ]


def cropped_mask(lm: DebiasedLM, length: int, window: int) -> Tensor:
    """A mask ``[1, 1, T, T]`` to add to the scores: each token sees itself and the ``window - 1`` before it."""
    visible = torch.ones(length, length, dtype=torch.bool).tril().triu(1 - window)
    dtype = lm.model.dtype
    mask = torch.zeros(length, length, dtype=dtype).masked_fill(~visible, torch.finfo(dtype).min)
    return mask[None, None].to(lm.model.device)


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
        parser.exit(2, f"perturbation: {' '.join(str(error).split())}\n")


def _run(arguments: argparse.Namespace) -> None:
    sizes = {name: getattr(arguments, name) for name in ("strings", "length", "questions", "seed", "batch_size")}
    settings, profile = CalibrationSettings(arguments.model, **sizes), find(arguments.profile or arguments.model)
    lm = load_onto_gpu(settings.model)
    plan = settings.plan(lm.window)
    samples = calibration_set(lm, plan).choose
    console = Console()
    with Progress(console=console) as bar:
        task = bar.add_task("attention", total=len(FACTORS) * len(samples))
        attention = attention_by_factor(lm, profile, samples, plan.batch_size, lambda n: bar.advance(task, n))
        other = bar.add_task("channel curves", total=5 * plan.strings)
        curves = curve_correlations(lm, profile, plan, lambda n: bar.advance(other, n))
    _show(console, profile, attention, curves)
    if arguments.json:
        chosen = {"model": profile.model, "channel": profile.channel, "layers": profile.layers}
        results = {"profile": chosen, "settings": plan.as_dict(), "attention": attention, "curves": curves}
        arguments.json.write_text(json.dumps(rounded(results), indent=1) + "\n")


def _show(
    console: Console, profile: Profile, attention: Sequence[dict[str, float]], curves: Sequence[dict[str, Any]]
) -> None:
    table = Table(title=f"Attention of the last token, channel {profile.channel} scaled", box=None)
    for column in ("factor", "first third of the documents", "last third"):
        table.add_column(column, justify="right")
    for each in attention:
        table.add_row(f"{each['factor']:g}", f"{each['first_third']:.4f}", f"{each['last_third']:.4f}")
    console.print(table)
    table = Table(title="Correlation of the channel's curve with the unperturbed one", box=None)
    table.add_column("perturbation")
    table.add_column("by layer")
    for curve in curves:
        table.add_row(curve["perturbation"], " ".join(f"{value:.2f}" for value in curve["correlation_by_layer"]))
    console.print(table)


if __name__ == "__main__":
    main()
