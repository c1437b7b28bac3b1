"""Search the parameters of APE, SIW or layer-wise position interpolation for a model, one parameter after another.

APE is tuned without labels, by the mean divergence KL(plain || method) of the next token after each prompt. SIW and
position interpolation are tuned by the cross-entropy of right answers. The record contains both numbers for all
methods.

Repeat the command to resume an interrupted search. The exit code is 1 if SIW or position interpolation does not clearly
lower the loss on other questions.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any, Literal

import torch
from rich.table import Table
from torch import Tensor

from ragbias.cache import DocumentCache
from ragbias.cli.terminal import console, progress, quiet_libraries, select_fields
from ragbias.errors import RagBiasError
from ragbias.files import write_atomically
from ragbias.generation.scoring import continuation_logits, kl
from ragbias.lm import DebiasedLM
from ragbias.methods import SIW, AdaptiveParallelEncoding, Method, NoMethod, PositionInterpolation, format_method
from ragbias_eval.calibration.algorithm import Progress, compute_difference, is_clear_gain, round_floats
from ragbias_eval.calibration.calibration_report import format_difference, stage_progress
from ragbias_eval.calibration.partial_results import PartialResults
from ragbias_eval.calibration.samples import CalibrationSettings, Sample, make_calibration_set
from ragbias_eval.report.tables import make_table
from studies import arguments_of

SWEEPS = 4  # maximum; most searches end after two
CACHE_MEMORY = "4GB"  # above this, documents are dropped from the cache and computed again
TENTHS = tuple(tenth / 10 for tenth in range(1, 11))
RATIOS = (0.8, 1.0, 1.2, 1.4, 1.6, 1.8, 2.0)
Setting = dict[str, float]


@dataclass(frozen=True)
class SearchSpace:
    """The values to try for each parameter of a method, the initial values, and the measure to minimise."""

    axes: Mapping[str, Sequence[float]]
    start: Setting
    method: Callable[[Setting, int], Method]
    by: Literal["divergence", "loss"]


def _make_interpolation(setting: Setting, n_layers: int) -> PositionInterpolation:
    """Build a method whose ratio changes linearly from the first to the last layer."""
    first, last = setting["first"], setting["last"]
    steps = [layer / max(1, n_layers - 1) for layer in range(n_layers)]
    return PositionInterpolation([round(first + (last - first) * step, 4) for step in steps])


SPACES = {
    "ape": SearchSpace(
        {"temperature": TENTHS, "scale": TENTHS},
        {"temperature": 1.0, "scale": 1.0},
        lambda setting, n_layers: AdaptiveParallelEncoding(setting["temperature"], setting["scale"]),
        "divergence",
    ),
    "siw": SearchSpace(
        {"dense": (0.3, 0.5, 0.7, 0.9, 1.0), "sparse": (1.0, 1.1, 1.3, 1.5, 2.0), "sigma": (0.5, 0.75, 1.0, 1.25, 1.5)},
        {"dense": 0.9, "sparse": 1.1, "sigma": 1.0},
        lambda setting, n_layers: SIW(setting["dense"], setting["sparse"], setting["sigma"]),
        "loss",
    ),
    "position-interpolation": SearchSpace(
        {"first": RATIOS, "last": RATIOS}, {"first": 1.0, "last": 1.0}, _make_interpolation, "loss"
    ),
}


def search_parameters(
    name: str,
    settings: CalibrationSettings,
    out: Path,
    restart: bool = False,
    progress: Progress = lambda *_: None,
) -> dict[str, Any]:
    """Search the parameters of the method ``name`` and write the record to ``out``. An interrupted search resumes.

    ``beats_plain`` says whether the best setting lowers the loss on other questions by more than two standard errors.
    """
    lm = DebiasedLM.from_pretrained(settings.model, "none", dtype=settings.dtype, device="auto")
    plan = settings.plan(lm.window)
    choose, check_samples = make_calibration_set(lm, plan)
    described = {**plan.as_dict(), "method": name}
    results = PartialResults(out, described, restart)
    search = _Search(lm.model.config.get_text_config().num_hidden_layers, SPACES[name], results, progress)
    if search.method(search.space.start).reusable_documents:
        lm.cache = DocumentCache(memory=CACHE_MEMORY)  # the documents' states are the same for all settings
    best = search.descend(Comparison(lm, choose))
    chosen, check = search.tried[str(best)], search.check(Comparison(lm, check_samples), best)
    by = search.space.by
    record = round_floats(
        {
            "version": 1,
            "model": plan.model,
            "method": format_method(search.method(best)),
            "by": by,
            "tried": sorted(search.tried.values(), key=lambda found: (found[by], found is not chosen)),
            "check": check,
            "beats_plain": is_clear_gain(check["best"]) if by == "loss" else None,
            "settings": {**described, "samples": len(choose), "check_samples": len(check_samples)},
        }
    )
    write_atomically(out, (json.dumps(record, indent=1) + "\n").encode())
    results.remove()
    return dict(record)


class _Search:
    """One search. It does not repeat saved measurements."""

    def __init__(self, n_layers: int, space: SearchSpace, results: PartialResults, progress: Progress) -> None:
        self._n_layers, self._results, self._progress = n_layers, results, progress
        self.space = space
        self.tried: dict[str, dict[str, Any]] = {}

    def method(self, setting: Setting) -> Method:
        return self.space.method(setting, self._n_layers)

    def descend(self, samples: Comparison) -> Setting:
        """Optimise one parameter after another, in at most ``SWEEPS`` sweeps. Return the best setting."""
        best, by = dict(self.space.start), self.space.by
        for sweep in range(1, SWEEPS + 1):
            before = dict(best)
            for axis, values in self.space.axes.items():
                advance = partial(self._progress, f"sweep {sweep}: {axis}", len(values) * len(samples.samples))
                found = {}
                for value in values:
                    setting = {**best, axis: value}
                    figures = self._measure(f"choice {setting}", samples, self.method(setting), advance)
                    self.tried[str(setting)] = {**setting, **_mean_figures(figures)}
                    found[value] = self.tried[str(setting)][by]
                lowest = min(values, key=found.__getitem__)
                if found[lowest] < found[best[axis]]:
                    best[axis] = lowest
            if best == before:
                break
        return best

    def check(self, unseen: Comparison, best: Setting) -> dict[str, dict[str, float]]:
        """Measure the plain model, the initial setting and the best setting on samples of other questions."""
        methods = {"plain": NoMethod(), "start": self.method(self.space.start), "best": self.method(best)}
        advance = partial(self._progress, "check", len(methods) * len(unseen.samples))
        found = {name: self._measure(f"check {name}", unseen, method, advance) for name, method in methods.items()}
        plain = found["plain"]["loss"]
        against = {name: compute_difference(unseen.samples, found[name]["loss"], plain) for name in ("start", "best")}
        return {name: {**_mean_figures(figures), **against.get(name, {})} for name, figures in found.items()}

    def _measure(
        self, name: str, comparison: Comparison, method: Method, advance: Callable[[int], None]
    ) -> dict[str, list[float]]:
        figures: dict[str, list[float]] = self._results.get_or_measure(name, partial(comparison.figures, method))
        advance(len(comparison.samples))
        return figures


def _mean_figures(figures: Mapping[str, Sequence[float]]) -> dict[str, float]:
    return {name: mean(values) for name, values in figures.items()}


class Comparison:
    """Compare methods with the plain model, which runs only once per sample."""

    def __init__(self, lm: DebiasedLM, samples: Sequence[Sample]) -> None:
        self._lm, self.samples = lm, samples
        self._plain: list[Tensor] = []  # one float32 [V] per sample so far, on the CPU to save GPU memory

    def figures(self, method: Method) -> dict[str, list[float]]:
        """Measure KL(plain || method) of the next token and the mean loss of an answer token, per sample, in nats."""
        figures: dict[str, list[float]] = {"divergence": [], "loss": []}
        for index, sample in enumerate(self.samples):
            if index == len(self._plain):
                self._plain.append(self._logprobs(sample, NoMethod(), sample.answer[:1])[0].cpu())
            logprobs = self._logprobs(sample, method, sample.answer)
            answer = torch.tensor(sample.answer, device=logprobs.device)
            figures["divergence"].append(kl(self._plain[index].to(logprobs.device), logprobs[0]))
            figures["loss"].append(-float(logprobs.gather(1, answer[:, None]).mean()))
        return figures

    def _logprobs(self, sample: Sample, method: Method, target: Sequence[int]) -> Tensor:
        return continuation_logits(self._lm.loaded, sample.prompt, method, target).log_softmax(-1)


def _make_table(record: Mapping[str, Any]) -> Table:
    figures = ("divergence", "loss")
    names = [name for name in record["tried"][0] if name not in figures]
    table = make_table(f"Best by {record['by']}", *names, "divergence from plain", "loss")
    for tried in record["tried"][:10]:
        table.add_row(*(f"{tried[name]:g}" for name in names), *(f"{tried[name]:.4f}" for name in figures))
    return table


def main(arguments: Sequence[str] | None = None) -> None:
    parser = arguments_of(__doc__)
    parser.add_argument("--model", required=True, help="name or folder")
    parser.add_argument("--method", choices=SPACES, required=True, help="method to tune")
    parser.add_argument("--out", type=Path, required=True, help="JSON file of the record")
    parser.add_argument("--data", type=Path, help="JSON lines with question, documents, answer and gold (an index)")
    parser.add_argument("--task", choices=("kv", "tiny"), help="questions; default: by model")
    parser.add_argument("--questions", type=int, help="drawn questions; default: 100, or 40 for tiny")
    parser.add_argument("--documents", type=int, help="documents of a drawn question; default: by task")
    parser.add_argument("--depths", type=int, default=5, help="positions of the gold document")
    parser.add_argument("--seed", type=int, default=0, help="seed of drawn questions")
    parser.add_argument("--dtype", default="auto", help="dtype of the weights")
    parser.add_argument("--restart", action="store_true", help="delete the results of an interrupted search")
    parsed = vars(parser.parse_args(arguments))
    method, out, restart = (parsed.pop(name) for name in ("method", "out", "restart"))
    quiet_libraries()
    try:
        settings = CalibrationSettings(**select_fields(CalibrationSettings, parsed))
        with progress() as bar:
            record = search_parameters(method, settings, out, restart, stage_progress(bar))
    except RagBiasError as error:
        parser.exit(2, f"{error}\n")
    console.print(_make_table(record))
    console.print("On other questions:")
    for name, row in record["check"].items():
        against_plain = f", {format_difference(row)}" if "difference" in row else ""
        console.print(f"  {name}: divergence {row['divergence']:.4f}, loss {row['loss']:.4f}{against_plain}")
    console.print(f"Best: {record['method']}")
    if record["beats_plain"] is False:
        console.print("This is not clearly better than the plain model.")
        raise SystemExit(1)


if __name__ == "__main__":
    main()
