"""``ragbias bench``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ragbias import limits
from ragbias.cli import terminal
from ragbias.cli.terminal import Numbers, integer
from ragbias.errors import RunError
from ragbias.files import file_name_in_errors
from ragbias.models.threads import use_idle_cores
from ragbias_eval import TASK_NAMES

if TYPE_CHECKING:
    from ragbias_eval.bench_settings import BenchSettings

REQUIRED = "Required, here or in the YAML file."
TASK_OPTIONS = ("data", "documents", "positions", "orders", "indices", "chat", "explain", "shorten")


def _invert(flag: bool | None) -> bool | None:
    """Convert a flag ``--no-x`` to the setting ``x=False``. Typer's form ``/--no-x`` would widen the help."""
    return False if flag else None


def bench(
    context: typer.Context,
    files: Annotated[
        list[Path] | None, typer.Argument(help="A YAML file with all settings, or data files as in --data.")
    ] = None,
    task: Annotated[list[str] | None, typer.Option(help=f"{REQUIRED} {', '.join(TASK_NAMES)}.")] = None,
    data: Annotated[list[Path] | None, typer.Option(help="The task's data files, in their official format.")] = None,
    model: Annotated[list[str] | None, typer.Option(help=f"{REQUIRED} {terminal.MODELS} Repeatable.")] = None,
    methods: Annotated[str | None, typer.Option(help=f"{REQUIRED} See `ragbias methods`; e.g. none,pine,pcw.")] = None,
    documents: Annotated[Numbers | None, integer(limits.DOCUMENTS, "Numbers of documents, e.g. 10,20.", True)] = None,
    positions: Annotated[Numbers | None, integer(limits.POSITIONS, "Gold positions, from 0, e.g. 0,4,9.", True)] = None,
    orders: Annotated[
        int | None, integer(limits.ORDERS, "Orders of the other documents, for each gold position. Default: 1.")
    ] = None,
    limit: Annotated[int | None, integer(limits.QUESTIONS, "Questions per file. Default: all; 100 for tiny.")] = None,
    seeds: Annotated[Numbers | None, integer(limits.SEED, "Seeds of the cases, e.g. 1,2,3. Default: 0.", True)] = None,
    indices: Annotated[
        bool | None, typer.Option("--no-indices", callback=_invert, help="Do not number the documents.")
    ] = None,
    chat: Annotated[
        bool | None,
        typer.Option("--no-chat", callback=_invert, help="Use the bare prompt without the model's chat template."),
    ] = None,
    explain: Annotated[
        bool | None, typer.Option("--no-explain", callback=_invert, help="Task judge: ask only for a verdict.")
    ] = None,
    shorten: Annotated[
        int | None, integer(limits.WORDS, "Cut passages to this many words around the answer. Default: do not cut.")
    ] = None,
    measure: Annotated[
        str | None, typer.Option(help="accuracy, logprob (of the gold answer), or accuracy,logprob. Default: accuracy.")
    ] = None,
    invariant_once: Annotated[
        bool | None, typer.Option("--invariant-once", help="Run invariant methods in one order and copy the answers.")
    ] = None,
    batch_size: Annotated[int | None, integer(limits.BATCH, "Cases per batch. Default: 8.")] = None,
    dtype: Annotated[str | None, typer.Option(help="E.g. bfloat16. Default: auto.")] = None,
    cost: Annotated[
        bool | None, typer.Option("--no-cost", callback=_invert, help="Do not measure time and memory.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help=f"{REQUIRED} Folder for the results. A stopped run resumes, also with a higher --limit.",
            callback=terminal.check_folder,
        ),
    ] = None,
    json_path: terminal.JsonPath = None,
    force: terminal.Force = False,
) -> None:
    """Run all models, methods, tasks and seeds on benchmark files. Repeat the command to resume a stopped run."""
    use_idle_cores()
    from ragbias_eval.bench import run
    from ragbias_eval.report.tables import as_tables
    from ragbias_eval.runs import ROWS, SUMMARY, holds_records

    terminal.quiet_libraries()
    settings = _read_settings(files or [], task or [], {**context.params, "models": model, "data": data})
    terminal.console.print(f"Model: {', '.join(settings.models)}")
    try:
        with file_name_in_errors(settings.out), terminal.progress() as bar:
            summary = run(settings, bar)
    except KeyboardInterrupt:
        resume = f"Stopped. Finished records are in {settings.out}; the same command resumes the run."
        terminal.console.print(resume if holds_records(settings.out) else "Stopped before any record was finished.")
        raise
    for result in summary["results"]:
        terminal.console.print(*as_tables(result), sep="\n")
    terminal.console.print(f"Written: {settings.out / ROWS}, {settings.out / SUMMARY}")
    terminal.write_json(summary, json_path)


def _read_settings(files: list[Path], task: list[str], options: dict[str, Any]) -> BenchSettings:
    from ragbias_eval.bench_settings import BenchSettings, read_settings, validate_settings

    options = {name: value for name, value in options.items() if value is not None}
    if "models" in options:
        options["models"] = ",".join(options["models"])
    changes = terminal.select_fields(BenchSettings, options)
    task_options = {name: options[name] for name in TASK_OPTIONS if name in options}
    if len(files) == 1 and files[0].suffix in (".yaml", ".yml"):
        if task or task_options:
            names = ", ".join(["task"] * bool(task) + list(task_options))
            raise RunError(f"{names}: not possible with {files[0]}; put tasks and their options into the file")
        return read_settings(files[0], changes)
    if files:
        task_options["data"] = [*task_options.get("data", []), *files]
    if task:
        changes["tasks"] = [{"name": name.strip(), **task_options} for names in task for name in names.split(",")]
    return validate_settings(changes, "the command line")
