"""``ragbias calibrate``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from ragbias import limits
from ragbias.checks import Bounds
from ragbias.cli import terminal
from ragbias.cli.terminal import whole


def _json_file(context: typer.Context, path: Path) -> Path | None:
    if path.suffix != ".json":  # the plot has the same name with another suffix
        raise typer.BadParameter(f"{path} does not end with .json; expected the name of a profile")
    terminal.writable(context, path.with_suffix(".png"))
    return terminal.writable(context, path)


DTYPE = "Weights: auto, float32, bfloat16 or float16."


def calibrate(
    context: typer.Context,
    model: Annotated[str, typer.Option(help=terminal.MODELS)],
    out: Annotated[Path, typer.Option(help="Profile to write. A plot is saved next to it.", callback=_json_file)],
    task: Annotated[
        Literal["kv", "tiny", "data"] | None,
        typer.Option(help="Calibration set: kv (JSON key-value retrieval), tiny, or data. Default: tiny or kv."),
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="Calibration set: JSON lines of question, documents, answer, gold (an index).")
    ] = None,
    strings: Annotated[int, whole(Bounds(1, 1_000_000), "Number of random token strings; 2000 in the paper.")] = 500,
    length: Annotated[int | None, whole(limits.STRING_LENGTH, "Tokens per string. Default: up to 1000.")] = None,
    questions: Annotated[int | None, whole(Bounds(1, 100_000), "Drawn questions. Default: 100, tiny 40.")] = None,
    documents: Annotated[int | None, whole(limits.DRAWN_DOCUMENTS, "Documents per question. Default by task.")] = None,
    depths: Annotated[int, whole(limits.DEPTHS, "Positions of the gold document, evenly spread.")] = 5,
    seed: Annotated[int, whole(limits.SEED, "Seed for strings and questions.")] = 0,
    batch_size: Annotated[int, whole(limits.BATCH, "Sequences per batch.")] = 8,
    dtype: Annotated[Literal["auto", "float32", "bfloat16", "float16"], typer.Option(help=DTYPE)] = "auto",
    variant: Annotated[
        Literal["released", "paper"], typer.Option(help="Channel search: released (the authors' code) or paper.")
    ] = "released",
    restart: Annotated[bool, typer.Option("--restart", help="Delete an interrupted calibration's results.")] = False,
    json_path: terminal.JsonPath = None,
    force: terminal.Force = False,
) -> None:
    """Find a model's positional channel, and the best setting for channel scaling.

    Repeat the command to resume an interrupted calibration. The exit code is 1 if no channel is found, or if the best
    setting does not clearly reduce the loss on other questions.
    """
    from ragbias.calibration import calibration_report as report
    from ragbias.calibration.algorithm import calibrate as search
    from ragbias.calibration.channel_search import NoPositionalChannelError
    from ragbias.calibration.partial_results import unfinished
    from ragbias.calibration.settings import CalibrationSettings
    from ragbias.evaluation.report.figures import save

    terminal.quiet_libraries()
    settings = CalibrationSettings(**terminal.fields_of(CalibrationSettings, {**context.params, "data": data}))
    terminal.console.print(f"Model: {model}")
    try:
        with terminal.output(out), terminal.output(out.with_suffix(".png")), terminal.progress() as bar:
            record = search(settings, out, restart, report.bars(bar)).as_dict()
            save(report.plot_channel(record), out.with_suffix(".png"))
    except NoPositionalChannelError as error:
        terminal.console.print(f"No profile is written: {error}")
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        if unfinished(out):
            terminal.console.print("Stopped. Repeat the command to resume, or delete the results with --restart.")
        raise
    report.print_record(record, terminal.console)
    terminal.console.print(f"Written: {out}")
    terminal.write_json(record, json_path)
    if not record["beats_plain"]:
        raise typer.Exit(1)
