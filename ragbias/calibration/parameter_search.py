"""Parameters of APE, SIW and layer-wise position interpolation for a model, searched axis by axis.

APE is tuned without labels: by the mean divergence KL(plain || method) of the next token after each prompt. The others
are tuned by the loss of the right answers, and the loss is measured for all of them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any, Literal

import torch
from torch import Tensor

from ragbias.cache import DocumentCache
from ragbias.calibration.algorithm import Progress, checked_out
from ragbias.calibration.calibration_set import calibration_set
from ragbias.calibration.calibration_settings import CalibrationSettings
from ragbias.calibration.partial_results import PartialResults
from ragbias.calibration.profile_record import difference, is_clear_gain, rounded
from ragbias.evaluation.model_loading import load_onto_gpu
from ragbias.evaluation.prompts.samples import Sample
from ragbias.files import write_atomically
from ragbias.generation.scoring import continuation_logits, kl
from ragbias.lm import DebiasedLM
from ragbias.methods import SIW, AdaptiveParallelEncoding, Method, NoMethod, PositionInterpolation

SWEEPS = 4  # at most; most searches settle in two
Setting = dict[str, float]
TENTHS = tuple(tenth / 10 for tenth in range(1, 11))
KEPT = "4GB"  # of documents; with more of them, the longest unused are computed again
RATIOS = (0.8, 1.0, 1.2, 1.4, 1.6, 1.8, 2.0)


@dataclass(frozen=True)
class SearchSpace:
    """What is searched for a method.

    Attributes:
        axes: by parameter, the values that are tried.
        start: one of them for each.
        method: the method with such parameters, in a model of so many layers.
        by: what shall be small.
    """

    axes: Mapping[str, Sequence[float]]
    start: Setting
    method: Callable[[Setting, int], Method]
    by: Literal["divergence", "loss"]


def _on_a_line(setting: Setting, n_layers: int) -> PositionInterpolation:
    """A ratio for each layer, on a line from the first to the last."""
    first, last = setting["first"], setting["last"]
    steps = [layer / max(1, n_layers - 1) for layer in range(n_layers)]
    return PositionInterpolation([round(first + (last - first) * step, 4) for step in steps])


SPACES = {
    "ape": SearchSpace(
        {"temperature": TENTHS, "scale": TENTHS},
        {"temperature": 1.0, "scale": 1.0},
        lambda setting, n_layers: AdaptiveParallelEncoding(**setting),
        "divergence",
    ),
    "siw": SearchSpace(
        {"dense": (0.3, 0.5, 0.7, 0.9, 1.0), "sparse": (1.0, 1.1, 1.3, 1.5, 2.0), "sigma": (0.5, 0.75, 1.0, 1.25, 1.5)},
        {"dense": 0.9, "sparse": 1.1, "sigma": 1.0},
        lambda setting, n_layers: SIW(setting["dense"], setting["sparse"], setting["sigma"]),
        "loss",
    ),
    "position-interpolation": SearchSpace(
        {"first": RATIOS, "last": RATIOS}, {"first": 1.0, "last": 1.0}, _on_a_line, "loss"
    ),
}


def search_parameters(
    settings: CalibrationSettings,
    out: Path,
    restart: bool = False,
    progress: Progress = lambda stage, done, total: None,
) -> dict[str, Any]:
    """Search the parameters of ``settings.method`` and write the record to ``out``; goes on where it was interrupted.

    Returns:
        ``method`` (as it is typed), ``by``, ``tried`` (settings with divergence and loss, the best first), ``check``
        (plain, start and best on questions that had no part in the choice; of the latter two the loss's difference from
        plain and its standard error over questions), ``beats_plain`` (whether the best one's loss is lower there by
        more than two standard errors; None where the loss does not choose), ``settings``.

    Raises:
        MethodError, RunError, OSError: as of ``calibrate``.
    """
    checked_out(out)
    lm = load_onto_gpu(settings.model, settings.dtype)
    plan = settings.plan(lm.window)
    data = calibration_set(lm, plan)
    partial_results = PartialResults(out, plan.as_dict(), restart)
    search = _Search(lm.model.config.get_text_config().num_hidden_layers, plan.method, partial_results, progress)
    if search.at(search.space.start).reusable_documents:
        lm.cache = DocumentCache(memory=KEPT)  # no setting changes what is computed of the documents
    best = search.descend(Comparison(lm, data.choose))
    chosen = search.tried[str(best)]
    tried = sorted(search.tried.values(), key=lambda found: (found[search.space.by], found is not chosen))
    check = search.check(Comparison(lm, data.check), best)
    record = {
        "version": 1,
        "model": plan.model,
        "method": typed(search.at(best)),
        "by": search.space.by,
        "tried": tried,
        "check": check,
        "beats_plain": is_clear_gain(check["best"]) if search.space.by == "loss" else None,
        "settings": {**plan.as_dict(), "samples": len(data.choose), "check_samples": len(data.check)},
    }
    record = {name: rounded(value) for name, value in record.items()}
    write_atomically(out, (json.dumps(record, indent=1) + "\n").encode())
    partial_results.remove()
    return record


class _Search:
    """One search; a measurement that the partial results hold is not made again."""

    def __init__(self, n_layers: int, method: str, results: PartialResults, progress: Progress) -> None:
        self._n_layers, self._results, self._progress = n_layers, results, progress
        self.space = SPACES[method]
        self.tried: dict[str, dict[str, Any]] = {}

    def at(self, setting: Setting) -> Method:
        return self.space.method(setting, self._n_layers)

    def descend(self, samples: Comparison) -> Setting:
        """The best setting, one axis after the other until none of them changes it."""
        best = dict(self.space.start)
        for sweep in range(1, SWEEPS + 1):
            before = dict(best)
            for axis, values in self.space.axes.items():
                stage = partial(self._advance, f"sweep {sweep}: {axis}", len(values) * len(samples))
                found = {value: self._objective({**best, axis: value}, samples, stage) for value in values}
                lowest = min(values, key=found.__getitem__)
                if found[lowest] < found[best[axis]]:
                    best[axis] = lowest
            if best == before:
                break
        return best

    def check(self, unseen: Comparison, best: Setting) -> dict[str, dict[str, float]]:
        """Plain, start and best on samples that had no part in the choice."""
        compared = {"plain": NoMethod(), "start": self.at(self.space.start), "best": self.at(best)}
        stage = partial(self._advance, "check", len(compared) * len(unseen))
        found = {name: self._measured(f"check {name}", unseen, method, stage) for name, method in compared.items()}
        plain = found["plain"]["loss"]
        against = {name: difference(unseen.samples, found[name]["loss"], plain) for name in ("start", "best")}
        return {name: {**_means(figures), **against.get(name, {})} for name, figures in found.items()}

    def _advance(self, stage: str, total: int, done: int) -> None:
        self._progress(stage, done, total)

    def _objective(self, setting: Setting, samples: Comparison, stage: Callable[[int], None]) -> float:
        found = _means(self._measured(f"choice {setting}", samples, self.at(setting), stage))
        self.tried[str(setting)] = {**setting, **found}
        return found[self.space.by]

    def _measured(
        self, name: str, samples: Comparison, method: Method, stage: Callable[[int], None]
    ) -> dict[str, list[float]]:
        """Divergence of the next token from the plain model's (nats), and loss of the answer, of each sample."""
        if name in self._results.results:
            stage(len(samples))
        else:
            figures = []
            for each in samples.figures(method):
                figures.append(each)
                stage(1)
            divergences, losses = map(list, zip(*figures, strict=True))
            self._results.put(name, {"divergence": divergences, "loss": losses})
        found: dict[str, list[float]] = self._results.results[name]
        return found


