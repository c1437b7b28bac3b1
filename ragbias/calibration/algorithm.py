"""Algorithm 1: find the channel that carries the position, the factor to scale it by, and the layers to scale it in.

Source: Yu et al., Mitigate Position Bias in Large Language Models via Scaling a Single Dimension, arXiv 2406.02536.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

import torch
import transformers

from ragbias.calibration.calibration_set import CalibrationSet, calibration_set
from ragbias.calibration.calibration_settings import CalibrationPlan, CalibrationSettings
from ragbias.calibration.channel_search import NoPositionalChannelError, search
from ragbias.calibration.measurements import gold_attention, layer_ranges, losses, mean_states, papers_layers
from ragbias.calibration.partial_results import PartialResults
from ragbias.calibration.profile_record import curve, difference, is_clear_gain, loss_by_depth, rounded, search_record
from ragbias.evaluation.prompts import Sample
from ragbias.lm import DebiasedLM
from ragbias.methods import ChannelScaling, NoMethod
from ragbias.methods.profiles import Profile

CANDIDATES, BEST = 10, 3  # channels whose loss is measured, and those tried with further factors
FACTORS = (0.5, 0.0, -0.5, -1.0)

Progress = Callable[[str, int, int], None]  # a stage, the steps just done, all steps of the stage
Measured = dict[ChannelScaling | NoMethod, list[float]]  # the loss of each sample


def no_progress(stage: str, done: int, total: int) -> None:
    """Report nothing."""


def begin(
    settings: CalibrationSettings, out: Path, restart: bool
) -> tuple[DebiasedLM, CalibrationPlan, CalibrationSet, PartialResults]:
    """The model, the plan for it, its calibration set and the results so far.

    Raises:
        MethodError: invalid settings, or partial results of other settings.
        ModelFileError: the model cannot be loaded.
    """
    lm = DebiasedLM.from_pretrained(settings.model, "none", dtype=settings.dtype, device="auto")
    plan = settings.plan(lm.window)
    data = calibration_set(lm, plan)  # may be refused, so before anything is written
    return lm, plan, data, PartialResults(out, plan.as_dict(), restart)


def calibrate(
    settings: CalibrationSettings, out: Path, restart: bool = False, progress: Progress = no_progress
) -> Profile:
    """Run the search and write the profile to ``out``. An interrupted search goes on when called again.

    Args:
        restart: delete the results of an unfinished calibration.
        progress: called with a stage, the steps just done and all steps of the stage.

    Raises:
        MethodError, RunError: see ``begin``.
        NoPositionalChannelError: no channel follows the position in any layer.
        OSError: ``out`` cannot be written.
    """
    lm, plan, data, results = begin(settings, out, restart)
    try:
        chosen, record = _Search(lm, plan, data, results, progress).run()
    except NoPositionalChannelError:
        results.remove()  # the search is finished, and would end the same way
        raise
    config = lm.model.config.get_text_config()
    size, n_layers = config.hidden_size, config.num_hidden_layers
    layers = chosen.layer_indices(n_layers)
    profile = Profile(
        plan.model, size, n_layers, chosen.channels[0], chosen.factor, (layers[0], layers[-1]), rounded(record)
    )
    profile.save(out)
    results.remove()
    return profile


class _Search:
    """One search; saved measurements are not repeated."""

    def __init__(
        self, lm: DebiasedLM, plan: CalibrationPlan, data: CalibrationSet, results: PartialResults, progress: Progress
    ) -> None:
        self._lm, self._plan, self._data, self._results, self._progress = lm, plan, data, results, progress

    def run(self) -> tuple[ChannelScaling, dict[str, Any]]:
        """The best setting, and everything measured as plain data."""
        lm, plan, choose = self._lm, self._plan, self._data.choose
        states = mean_states(lm, plan, self._results, lambda done: self._progress("random strings", done, plan.strings))
        ranking = search(states, CANDIDATES, variant=plan.variant, without=plan.without)

        first_layers = papers_layers(lm.model.config.get_text_config().num_hidden_layers)
        removed = [ChannelScaling(channel, 0.0, layers=first_layers) for channel in ranking.ranked]
        if "validation" in plan.without:
            removed = removed[:1]
        measured = self._losses("channels", choose, [NoMethod(), *removed])
        best = sorted(removed, key=lambda method: mean(measured[method]))[:BEST]
        scaled = [replace(method, factor=factor) for method in best for factor in FACTORS]
        measured |= self._losses("factors", choose, [each for each in scaled if each not in measured])
        together: Measured = {}
        if plan.pair and len(best) > 1:
            pair = replace(best[0], channel=tuple(method.channels[0] for method in best[:2]))
            together = self._losses("two channels", choose, [replace(pair, factor=factor) for factor in FACTORS])

        advance = partial(self._advance, "retrieving layers", len(choose))
        attention = self._results.once(
            "attention", advance, len(choose), lambda: gold_attention(lm.model, choose, plan.batch_size, advance)
        )
        ranges = layer_ranges(attention)
        moved = [replace(_lowest(measured), layers=layers) for layers in dict.fromkeys(ranges.values())]
        measured |= self._losses("layers", choose, [each for each in moved if each not in measured])
        chosen = _lowest(measured)

        check, plain = self._losses("check", self._data.check, [NoMethod(), chosen]), measured[NoMethod()]
        against_plain = difference(self._data.check, check[chosen], check[NoMethod()])
        record = {
            "beats_plain": is_clear_gain(against_plain),
            "check": {
                "plain": loss_by_depth(self._data.check, check[NoMethod()]),
                "scaled": loss_by_depth(self._data.check, check[chosen]),
                **against_plain,
            },
            "choice": {
                "plain": loss_by_depth(choose, plain),
                "scaled": {"by_depth": loss_by_depth(choose, measured[chosen])["by_depth"]},  # its loss is in losses
            },
            "losses": _rows(measured, choose, plain),
            **({"two_channels": _rows(together, choose, plain)} if together else {}),
            "layer_search": {
                "attention_by_layer": [
                    {"layer": layer, "gold": gold, "other": other} for layer, (gold, other) in enumerate(attention)
                ],
                "ranges": ranges,
            },
            "channel_search": search_record(ranking, states),
            "curve": curve(states, chosen.channels[0]),
            "settings": {**plan.as_dict(), "samples": len(choose), "check_samples": len(self._data.check)},
            "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
        }
        return chosen, record

    def _losses(self, stage: str, samples: Sequence[Sample], methods: Sequence[ChannelScaling | NoMethod]) -> Measured:
        """The losses of all samples, by method."""
        if not methods:
            return {}
        advance = partial(self._advance, stage, len(samples))

        def measure(sample: Sample) -> list[float]:
            found = losses(self._lm.model, sample, methods)
            advance(1)
            return found

        by_sample = [
            self._results.once(f"{stage}: {index}", advance, 1, partial(measure, sample))
            for index, sample in enumerate(samples)
        ]
        return {method: list(values) for method, values in zip(methods, zip(*by_sample, strict=True), strict=True)}

    def _advance(self, stage: str, total: int, done: int) -> None:
        self._progress(stage, done, total)


def _lowest(measured: Measured) -> ChannelScaling:
    scaled = [method for method in measured if isinstance(method, ChannelScaling)]
    return min(scaled, key=lambda method: mean(measured[method]))


def _rows(measured: Measured, samples: Sequence[Sample], plain: Sequence[float]) -> list[dict[str, Any]]:
    """Each setting with its loss, and the difference from plain."""
    return [
        {
            "channel": method.channel,
            "factor": method.factor,
            "layers": method.layers,
            "loss": mean(values),
            **difference(samples, values, plain),
        }
        for method, values in measured.items()
        if isinstance(method, ChannelScaling)
    ]
