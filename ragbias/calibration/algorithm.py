"""Algorithm 1: find the channel that carries the position, by what factor to scale it, and in which layers.

Source: Yu et al., Mitigate Position Bias in Large Language Models via Scaling a Single Dimension, arXiv 2406.02536.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

from ragbias.calibration.answer_loss import losses
from ragbias.calibration.calibration_set import CalibrationSet, calibration_set
from ragbias.calibration.calibration_settings import CalibrationPlan, CalibrationSettings
from ragbias.calibration.channel_search import NoPositionalChannelError, search
from ragbias.calibration.gold_attention import ends, gold_attention, layer_ranges, papers_layers
from ragbias.calibration.mean_hidden_states import mean_states
from ragbias.calibration.partial_results import PartialResults
from ragbias.calibration.profile_record import Found, Measured, profile_record
from ragbias.errors import MethodError
from ragbias.evaluation.model_loading import load_onto_gpu
from ragbias.evaluation.prompts.samples import Sample
from ragbias.lm import DebiasedLM
from ragbias.methods import ChannelScaling, NoMethod
from ragbias.methods.profiles import Profile

CANDIDATES, BEST = 10, 3  # channels whose loss is measured, and those that further factors are tried on
FACTORS = (0.5, 0.0, -0.5, -1.0)

Progress = Callable[[str, int, int], None]


def calibrate(
    settings: CalibrationSettings,
    out: Path,
    restart: bool = False,
    progress: Progress = lambda stage, done, total: None,
) -> Profile:
    """Run the search and write the profile to ``out``; stopped and called again, it goes on where it was.

    Args:
        restart: throw away what an unfinished calibration left.
        progress: called with a stage's name, the steps just done and all steps of the stage.

    Raises:
        MethodError: settings that do not fit, or an unfinished calibration with other settings.
        NoPositionalChannelError: no channel follows the position in any layer.
        RunError: no such model, or a damaged one.
        OSError: ``out`` cannot be written.
    """
    checked_out(out)
    lm = load_onto_gpu(settings.model, settings.dtype)
    plan, config = settings.plan(lm.window), lm.model.config.get_text_config()
    data = calibration_set(lm, plan)  # before anything is written, for it may be refused
    partial = PartialResults(out, plan.as_dict(), restart)
    try:
        found = _Search(lm, plan, data, partial, progress).run()
    except NoPositionalChannelError:
        partial.remove()  # it is finished; the same again would find the same
        raise
    size, n_layers = config.hidden_size, config.num_hidden_layers
    chosen, layers = found.chosen, ends(found.chosen, n_layers)
    profile = Profile(plan.model, size, n_layers, found.channel, chosen.factor, layers, profile_record(plan, found))
    profile.save(out)
    partial.remove()
    return profile


def checked_out(out: Path) -> None:
    """Raise ``MethodError`` for a file that no record can be written to."""
    if out.suffix != ".json":
        raise MethodError(f"calibrate: out={str(out)!r}; expected a file name that ends with .json")
    folder = out.absolute().parent
    if out.is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK):
        raise MethodError(f"calibrate: out={str(out)!r}; expected a file name in a folder that exists and is writable")


class _Search:
    """One run: a measurement that the partial results hold is not made again."""

    def __init__(
        self,
        lm: DebiasedLM,
        plan: CalibrationPlan,
        data: CalibrationSet,
        partial: PartialResults,
        progress: Progress,
    ) -> None:
        self._lm, self._plan, self._data, self._partial, self._progress = lm, plan, data, partial, progress

    def run(self) -> Found:
        plan, n_layers = self._plan, self._lm.model.config.get_text_config().num_hidden_layers
        data = self._data
        states = mean_states(
            self._lm, plan, self._partial, lambda done: self._progress("random strings", done, plan.strings)
        )
        ranking = search(states, CANDIDATES, variant=plan.variant, without=plan.without)

        removed = [ChannelScaling(channel, 0.0, layers=papers_layers(n_layers)) for channel in ranking.ranked]
        if "validation" in plan.without:
            removed = removed[:1]
        measured = self._losses("channels", data.choose, [NoMethod(), *removed])
        best = sorted(removed, key=lambda method: mean(measured[method]))[:BEST]
        scaled = [replace(method, factor=factor) for method in best for factor in FACTORS]
        measured |= self._losses("factors", data.choose, [each for each in scaled if each not in measured])
        together: Measured = {}
        if plan.pair and len(best) > 1:
            pair = replace(best[0], channel=tuple(method.channels[0] for method in best[:2]))
            together = self._losses("two channels", data.choose, [replace(pair, factor=factor) for factor in FACTORS])

        measure = functools.partial(gold_attention, self._lm.model, data.choose, plan.batch_size)
        attention = self._once("attention", "retrieving layers", len(data.choose), len(data.choose), measure)
        ranges = layer_ranges(attention)
        moved = [replace(_lowest(measured), layers=layers) for layers in dict.fromkeys(ranges.values())]
        measured |= self._losses("layers", data.choose, [each for each in moved if each not in measured])
        chosen = _lowest(measured)
        check = self._losses("check", data.check, [NoMethod(), chosen])
        return Found(data, states, ranking, attention, ranges, measured, together, chosen, check)

    def _losses(self, stage: str, samples: Sequence[Sample], methods: Sequence[ChannelScaling | NoMethod]) -> Measured:
        """The losses of all samples, by method."""
        if not methods:
            return {}

        def measure(sample: Sample, advance: Callable[[int], None]) -> list[float]:
            found = losses(self._lm.model, sample, methods)
            advance(1)
            return found

        by_sample = [
            self._once(f"{stage}: {index}", stage, 1, len(samples), functools.partial(measure, sample))
            for index, sample in enumerate(samples)
        ]
        return {method: list(values) for method, values in zip(methods, zip(*by_sample, strict=True), strict=True)}

    def _once(
        self, name: str, stage: str, steps: int, total: int, measure: Callable[[Callable[[int], None]], list[Any]]
    ) -> list[Any]:
        """What ``measure`` gives, or gave before an interruption."""
        if name in self._partial.results:
            self._progress(stage, steps, total)
        else:
            self._partial.put(name, measure(lambda done: self._progress(stage, done, total)))
        found: list[Any] = self._partial.results[name]
        return found


def _lowest(measured: Measured) -> ChannelScaling:
    scaled = [method for method in measured if isinstance(method, ChannelScaling)]
    return min(scaled, key=lambda method: mean(measured[method]))
