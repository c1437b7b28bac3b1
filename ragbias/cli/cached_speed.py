"""``ragbias speed --cached``, as it is shown."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.table import Table

from ragbias.cli.numeric import numbers, ranged
from ragbias.cli.terminal import console, progress, write_json
from ragbias.evaluation.cost.cached_speed import CachedSettings, run
from ragbias.evaluation.cost.speed_measurement import SpeedSettings
from ragbias.evaluation.report.plain_table import plain_table

KINDS = {"none": "plain", "cold": "cold", "memory": "in memory", "disk": "on disk"}


def cached_speed(
    methods: str | None,
    documents: str | None,
    tokens: list[int],
    prefixes: str | None,
    common: Mapping[str, Any],
    json_path: Path | None,
) -> None:
    """Measure and show; arguments as typed, ``common`` those of ``SpeedSettings``."""
    counts = tuple(numbers(documents) or (5, 20, 100))
    given = {"tokens": tuple(tokens), "prefixes": tuple(numbers(prefixes) or ())}
    settings = CachedSettings(
        SpeedSettings(methods=methods or "ape", documents=counts, **common),
        **{name: value for name, value in given.items() if value},
    )
    with progress() as bar:
        outcome = run(settings, bar)
    about = outcome["model"]
    console.print(
        f"{about['name']}, {about['weights']} weights, {about['dtype']}, {about['device']}, "
        f"{outcome['machine']['threads']} threads; median (range) of {settings.speed.rounds} rounds, the documents in "
        "another order in each. Faster, decoding: ratios to the plain model in the same round.",
        markup=False,
        highlight=False,
    )
    for result in outcome["results"]:
        console.print()
        console.print(_table(result))
    write_json(outcome, json_path)


def _table(result: Mapping[str, Any]) -> Table:
    before = f"{result['prefix']} tokens before them" if result["prefix"] else "nothing before them"
    title = (
        f"{result['method']}: {result['documents']} documents of {result['tokens']} tokens, {before}; "
        f"{result['bytes_per_token'] / 1024:,.1f} KiB/token; by arithmetic {result['limit']:.0f} times faster"
    )
    table = plain_table(title, "", "first token s", "faster (range)", "decoding (range)", "kept", wrap=True)
    for state, cost in result["states"].items():
        cells = (ranged(cost["faster"]), ranged(cost["decode_ratio"]), f"{cost['hit_rate']:.0%}")
        table.add_row(KINDS[state], f"{cost['first_token_seconds'][0]:.3f}", *(cells if state != "none" else ()))
    return table
