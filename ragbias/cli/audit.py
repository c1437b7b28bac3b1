"""``ragbias audit``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ragbias import limits
from ragbias.cli.numeric import whole
from ragbias.cli.terminal import (
    MODELS,
    JsonPath,
    console,
    progress,
    quiet_libraries,
    status,
    writable,
    write_json,
    write_text,
)
from ragbias.methods import DEFAULT_METHOD
from ragbias.models.named import no_model

INSIDE = f"segmented,{DEFAULT_METHOD}"
ARRANGING = "canonical-order,long-context-reorder"  # methods that work in front of a server

if TYPE_CHECKING:
    from rich.progress import Progress

    from ragbias.evaluation.audit.cases import AuditCase
    from ragbias.evaluation.data.questions import Question
    from ragbias.methods import Method


def audit(
    questions: Annotated[Path, typer.Option(help="JSON lines of question and documents; answer if known.")],
    model: Annotated[str | None, typer.Option(help=f"{MODELS} Prompted with a stock prompt.")] = None,
    pipeline: Annotated[
        str | None,
        typer.Option(
            help="module:object, instead of a model: a LangChain runnable, graph or agent, a LlamaIndex engine, "
            "workflow or agent, a function of the question, or one without arguments that makes one of these; its "
            "LLM is one of ragbias. It retrieves its own documents."
        ),
    ] = None,
    upstream: Annotated[
        str | None,
        typer.Option(help="Address of an OpenAI-compatible server; --model is the model's name there."),
    ] = None,
    upstream_key: Annotated[str, typer.Option(envvar="RAGBIAS_UPSTREAM_KEY", help="API key of that server.")] = "",
    methods: Annotated[
        str | None,
        typer.Option(
            help=f"Methods to compare, comma-separated. Default: {INSIDE}; with --upstream the two that arrange text."
        ),
    ] = None,
    orders: Annotated[
        int, whole(limits.AUDIT_ORDERS, "Number of document orders: as retrieved, reversed, then shuffles.")
    ] = 4,
    seed: Annotated[int, whole(limits.SEED, "Seed of the shuffles.")] = 0,
    cache: Annotated[
        bool,
        typer.Option(
            "--cache",
            help="Also measure whether documents may be computed once, with those of --methods that can, or with ape.",
        ),
    ] = False,
    json_path: JsonPath = None,
    html: Annotated[Path | None, typer.Option(help="Write the report as one HTML file.", callback=writable)] = None,
) -> None:
    """Measure whether a pipeline's answers depend on the order of its documents, and what would help. Needs no labels.

    Each question is answered in several orders, and as often in the same order, with the pipeline as it is and with
    each method.
    """
    from ragbias.evaluation.audit.audit_report import as_dict, as_html, costs_of, on_terminal, tables
    from ragbias.evaluation.audit.outcomes import audit as measure
    from ragbias.evaluation.audit.outcomes import work
    from ragbias.evaluation.audit.reuse_gate import measure as measure_reuse
    from ragbias.evaluation.audit.verdict import recommendation, reuse_advice
    from ragbias.evaluation.data.questions import read_questions
    from ragbias.methods import get, parse_methods

    quiet_libraries()
    if upstream is not None and pipeline is not None:
        raise typer.BadParameter("--upstream and --pipeline; give one of them")
    if upstream is not None and cache:
        raise typer.BadParameter("--upstream and --cache; the server caches its documents itself, if at all")
    if model is None and pipeline is None and upstream is None:
        raise typer.BadParameter(no_model("--model smollm2, or give --pipeline or --upstream"))
    asked = read_questions(questions, documents=pipeline is None)
    chosen = parse_methods(methods or (ARRANGING if upstream else INSIDE), None if pipeline or upstream else model)
    with progress() as bar:
        cases, skipped = _cases(asked, model, pipeline, upstream, upstream_key, chosen, bar)
        own = cases[0].recorded.request.origin.method_requested
        label = own.name if own.name == "none" else f"as is: {own.name}"
        compared = {label: own} | {name: each for name, each in chosen.items() if each != own}
        reusing = {name: each for name, each in compared.items() if each.reusable_documents} or {"ape": get("ape")}
        reusing = reusing if cache else {}
        task = bar.add_task("", total=work(len(cases), len(compared), orders) + len(cases) * len(reusing))
        found = measure(
            cases, compared, orders, seed, lambda label, done: bar.update(task, advance=done, description=label)
        )
        gates = {
            label: measure_reuse(cases, each, lambda done: bar.update(task, advance=done))
            for label, each in reusing.items()
        }
    costs = {}
    if upstream is None:
        with status("Measuring the cost of the methods"):
            costs = costs_of(cases, compared)
    advice = recommendation(found, {label: cost.prefill_ratio[0] for label, cost in costs.items()})
    if skipped:
        console.print(f"{skipped} questions left out: the pipeline gave the model fewer than two documents")
    shown = {name: on_terminal(grid) for name, grid in tables(found, costs, gates).items()}
    for name in ("flips", "positions", "right"):
        if name in shown:
            console.print(shown[name])
    console.print(f"\n{advice.text}", highlight=False)
    settings = {
        "questions": str(questions),
        "asked": len(cases),
        "left_out": skipped,
        "model": cases[0].recorded.lm.name,
        "pipeline": pipeline,
        "upstream": upstream,
        "orders": orders,
        "seed": seed,
    }
    data = as_dict(found, costs, advice, settings)
    if gates:
        console.print()
        console.print(shown["reuse"])
        console.print(f"\n{reuse_advice(gates)}", highlight=False)
        by_method = {label: gate.as_dict() for label, gate in gates.items()}
        data["reuse"] = {"text": reuse_advice(gates), "methods": by_method}
    write_json(data, json_path)
    if html is not None:
        texts = [each.question.question for each in cases]
        write_text(as_html(found, costs, advice, settings, texts, gates), html)
        console.print(f"Written: {html}")


def _cases(
    asked: list[Question],
    model: str | None,
    pipeline: str | None,
    upstream: str | None,
    key: str,
    methods: Mapping[str, Method],
    bar: Progress,
) -> tuple[list[AuditCase], int]:
    """The prompts to audit, and the number of questions left out."""
    from ragbias.adapters.remote import check_arranges_text
    from ragbias.evaluation.audit.cases import UpstreamLM, from_questions, from_upstream
    from ragbias.evaluation.audit.pipeline import from_pipeline, load_pipeline
    from ragbias.lm import DebiasedLM

    if upstream is not None:
        for each in methods.values():
            check_arranges_text(each)
        return from_upstream(UpstreamLM(upstream, model, key), asked), 0
    if pipeline is not None:
        loaded = load_pipeline(pipeline)
        task = bar.add_task("running the pipeline", total=len(asked))
        return from_pipeline(loaded, asked, lambda done: bar.update(task, advance=done))
    assert model is not None  # the command refuses to run without any of the three
    return from_questions(DebiasedLM.from_pretrained(model, "none"), asked), 0
