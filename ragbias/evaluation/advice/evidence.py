"""What studies on real models found of each method against the plain model; the package brings it as a JSON file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import resources
from typing import Any, TypeAlias

from ragbias.evaluation.measures.estimates import figures_of
from ragbias.evaluation.names import REFERENCE
from ragbias.methods import get

FILE = "evidence.json"

Figure: TypeAlias = tuple[float, float, float]  # estimate, and the ends of its 95% interval


@dataclass(frozen=True)
class Effect:
    """One method against the plain model, paired by question.

    Attributes:
        acts_on, invariant: as the method declares.
        mean, worst, best: its mean over positions minus the plain model's mean over positions, its worst and its best
            position; None where there are no positions of a gold document.
        cost: its prefill in units of the plain model's; None: not measured.
    """

    acts_on: str
    invariant: bool
    mean: Figure
    worst: Figure | None
    best: Figure | None
    cost: float | None


@dataclass(frozen=True)
class Case:
    """What one measure found for one model, task and number of documents.

    Attributes:
        study: the folder in ``docs/results`` that holds it.
        measure: ``"accuracy"`` or ``"logprob"`` (of the gold answer, in nats).
        tokens: of a prompt, on average.
        gap: the plain model's best position minus its worst; None where there are no positions.
        effects: by method, with its parameters.
    """

    study: str
    model: str
    task: str
    documents: int
    measure: str
    questions: int
    tokens: float
    gap: Figure | None
    effects: Mapping[str, Effect]


def packaged() -> list[Case]:
    """The evidence that this version of the package brings."""
    return from_json((resources.files(__package__) / FILE).read_text(encoding="utf-8"))


def from_json(text: str) -> list[Case]:
    """The evidence of a file, as ``as_json`` writes it."""
    return [_case(plain) for plain in json.loads(text)]


def _case(plain: Mapping[str, Any]) -> Case:
    effects = {label: Effect(**{**effect, **_figures(effect)}) for label, effect in plain["effects"].items()}
    return Case(**{**plain, "gap": _figure(plain["gap"]), "effects": effects})


def _figures(effect: Mapping[str, Any]) -> dict[str, Figure | None]:
    return {name: _figure(effect[name]) for name in ("mean", "worst", "best")}


def as_json(cases: Sequence[Case]) -> str:
    """The text of an evidence file, a line for each case."""
    return "[\n" + ",\n".join(json.dumps(asdict(case)) for case in cases) + "\n]\n"


def evidence_of(study: str, summary: Mapping[str, Any]) -> list[Case]:
    """What a study's summary, as ``aggregates.summarise`` gives it, says of methods; without what has no interval."""
    found = []
    for result in summary["results"]:
        plain = result["methods"].get(REFERENCE)
        for measure in result["measures"] if plain else ():
            own = {label: figures_of(method, measure) for label, method in result["methods"].items()}
            effects = {
                label: _effect(label, result["model"], method, own[label])
                for label, method in result["methods"].items()
                if label != REFERENCE and _figure((own[label].get("minus_plain") or {}).get("mean"))
            }
            if effects:
                found.append(
                    Case(
                        study=study,
                        model=result["model"],
                        task=result["task"],
                        documents=result["documents"],
                        measure=measure,
                        questions=plain["questions"],
                        tokens=round(plain["prompt_tokens"], 1),
                        gap=_figure(own[REFERENCE]["gap"]),
                        effects=effects,
                    )
                )
    return found


def _effect(label: str, model: str, method: Mapping[str, Any], figures: Mapping[str, Any]) -> Effect:
    declared = get(label, model)
    minus = figures["minus_plain"]
    mean = _figure(minus["mean"])
    assert mean is not None  # what has none is left out above
    timed = method.get("cost", {}).get("prefill_ratio")
    return Effect(
        acts_on=declared.acts_on,
        invariant=declared.invariant,
        mean=mean,
        worst=_figure(minus["worst"]),
        best=_figure(minus["best"]),
        cost=round(timed[0], 2) if timed else None,
    )


def _figure(estimate: list[float | None] | None) -> Figure | None:
    """A figure that has an interval, rounded to three digits."""
    if not estimate or None in estimate:
        return None
    value, low, high = (round(each, 3) for each in estimate if each is not None)
    return value, low, high
