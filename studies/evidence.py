"""Extract evidence from summaries of studies, and format recommendations as Markdown and as ``evidence.json``."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from ragbias.data.intervals import NO_VALUE, format_figure
from ragbias.methods import get
from ragbias_eval import REFERENCE
from ragbias_eval.measures.aggregates import figures_of
from studies.advice import (
    MEASURES,
    Advice,
    Case,
    Effect,
    Figure,
    closest_to_qualifying,
    describe_coverage,
    describe_default,
    format_heading,
    give_reasons,
)
from studies.markdown import markdown_table


def as_json(all_advice: Sequence[Advice]) -> str:
    """Format the file that ``ragbias methods --advice`` prints: coverage, all recommendations, and the default."""
    rows = (
        {**asdict(advised), "heading": format_heading(advised), "reasons": [*give_reasons(advised)]}
        for advised in all_advice
    )
    rounded = json.loads(json.dumps([*rows]), parse_float=lambda text: round(float(text), 3))
    lines = ",\n".join(map(json.dumps, rounded))
    coverage, default = json.dumps(describe_coverage(all_advice)), json.dumps(describe_default(all_advice))
    return f'{{"coverage": {coverage}, "default": {default}, "advice": [\n{lines}\n]}}\n'


def extract_evidence(study: str, summary: Mapping[str, Any]) -> list[Case]:
    """Extract the effects of methods from a study's summary. Skip numbers without an interval."""
    cases = []
    for result in summary["results"]:
        plain = result["methods"].get(REFERENCE)
        for measure in result["measures"] if plain else ():
            figures = {label: figures_of(method, measure) for label, method in result["methods"].items()}
            effects = {
                label: _effect(label, result["model"], method, figures[label])
                for label, method in result["methods"].items()
                if label != REFERENCE and _with_interval((figures[label].get("minus_plain") or {}).get("mean"))
            }
            if effects:
                cases.append(
                    Case(
                        study=study,
                        model=result["model"],
                        task=result["task"],
                        documents=result["documents"],
                        measure=measure,
                        questions=plain["questions"],
                        tokens=round(plain["prompt_tokens"], 1),
                        gap=_with_interval(figures[REFERENCE]["gap"]),
                        effects=effects,
                    )
                )
    return cases


def _effect(label: str, model: str, method: Mapping[str, Any], figures: Mapping[str, Any]) -> Effect:
    declared = get(label, model)
    minus: Any = {name: _with_interval(figures["minus_plain"][name]) for name in ("mean", "worst", "best")}
    timed = method.get("cost", {}).get("prefill_ratio")
    return Effect(declared.acts_on, declared.invariant, **minus, cost=round(timed[0], 2) if timed else None)


def _with_interval(estimate: list[float | None] | None) -> Figure | None:
    """Return an estimate with its interval. Return None if it has no interval."""
    if not estimate or None in estimate:
        return None
    value, low, high = (number for number in estimate if number is not None)
    return value, low, high


def advice_table(all_advice: Sequence[Advice]) -> str:
    """Make a Markdown table with a row for each kind of task."""
    body = [
        [advised.kind, advised.method, "yes" if advised.invariant else "no", advised.evidence]
        if advised.cases
        else [advised.kind, NO_VALUE, NO_VALUE, advised.evidence]
        for advised in all_advice
    ]
    return markdown_table(["task", "use", "order-invariant", "evidence"], body) + "\n"


def evidence_tables(all_advice: Sequence[Advice]) -> str:
    """Make a table per kind of task, with a row per case: the recommended method, or the closest to qualifying."""
    parts = []
    head = ["study", "measure", "questions", "method", "minus the plain mean, 95% interval", "minus the worst", "cost"]
    for advised in all_advice:
        body = []
        for case in advised.measured:
            label = closest_to_qualifying(case) if advised.method == REFERENCE else advised.method
            effect = case.effects[label]
            worst = f"{effect.worst[0]:+.2f}" if effect.worst else NO_VALUE
            cost = f"x{effect.cost:.2f}" if effect.cost else NO_VALUE
            cells = [str(case.questions), label, format_figure(effect.mean, "+.2f"), worst, cost]
            body.append([case.study, MEASURES[case.measure], *cells])
        if body:
            kind = "closest to qualifying" if advised.method == REFERENCE else "recommended"
            parts.append(f"**{advised.kind}** ({kind})\n\n{markdown_table(head, body)}\n")
    return "\n".join(parts)
