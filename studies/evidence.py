"""The evidence that advice rests on, from summaries of studies; advice as Markdown and as the package's file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from ragbias.evaluation import REFERENCE
from ragbias.evaluation.measures.estimates import figures_of
from ragbias.evaluation.report.tables import NOTHING, markdown_table
from ragbias.methods import get
from studies.advice import MEASURES, Advice, Case, Effect, Figure, default_in_words, heading, in_words, nearest, reasons


def as_json(found: Sequence[Advice]) -> str:
    """The file that ``ragbias methods --advice`` prints: a sentence on the default method, and each recommendation."""
    lines = ",\n".join(
        json.dumps({**asdict(each), "heading": heading(each), "reasons": [*reasons(each)]}) for each in found
    )
    return f'{{"default": {json.dumps(default_in_words(found))}, "advice": [\n{lines}\n]}}\n'


def evidence_of(study: str, summary: Mapping[str, Any]) -> list[Case]:
    """The effects of methods in a study's summary, without figures that have no interval."""
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
    minus: Any = {name: _figure(figures["minus_plain"][name]) for name in ("mean", "worst", "best")}
    timed = method.get("cost", {}).get("prefill_ratio")
    return Effect(declared.acts_on, declared.invariant, **minus, cost=round(timed[0], 2) if timed else None)


def _figure(estimate: list[float | None] | None) -> Figure | None:
    """A figure with an interval, rounded to three digits."""
    if not estimate or None in estimate:
        return None
    value, low, high = (round(each, 3) for each in estimate if each is not None)
    return value, low, high


def advice_table(found: Sequence[Advice]) -> str:
    """A row for each kind of task."""
    body = [
        [each.kind, each.method, "yes" if each.invariant else "no", each.evidence]
        if each.cases
        else [each.kind, NOTHING, NOTHING, each.evidence]
        for each in found
    ]
    return markdown_table(["task", "use", "order-invariant", "evidence"], body) + "\n"


def evidence_tables(found: Sequence[Advice]) -> str:
    """For each kind of task a row for each case, with the recommended method or the closest one."""
    parts = []
    head = ["study", "measure", "questions", "method", "minus the plain mean, 95% interval", "minus the worst", "cost"]
    for each in found:
        body = []
        for case in each.measured:
            label = nearest(case) if each.method == REFERENCE else each.method
            effect = case.effects[label]
            worst = f"{effect.worst[0]:+.2f}" if effect.worst else NOTHING
            cost = f"x{effect.cost:.2f}" if effect.cost else NOTHING
            figures = [str(case.questions), label, in_words(effect.mean), worst, cost]
            body.append([case.study, MEASURES[case.measure], *figures])
        if body:
            kind = "closest to qualifying" if each.method == REFERENCE else "recommended"
            parts.append(f"**{each.kind}** ({kind})\n\n{markdown_table(head, body)}\n")
    return "\n".join(parts)
