"""``ragbias audit``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ragbias import checks as bounds
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

INSIDE = "segmented,pine"
ARRANGING = "canonical-order,long-context-reorder"  # what works in front of a server

if TYPE_CHECKING:
    from rich.progress import Progress

    from ragbias.evaluation.audit.asking import AuditCase
    from ragbias.evaluation.data.questions import Question
    from ragbias.methods import Method


def audit(
    questions: Annotated[Path, typer.Option(help="JSON lines of question and documents; answer if known.")],
    model: Annotated[str | None, typer.Option(help=f"{MODELS} Asked in a stock prompt. Default: tiny.")] = None,
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
        typer.Option(help="Address of an OpenAI-compatible server to ask; --model is its name there."),
    ] = None,
    upstream_key: Annotated[str, typer.Option(envvar="RAGBIAS_UPSTREAM_KEY", help="The key of that server.")] = "",
    methods: Annotated[
        str | None,
        typer.Option(
            help="What may help, comma-separated. Default: segmented,pine; of a server the two that arrange text."
        ),
    ] = None,
    orders: Annotated[int, whole(bounds.AUDIT_ORDERS, "Of the documents: as retrieved, reversed, shuffles.")] = 4,
    seed: Annotated[int, whole(bounds.SEED, "Draws the shuffles.")] = 0,
    cache: Annotated[
        bool,
        typer.Option(
            "--cache",
            help="Tell as well whether documents may be computed once, by those of --methods that can, or by ape.",
        ),
    ] = False,
    json_path: JsonPath = None,
    html: Annotated[Path | None, typer.Option(help="Write a report of one file.", callback=writable)] = None,
) -> None:
    """Find out whether a pipeline's answers depend on the order of its documents, and what would help. Needs no labels.

    Each question is asked in several orders, and as often in the same order, with the pipeline as it is and with each
    method.
    """
    from ragbias.evaluation.audit.audit_report import as_dict, as_html, costs_of, table
    from ragbias.evaluation.audit.outcomes import audit as measure
    from ragbias.evaluation.audit.outcomes import work
    from ragbias.evaluation.audit.reuse_gate import measure as measure_reuse
    from ragbias.evaluation.audit.reuse_report import advice as reuse_advice
    from ragbias.evaluation.audit.reuse_report import as_dict as reuse_as_dict
    from ragbias.evaluation.audit.reuse_report import reuse_table
    from ragbias.evaluation.audit.verdict import recommendation
    from ragbias.evaluation.data.questions import read_questions
    from ragbias.methods.parse import parse_methods

    quiet_libraries()
    asked = read_questions(questions, documents=pipeline is None)
    if upstream is not None and pipeline is not None:
        raise typer.BadParameter("--upstream and --pipeline; give one of them")
    if upstream is not None and cache:
        raise typer.BadParameter("--upstream and --cache; a server's documents are kept there, if it keeps any")
    local = model or "tiny"
    chosen = parse_methods(methods or (ARRANGING if upstream else INSIDE), None if pipeline or upstream else local)
    with progress() as bar:
        if upstream is None:
            cases, skipped = _cases(asked, local, pipeline, bar)
        else:
            cases, skipped = _upstream_cases(asked, upstream, model, upstream_key, chosen), 0
        compared = _with_own(chosen, cases[0].asked.request.origin.wanted)
        reusing = _reusing(compared) if cache else {}
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
        with status("Measuring what the methods cost"):
            costs = costs_of(cases, compared)
    advice = recommendation(found, {label: cost.prefill_ratio[0] for label, cost in costs.items()})
    if skipped:
        console.print(f"{skipped} questions left out: the pipeline gave the model fewer than two documents")
    for each in table(found, costs):
        console.print(each)
    console.print(f"\n{advice.text}", highlight=False)
    if gates:
        console.print()
        console.print(reuse_table(gates))
        console.print(f"\n{reuse_advice(gates)}", highlight=False)
    settings = {
        "questions": str(questions),
        "asked": len(cases),
        "left_out": skipped,
        "model": cases[0].asked.lm.name,
        "pipeline": pipeline,
        "upstream": upstream,
        "orders": orders,
        "seed": seed,
    }
    reuse = {"reuse": reuse_as_dict(gates)} if gates else {}
    write_json({**as_dict(found, costs, advice, settings), **reuse}, json_path)
    if html is not None:
        texts = [each.question.question for each in cases]
        write_text(as_html(found, costs, advice, settings, texts, gates), html)
        console.print(f"Written: {html}")


def _with_own(methods: Mapping[str, Method], own: Method) -> dict[str, Method]:
    """The methods by label; first of all the one that the pipeline runs with as it is."""
    label = own.name if own.name == "none" else f"as is: {own.name}"
    return {label: own} | {label: each for label, each in methods.items() if each != own}


def _reusing(methods: Mapping[str, Method]) -> dict[str, Method]:
    """Those with reusable documents, or else ``ape``."""
    from ragbias.methods import get

    return {label: each for label, each in methods.items() if each.reusable_documents} or {"ape": get("ape")}


def _cases(asked: list[Question], model: str, pipeline: str | None, bar: Progress) -> tuple[list[AuditCase], int]:
    """What is audited, and how many questions were left out."""
    from ragbias.evaluation.audit.asking import from_questions
    from ragbias.evaluation.audit.pipeline import from_pipeline, load_pipeline
    from ragbias.evaluation.model_loading import load_model

    if pipeline is None:
        return from_questions(load_model(model), asked), 0
    loaded = load_pipeline(pipeline)
    task = bar.add_task("running the pipeline", total=len(asked))
    return from_pipeline(loaded, asked, lambda done: bar.update(task, advance=done))


def _upstream_cases(
    asked: list[Question], upstream: str, model: str | None, key: str, methods: Mapping[str, Method]
) -> list[AuditCase]:
    """What is audited of a model that somebody else serves."""
    from ragbias.adapters.untokenised import check_arranges_text
    from ragbias.evaluation.audit.upstream import UpstreamLM, from_upstream

    for each in methods.values():
        check_arranges_text(each)
    return from_upstream(UpstreamLM(upstream, model, key), asked)
