"""``ragbias audit``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ragbias import limits
from ragbias.checks import Bounds
from ragbias.cli import terminal
from ragbias.cli.terminal import integer
from ragbias.methods import default_method
from ragbias.models.named import no_model_message
from ragbias.models.threads import use_idle_cores

TEXT_METHODS = "canonical-order,long-context-reorder"  # only reorder text, so they support remote models


def audit(
    questions: Annotated[Path, typer.Option(help="JSON lines with question, documents and, if known, answer.")],
    model: Annotated[str | None, typer.Option(help=f"{terminal.MODELS} Questions use a stock prompt.")] = None,
    pipeline: Annotated[
        str | None,
        typer.Option(
            help="Pipeline as module:object, instead of a model. It must use a ragbias LLM and retrieve its documents."
        ),
    ] = None,
    upstream: Annotated[
        str | None, typer.Option(help="Address of an OpenAI-compatible server; --model names a model of the server.")
    ] = None,
    upstream_key: Annotated[str, typer.Option(envvar="RAGBIAS_UPSTREAM_KEY", help="API key for --upstream.")] = "",
    methods: Annotated[
        str | None,
        typer.Option(help=f"Methods. Default: segmented and the model's default; with --upstream {TEXT_METHODS}."),
    ] = None,
    orders: Annotated[
        int, integer(Bounds(2, 1_000), "Number of document orders: as retrieved, reversed, then shuffles.")
    ] = 4,
    seed: Annotated[int, integer(limits.SEED, "Seed of the shuffles.")] = 0,
    consistency: Annotated[
        bool,
        typer.Option("--consistency", help="Recommend the method with the fewest flips, even if it loses accuracy."),
    ] = False,
    json_path: terminal.JsonPath = None,
    force: terminal.Force = False,
    html: Annotated[
        Path | None, typer.Option(help="Write the report as one HTML file.", callback=terminal.check_file)
    ] = None,
) -> None:
    """Measure whether a pipeline's answers depend on the order of its documents, and recommend a method.

    The unchanged pipeline and each method answer every question in several document orders. To measure noise, they also
    answer again in the retrieved order. Right answers in the file are optional.
    """
    use_idle_cores()
    from ragbias.data.questions import read_questions
    from ragbias.generation.text_orders import check_orders_text
    from ragbias.lm import DebiasedLM
    from ragbias.methods import parse_methods
    from ragbias.readers import check_readers
    from ragbias_eval.audit.audit_report import AuditReport, describe_flips
    from ragbias_eval.audit.cases import UpstreamLM, from_questions
    from ragbias_eval.audit.outcomes import audit as measure
    from ragbias_eval.audit.outcomes import check_count
    from ragbias_eval.audit.pipeline import from_pipeline, load_pipeline
    from ragbias_eval.audit.verdict import recommend_method
    from ragbias_eval.cost import measure_costs

    terminal.quiet_libraries()
    if upstream is not None and pipeline is not None:
        raise typer.BadParameter("--upstream and --pipeline are both given; give one of them")
    if model is not None:
        terminal.console.print(f"Model: {model}")
    elif pipeline is None and upstream is None:
        raise typer.BadParameter(no_model_message("--model smollm2, or give --pipeline or --upstream"))
    listed = read_questions(questions, documents=pipeline is None)
    distinct = list(dict.fromkeys(listed))
    check_count(len(distinct))
    default = TEXT_METHODS if upstream else f"segmented,{default_method(model)}"
    chosen = parse_methods(methods or default, None if pipeline or upstream else model)
    check_readers(chosen.values())
    if upstream is not None:
        for method in chosen.values():
            check_orders_text(method)
    with terminal.progress() as bar:
        if pipeline is not None:
            loaded = load_pipeline(pipeline)
            running = bar.add_task("running the pipeline", total=len(distinct))
            cases = from_pipeline(loaded, distinct, lambda done: bar.update(running, advance=done))
        elif upstream is not None:
            cases = from_questions(UpstreamLM(upstream, model, upstream_key), distinct)
        else:
            cases = from_questions(DebiasedLM.from_pretrained(str(model), "none"), distinct)
        lm = cases[0].recorded.lm
        if model is None:
            terminal.console.print(f"Model: {lm.name} ({pipeline or upstream})")  # printed above the progress bar
    if len(distinct) < len(listed):
        terminal.console.print(f"{len(listed) - len(distinct)} repeated questions left out")
    as_is = cases[0].recorded.request.method_requested
    label = as_is.name if as_is.name == "none" else f"as is: {as_is.name}"
    compared = {label: as_is} | {name: method for name, method in chosen.items() if method != as_is}
    costs = {}
    with terminal.progress() as bar:
        if upstream is None:
            prompts = [case.prompt for case in cases[:2]]
            runs = (1 + len(prompts)) * (1 + sum(not method.is_plain for method in compared.values()))
            measuring = bar.add_task("measuring the cost", total=runs)
            costs = measure_costs(lm, prompts, compared, len(prompts), lambda: bar.update(measuring, advance=1))
        task = bar.add_task("answering", total=None)
        result = measure(
            cases, compared, orders, seed, lambda done, total: bar.update(task, completed=done, total=total)
        )
    advice = recommend_method(result, {label: cost["prefill_ratio"][0] for label, cost in costs.items()}, consistency)
    if left_out := len(distinct) - len(cases):
        terminal.console.print(f"{left_out} questions left out: their prompts have fewer than two documents")
    if stopped := result.questions < len(cases):
        terminal.console.print(f"Stopped after {result.questions} of {len(cases)} questions; these are their results.")
    settings = {
        "questions": str(questions),
        "evaluated": result.questions,
        "left_out": left_out,
        "model": lm.name,
        "pipeline": pipeline,
        "upstream": upstream,
        "orders": orders,
        "seed": seed,
    }
    flipped = describe_flips(result, [case.question for case in cases])
    report = AuditReport(result, costs, advice, settings, flipped)
    report.print(terminal.console)
    terminal.write_json(report.as_dict(), json_path)
    if html is not None:
        terminal.write_text(report.as_html(), html)
    if paths := [str(path) for path in (json_path, html) if path is not None]:
        terminal.console.print(f"Written: {', '.join(paths)}")
    if stopped:
        raise KeyboardInterrupt
