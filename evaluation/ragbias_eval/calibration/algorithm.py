"""Algorithm 1: find the positional channel, and the best factor and layers for scaling it.

Source: Yu et al., Mitigate Position Bias in Large Language Models via Scaling a Single Dimension, arXiv 2406.02536.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from operator import itemgetter
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray

from ragbias.lm import DebiasedLM
from ragbias.methods import ChannelScaling, NoMethod, Profile
from ragbias_eval.calibration.channel_search import (
    ChannelRanking,
    NoPositionalChannelError,
    layer_outputs,
    rank_channels,
)
from ragbias_eval.calibration.measurements import (
    gold_attention,
    layer_ranges,
    mean_states,
    measure_losses,
    paper_layers,
)
from ragbias_eval.calibration.partial_results import PartialResults
from ragbias_eval.calibration.samples import CalibrationSettings, Sample, make_calibration_set
from ragbias_eval.measures.per_question import group_by

MAX_CANDIDATES, MAX_BEST = 10, 3  # number of channels measured with one factor, and with all
FACTORS = (0.5, 0.0, -0.5, -1.0)
CURVE_POINTS = 200  # maximum number of points in a layer's curve
SIGNIFICANT_DIGITS = 6  # of numbers in the record

Progress = Callable[[str, int, int], None]  # arguments: stage, number of its steps, number of steps just done
Losses = dict[ChannelScaling | NoMethod, list[float]]  # one loss per sample


def calibrate(
    settings: CalibrationSettings, out: Path, restart: bool = False, progress: Progress = lambda *_: None
) -> Profile:
    """Run the search and write the profile to ``out``. Resume an interrupted search unless ``restart`` is set."""
    lm = DebiasedLM.from_pretrained(settings.model, "none", dtype=settings.dtype, device="auto")
    plan = settings.plan(lm.window)
    data = make_calibration_set(lm, plan)  # may raise an error, which must not leave files
    results = PartialResults(out, plan.as_dict(), restart)
    try:
        chosen, record = _search(lm, plan, *data, results, progress)
    except NoPositionalChannelError:
        results.remove()  # resuming would only repeat the failure
        raise
    config = lm.model.config.get_text_config()
    size, n_layers = config.hidden_size, config.num_hidden_layers
    layers = chosen.layer_indices(n_layers)
    profile = Profile(
        plan.model, size, n_layers, chosen.channels[0], chosen.factor, (layers[0], layers[-1]), round_floats(record)
    )
    profile.save(out)
    results.remove()
    return profile


def _search(
    lm: DebiasedLM, plan: CalibrationSettings, choose: Sequence[Sample], check: Sequence[Sample],
    results: PartialResults, progress: Progress,
) -> tuple[ChannelScaling, dict[str, Any]]:  # fmt: skip
    """Run or resume the search. Return the best setting, and a record of all measurements."""

    def measure(stage: str, samples: Sequence[Sample], methods: Sequence[ChannelScaling | NoMethod]) -> Losses:
        by_sample = []
        for index, sample in enumerate(samples if methods else ()):
            losses = partial(measure_losses, lm.model, sample, methods)
            by_sample.append(results.get_or_measure(f"{stage}: {index}", losses))
            progress(stage, len(samples), 1)
        return {method: [values[index] for values in by_sample] for index, method in enumerate(methods)}

    states = results.states(lambda: mean_states(lm, plan, partial(progress, "random strings", plan.strings)))
    ranking = rank_channels(states, MAX_CANDIDATES, variant=plan.variant)

    first_layers = paper_layers(lm.model.config.get_text_config().num_hidden_layers)
    removed = [ChannelScaling(channel, 0.0, layers=first_layers) for channel in ranking.ranked]
    measured = measure("channels", choose, [NoMethod(), *removed])
    best = sorted(removed, key=lambda method: mean(measured[method]))[:MAX_BEST]
    scaled = [replace(method, factor=factor) for method in best for factor in FACTORS]
    measured |= measure("factors", choose, [method for method in scaled if method not in measured])

    advance = partial(progress, "retrieving layers", len(choose))
    attention = results.get_or_measure("attention", lambda: gold_attention(lm.model, choose, plan.batch_size, advance))
    ranges = layer_ranges(attention)
    moved = [replace(_find_best(measured), layers=layers) for layers in dict.fromkeys(ranges.values())]
    measured |= measure("layers", choose, [method for method in moved if method not in measured])
    chosen = _find_best(measured)
    plain = measured[NoMethod()]

    checked = measure("check", check, [NoMethod(), chosen])
    against_plain = compute_difference(check, checked[chosen], checked[NoMethod()])
    return chosen, {
        "beats_plain": is_clear_gain(against_plain),
        "check": {
            "plain": summarise_losses(check, checked[NoMethod()]),
            "scaled": summarise_losses(check, checked[chosen]),
            **against_plain,
        },
        "choice": {
            "plain": summarise_losses(choose, plain),
            "scaled": {"by_depth": summarise_losses(choose, measured[chosen])["by_depth"]},  # mean: see "losses"
        },
        "losses": [
            {
                "channel": method.channel,
                "factor": method.factor,
                "layers": method.layers,
                "loss": mean(values),
                **compute_difference(choose, values, plain),
            }
            for method, values in measured.items()
            if isinstance(method, ChannelScaling)
        ],
        "layer_search": {
            "attention_by_layer": [
                {"layer": layer, "gold": gold, "other": other} for layer, (gold, other) in enumerate(attention)
            ],
            "ranges": ranges,
        },
        "channel_search": record_search(ranking, states),
        "curve": channel_curve(states, chosen.channels[0]),
        "settings": {**plan.as_dict(), "samples": len(choose), "check_samples": len(check)},
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
    }


def _find_best(measured: Losses) -> ChannelScaling:
    scaled = [method for method in measured if isinstance(method, ChannelScaling)]
    return min(scaled, key=lambda method: mean(measured[method]))


def compute_difference(samples: Sequence[Sample], values: Sequence[float], plain: Sequence[float]) -> dict[str, float]:
    """Compute the mean of ``values - plain`` over questions, and the standard error of this mean."""
    differences = [value - reference for value, reference in zip(values, plain, strict=True)]
    by_question = list(_mean_by_key([sample.question for sample in samples], differences).values())
    error = stdev(by_question) / len(by_question) ** 0.5 if len(by_question) > 1 else 0.0
    return {"difference": mean(by_question), "standard_error": error}


def is_clear_gain(against_plain: Mapping[str, float]) -> bool:
    """Whether the loss decreases by more than two standard errors. Always False for one question."""
    error = against_plain["standard_error"]
    return error > 0 and against_plain["difference"] < -2 * error


def summarise_losses(samples: Sequence[Sample], values: Sequence[float]) -> dict[str, Any]:
    """Compute the mean loss, and the mean loss by position of the gold document, counted from 1."""
    by_depth = _mean_by_key([sample.gold + 1 for sample in samples], values)
    return {"loss": mean(values), "by_depth": {str(depth): by_depth[depth] for depth in sorted(by_depth)}}


def _mean_by_key(keys: Sequence[int], values: Sequence[float]) -> dict[int, float]:
    groups = group_by(zip(keys, values, strict=True), itemgetter(0))
    return {key: mean(value for _, value in group) for key, group in groups.items()}


def record_search(ranking: ChannelRanking, states: NDArray[np.float64]) -> dict[str, Any]:
    """Describe the search as JSON data.

    ``position_correlation`` is Pearson's correlation between position and mean activation, by channel and layer. The
    first ``SearchRange.skip_fit`` positions are omitted. ``smoothness`` is low for smooth
    channels, because it contains their roughness.
    """
    tested_range = ranking.search_range
    tested = layer_outputs(states)[tested_range.first : tested_range.last + 1, tested_range.skip_fit :]
    positions = np.arange(tested.shape[1])
    correlation = {
        str(channel): {
            str(layer): float(np.corrcoef(positions, curves[:, channel])[0, 1])
            for layer, curves in enumerate(tested, start=tested_range.first)
        }
        for channel in ranking.ranked
    }
    return {
        "passed": ranking.passed,
        "tried": ranking.ranked,
        "windows": asdict(tested_range),
        "smoothness": {str(channel): value for channel, value in ranking.roughness.items()},
        "position_correlation": correlation,
        "monotone_layers": {str(channel): layers for channel, layers in ranking.monotone.items() if layers},
    }


def channel_curve(states: NDArray[np.float64], channel: int) -> dict[str, Any]:
    """Return a channel's mean activation by layer, at up to ``CURVE_POINTS`` positions."""
    outputs = layer_outputs(states)[:, :, channel]
    points = np.unique(np.linspace(0, outputs.shape[1] - 1, min(CURVE_POINTS, outputs.shape[1])).astype(int))
    by_layer = {str(layer): values[points].tolist() for layer, values in enumerate(outputs)}
    return {"positions": points.tolist(), "by_layer": by_layer}


def round_floats(data: Any) -> Any:
    """Round all floats in nested data to ``SIGNIFICANT_DIGITS``, and convert tuples to lists."""
    if isinstance(data, dict):
        return {name: round_floats(value) for name, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [round_floats(value) for value in data]
    return float(f"{data:.{SIGNIFICANT_DIGITS}g}") if isinstance(data, float) else data
