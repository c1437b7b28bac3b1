"""``ragbias report``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ragbias.cli.terminal import Force, JsonPath, check_file, console, write_json, write_text


def report(
    folders: Annotated[list[Path], typer.Argument(help="Output folders of `ragbias bench`.", metavar="DIR...")],
    html: Annotated[Path | None, typer.Option(help="Write a self-contained HTML file.", callback=check_file)] = None,
    against: Annotated[
        str | None, typer.Option(help="Show the paired differences of all other methods from this method.")
    ] = None,
    json_path: JsonPath = None,
    force: Force = False,
) -> None:
    """Show tables and figures of bench runs. Methods are sorted by accuracy at their worst position.

    Methods of several runs share a table if model, task and number of documents are equal.
    """
    from ragbias_eval.report import tables
    from ragbias_eval.report.combine import differences_from, summarise_runs
    from ragbias_eval.runs import read_run

    runs = [read_run(folder) for folder in folders]
    summary = summarise_runs(runs)
    for result in summary["results"]:
        console.print(*tables.as_tables(result), sep="\n")
        if against is not None:
            result["minus"] = {against: differences_from(result, runs, against)}
            console.print(*tables.as_tables_against(result, result["minus"][against], against), sep="\n")
        for note in result["notes"]:
            console.print(f"- {note}")
    for measure, legend in tables.LEGENDS.items():
        if any(measure in result["measures"] for result in summary["results"]):
            console.print(f"{legend} In brackets: 95% intervals.")
    if any(map(tables.shows_order, summary["results"])):
        console.print(f"order: {tables.ORDER_LEGEND}")
    if html is not None:
        from ragbias_eval.report.html import as_html  # imports matplotlib, which tables do not need

        write_text(as_html(summary, runs), html)
    write_json(summary, json_path)
    for path in filter(None, (html, json_path)):
        console.print(f"Written: {path}")
