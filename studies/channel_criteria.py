"""Leave out each criterion of the channel search, and scale two channels together (Table 6, arXiv 2406.02536).

Each row is a search: with all criteria, or without monotonicity, smoothness or validation. The last row scales the two
best channels of the first search together. Channels are scaled in the paper's layers. ``ragbias bench`` accepts the
resulting methods.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from itertools import pairwise
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ragbias.cli.terminal import console, quiet_libraries, select_fields, write_json
from ragbias.errors import RagBiasError
from ragbias.lm import DebiasedLM
from ragbias.methods import ChannelScaling, NoMethod, format_method
from ragbias_eval.calibration.algorithm import FACTORS, MAX_BEST, MAX_CANDIDATES, compute_difference
from ragbias_eval.calibration.calibration_report import format_difference
from ragbias_eval.calibration.channel_search import curve_roughness, layer_outputs, rank_channels
from ragbias_eval.calibration.measurements import measure_losses, paper_layers, sum_states
from ragbias_eval.calibration.samples import CalibrationSettings, Sample, draw_strings, make_calibration_set
from ragbias_eval.report.tables import make_table
from studies import arguments_of

States = NDArray[np.float64]
Measure = Callable[[Sequence[ChannelScaling]], dict[ChannelScaling, float]]


def rank_without_each(states: States, variant: str) -> dict[str, list[int]]:
    """Rank the channels, best first: with all criteria, without monotonicity, and without smoothness.

    Args:
        states: mean hidden states ``[n_hs, T, D]`` as in transformers, the embeddings first.
    """
    found = rank_channels(states, states.shape[2], variant=variant)
    outputs, combine = layer_outputs(states), min if variant == "released" else mean
    layers = range(found.search_range.first, found.search_range.last + 1)

    def roughness(channel: int) -> float:
        by_layer = [curve_roughness(outputs[layer, found.search_range.skip_smooth :, channel]) for layer in layers]
        return float(np.nan_to_num(combine(by_layer), nan=np.inf))  # constant channels come last

    return {
        "all": found.ranked,
        "monotonicity": sorted(range(states.shape[2]), key=roughness),
        "smoothness": sorted(found.ranked, key=lambda channel: (-len(found.monotone[channel]), channel)),
    }


def choose_methods(
    ranked: Mapping[str, Sequence[int]], layers: tuple[int, int], measure: Measure
) -> dict[str, ChannelScaling]:
    """Return the best setting by omitted criterion. The key ``"pair"`` has the best setting of two channels.

    Args:
        layers: first and last layer to scale.
        measure: returns the mean cross-entropy of right answers, by method.
    """
    chosen = {}
    for left_out, channels in {**ranked, "validation": ranked["all"][:1]}.items():
        removed = measure([ChannelScaling(channel, 0.0, layers=layers) for channel in channels[:MAX_CANDIDATES]])
        best = sorted(removed, key=removed.__getitem__)[:MAX_BEST]
        scaled = measure([replace(method, factor=factor) for method in best for factor in FACTORS])
        chosen[left_out] = min(scaled, key=scaled.__getitem__)
        if left_out == "all" and len(best) > 1:
            pair = replace(best[0], channel=tuple(method.channels[0] for method in best[:2]))
            together = measure([replace(pair, factor=factor) for factor in FACTORS])
            chosen["pair"] = min(together, key=together.__getitem__)
    return chosen


def compare_criteria(settings: CalibrationSettings) -> dict[str, Any]:
    """Search with all criteria and without each one, and compare the resulting methods with the plain model."""
    lm = DebiasedLM.from_pretrained(settings.model, "none", dtype=settings.dtype, device="auto")
    plan = settings.plan(lm.window)
    choose, check = make_calibration_set(lm, plan)
    edges = [*range(0, plan.strings, plan.batch_size), plan.strings]
    strings = (draw_strings(lm, *pair, plan.length, plan.seed) for pair in pairwise(edges))
    states = reduce(np.add, (sum_states(lm, ids) for ids in strings)) / plan.strings

    def by_sample(samples: Sequence[Sample], methods: Sequence[ChannelScaling | NoMethod]) -> list[list[float]]:
        return [
            list(values) for values in zip(*(measure_losses(lm.model, each, methods) for each in samples), strict=True)
        ]

    def measure(methods: Sequence[ChannelScaling]) -> dict[ChannelScaling, float]:
        return dict(zip(methods, map(mean, by_sample(choose, methods)), strict=True))

    layers = paper_layers(lm.model.config.get_text_config().num_hidden_layers)
    chosen = choose_methods(rank_without_each(states, plan.variant), layers, measure)
    plain, *checked = by_sample(check, [NoMethod(), *chosen.values()])
    rows = {
        left_out: {"method": format_method(method), "loss": mean(values), **compute_difference(check, values, plain)}
        for (left_out, method), values in zip(chosen.items(), checked, strict=True)
    }
    return {"settings": plan.as_dict(), "plain": mean(plain), "without": rows}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = arguments_of(__doc__)
    parser.add_argument("--model", required=True, help="name or folder")
    parser.add_argument("--data", type=Path, help="JSON lines with question, documents, answer and gold (an index)")
    parser.add_argument("--task", choices=("kv", "tiny"), help="questions; default: by model")
    parser.add_argument("--strings", type=int, default=500, help="number of random token strings")
    parser.add_argument("--length", type=int, help="tokens per string; default: 1000, or the window if smaller")
    parser.add_argument("--questions", type=int, help="drawn questions; default: 100, or 40 for tiny")
    parser.add_argument("--documents", type=int, help="documents of a drawn question; default: by task")
    parser.add_argument("--depths", type=int, default=5, help="positions of the gold document")
    parser.add_argument("--seed", type=int, default=0, help="seed of strings and questions")
    parser.add_argument("--variant", choices=("released", "paper"), default="released", help="channel search")
    parser.add_argument("--dtype", default="auto", help="dtype of the weights")
    parser.add_argument("--json", type=Path, help="file of the results")
    parsed = vars(parser.parse_args(arguments))
    out = parsed.pop("json")
    quiet_libraries()
    try:
        found = compare_criteria(CalibrationSettings(**select_fields(CalibrationSettings, parsed)))
    except RagBiasError as error:
        parser.exit(2, f"{error}\n")
    table = make_table(f"Loss on other questions; {found['plain']:.4f} without scaling", "left out", "method", "loss")
    for left_out, row in found["without"].items():
        table.add_row(left_out, row["method"], f"{row['loss']:.4f}")
    console.print(table)
    for left_out, row in found["without"].items():
        console.print(f"{left_out}: {format_difference(row)}")
    write_json(found, out)


if __name__ == "__main__":
    main()