def _means(figures: Mapping[str, Sequence[float]]) -> dict[str, float]:
    return {name: mean(values) for name, values in figures.items()}


class Comparison:
    """Samples on which methods are compared with the plain model, which runs each of them once."""

    def __init__(self, lm: DebiasedLM, samples: Sequence[Sample]) -> None:
        self._lm, self.samples = lm, samples
        self._plain: list[Tensor] = []  # of the samples so far, float32 [V] on the CPU, where there is more room

    def __len__(self) -> int:
        return len(self.samples)

    def figures(self, method: Method) -> Iterator[tuple[float, float]]:
        """For each sample KL(plain || method) of the next token, and the mean loss of an answer's token, in nats."""
        for index, sample in enumerate(self.samples):
            if index == len(self._plain):
                self._plain.append(self._logprobs(sample, NoMethod(), sample.answer[:1])[0].cpu())
            own = self._logprobs(sample, method, sample.answer)
            answer = torch.tensor(sample.answer, device=own.device)
            yield kl(self._plain[index].to(own.device), own[0]), -float(own.gather(1, answer[:, None]).mean())

    def _logprobs(self, sample: Sample, method: Method, target: Sequence[int]) -> Tensor:
        logits = continuation_logits(self._lm.model, sample.prompt, method, target, self._lm.backend, self._lm.cache)
        return logits.log_softmax(-1)


def typed(method: Method) -> str:
    """The method with its parameters, as it is typed on a command line."""
    shown = {name: value for name, value in vars(method).items() if value is not None}
    values = ",".join(f"{name}={list(value) if isinstance(value, tuple) else value}" for name, value in shown.items())
    return f"{method.name}({values.replace(' ', '')})"
