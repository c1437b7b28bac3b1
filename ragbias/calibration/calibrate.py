"""Algorithm 1: find the channel that carries the position, by what factor to scale it, and in which layers.

Source: Yu et al., Mitigate Position Bias in Large Language Models via Scaling a Single Dimension, arXiv 2406.02536.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import torch
import transformers

from ragbias.calibration.attention import gold_attention, layer_ranges, middle_half
from ragbias.calibration.hidden import mean_states
from ragbias.calibration.loss import Scaling, losses
from ragbias.calibration.partial import Partial
from ragbias.calibration.record import curve, difference, layer_record, loss_row, losses_by_depth, search_record
from ragbias.calibration.samples import Sample, calibration_set
from ragbias.calibration.settings import Plan, Settings
from ragbias.calibration.statistics import search
from ragbias.errors import MethodError
from ragbias.lm import DebiasedLM
from ragbias.profiles import Profile

CANDIDATES, BEST = 10, 3  # channels whose loss is measured, and those that further factors are tried on
FACTORS = (0.5, 0.0, -0.5, -1.0)

Progress = Callable[[str, int, int], None]
Measured = dict[Scaling | None, list[float]]


def calibrate(
    settings: Settings, out: Path, restart: bool = False, progress: Progress = lambda stage, done, total: None
) -> Profile:
    """Run the search and write the profile to ``out``; stopped and called again, it goes on where it was.

    Args:
        restart: throw away what an unfinished calibration left.
        progress: called with a stage's name, the steps just done and all steps of the stage.

    Raises:
        MethodError: settings that do not fit, or an unfinished calibration with other settings.
        NoPositionalChannelError: no channel follows the position in any layer.
        OSError: no such model, or ``out`` cannot be written.
    """
    folder = out.absolute().parent
    if out.is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK):
        raise MethodError(f"calibrate: out={str(out)!r}; expected a file name in a folder that exists and is writable")
    lm = load(settings.model)
    plan = settings.plan(lm.window)
    partial = Partial(out, plan.as_dict(), restart)
    profile = _Calibration(lm, plan, settings.batch_size, partial, progress).run()
    profile.save(out)
    partial.remove()
    return profile


def load(model: str) -> DebiasedLM:
    """The model as it is, on the GPU if there is one."""
    lm = DebiasedLM.from_pretrained(model, method="none", dtype="auto")
    if torch.cuda.is_available():
        lm.model.cuda()  # type: ignore[call-arg]
    return lm


class _Calibration:
    """One run: a measurement that the partial results hold is not made again."""

    def __init__(self, lm: DebiasedLM, plan: Plan, batch_size: int, partial: Partial, progress: Progress) -> None:
        self._lm, self._plan, self._batch_size = lm, plan, batch_size
        self._partial, self._progress = partial, progress

    def run(self) -> Profile:
        plan, config = self._plan, self._lm.model.config.get_text_config()
        data = calibration_set(self._lm, plan.task, plan.questions, plan.documents, plan.depths, plan.seed, plan.data)
        states = mean_states(
            self._lm, plan.strings, plan.length, plan.seed, self._batch_size, self._partial,
            lambda done: self._progress("random strings", done, plan.strings),
        )  # fmt: skip
        ranking = search(states, CANDIDATES)

        middle = middle_half(config.num_hidden_layers)
        channels: list[Scaling] = [(channel, 0.0, middle) for channel in ranking.ranked]
        measured = self._losses("channels", data.choose, [None, *channels])
        best = sorted(channels, key=lambda scaling: mean(measured[scaling]))[:BEST]
        factors: list[Scaling] = [(channel, factor, middle) for channel, _, _ in best for factor in FACTORS]
        measured |= self._losses("factors", data.choose, factors)
        channel, factor, _ = _lowest(measured)

        attention = self._gold_attention(data.choose)
        ranges = layer_ranges(attention)
        measured |= self._losses("layers", data.choose, [(channel, factor, layers) for layers in ranges.values()])
        chosen = _lowest(measured)
        check = self._losses("check", data.check, [None, chosen])

        plain = measured[None]
        against_plain = difference(data.check, check[chosen], check[None])
        found: dict[str, Any] = {
            "beats_plain": against_plain["difference"] < -2 * against_plain["standard_error"],
            "check": {
                "plain": losses_by_depth(data.check, check[None]),
                "scaled": losses_by_depth(data.check, check[chosen]),
                **against_plain,
            },
            "choice": {
                "plain": losses_by_depth(data.choose, plain),
                "scaled": losses_by_depth(data.choose, measured[chosen]),
                **difference(data.choose, measured[chosen], plain),
            },
            "losses": [loss_row(data.choose, scaling, values, plain) for scaling, values in _scaled(measured)],
            "layer_search": layer_record(attention, ranges),
            "channel_search": search_record(ranking, states),
            "curve": curve(states, chosen[0]),
            "settings": {**plan.as_dict(), "samples": len(data.choose), "check_samples": len(data.check)},
            "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
        }
        return Profile(plan.model, int(config.hidden_size), int(config.num_hidden_layers), *chosen, measured=found)

    def _losses(self, stage: str, samples: Sequence[Sample], scalings: Sequence[Scaling | None]) -> Measured:
        """Losses of the samples with each setting; None is the plain model."""
        unique, of = list(dict.fromkeys(scalings)), "check" if stage == "check" else "choice"
        total = len(unique) * len(samples)
        found: Measured = {}
        for scaling in unique:
            measure = functools.partial(losses, self._lm.model, samples, scaling, self._batch_size)
            found[scaling] = self._once(f"{of}: {_name(scaling)}", stage, len(samples), total, measure)
        return found

    def _gold_attention(self, samples: Sequence[Sample]) -> list[tuple[float, float]]:
        measure = functools.partial(gold_attention, self._lm.model, samples, self._batch_size)
        found = self._once("attention", "retrieving layers", len(samples), len(samples), measure)
        return [(gold, other) for gold, other in found]

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


def _name(scaling: Scaling | None) -> str:
    if scaling is None:
        return "plain"
    channel, factor, (first, last) = scaling
    return f"channel {channel}, factor {factor:g}, layers {first}-{last}"


def _scaled(measured: Measured) -> list[tuple[Scaling, list[float]]]:
    return [(scaling, values) for scaling, values in measured.items() if scaling is not None]


def _lowest(measured: Measured) -> Scaling:
    return min(_scaled(measured), key=lambda pair: mean(pair[1]))[0]
