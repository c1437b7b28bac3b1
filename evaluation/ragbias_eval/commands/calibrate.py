"""``ragbias calibrate``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from ragbias import limits
from ragbias.checks import Bounds
from ragbias.cli import terminal
from ragbias.cli.terminal import integer
from ragbias.models.threads import use_idle_cores


def _check_profile(context: typer.Context, path: Path) -> Path | None:
    if path.suffix != ".json":  # the plot has the same name but the suffix .png
        raise typer.BadParameter(f"{path} does not end with .json; expected the name of a profile")
    terminal.check_file(context, path.with_suffix(".png"))
    return terminal.check_file(context, path)


def calibrate(
    context: typer.Context,
    model: Annotated[str, typer.Option(help=terminal.MODELS)],
    out: Annotated[Path, typer.Option(help="Profile to write. A plot is saved next to it.", callback=_check_profile)],
    task: Annotated[
        Literal["kv", "tiny"] | None,
        typer.Option(
            help="Calibration set: kv (JSON key-value retrieval) or tiny (the world of tiny). Default: by model."
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            help="Calibration set: JSON lines with question, documents, answer, gold (an index).",
            exists=True,
            dir_okay=False,
        ),
    ] = None,
    strings: Annotated[int, integer(Bounds(1, 1_000_000), "Number of random token strings; 2000 in the paper.")] = 500,
    length: Annotated[int | None, integer(limits.STRING_LENGTH, "Tokens per string. Default: up to 1000.")] = None,
    questions: Annotated[int | None, integer(Bounds(1, 100_000), "Questions. Default: 100, or 40 for tiny.")] = None,
    documents: Annotated[int | None, integer(limits.DRAWN_DOCUMENTS, "Documents per question.")] = None,
    depths: Annotated[int, integer(limits.DEPTHS, "Number of evenly spread gold positions.")] = 5,
    seed: Annotated[int, integer(limits.SEED, "Seed for strings and questions.")] = 0,
    batch_size: Annotated[int, integer(limits.BATCH, "Sequences per batch.")] = 8,
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "float16"], typer.Option(help="Dtype of the weights.")
    ] = "auto",
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
    use_idle_cores()
    from ragbias_eval.calibration import calibration_report as report
    from ragbias_eval.calibration.algorithm import calibrate as search
    from ragbias_eval.calibration.channel_search import NoPositionalChannelError
    from ragbias_eval.calibration.samples import CalibrationSettings
    from ragbias_eval.report.figures import save_figure

    terminal.quiet_libraries()
    settings = CalibrationSettings(**terminal.select_fields(CalibrationSettings, {**context.params, "data": data}))
    terminal.console.print(f"Model: {model}")
    try:
        with terminal.output(out), terminal.output(out.with_suffix(".png")), terminal.progress() as bar:
            record = search(settings, out, restart, report.stage_progress(bar)).as_dict()
            save_figure(report.plot_channel(record), out.with_suffix(".png"))
    except NoPositionalChannelError as error:
        terminal.console.print(f"No profile is written: {error}")
        raise typer.Exit(1) from None
    report.print_record(record, terminal.console)
    terminal.console.print(f"Written: {out}")
    terminal.write_json(record, json_path)
    if not record["beats_plain"]:
        raise typer.Exit(1)
