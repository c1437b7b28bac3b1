"""``ragbias ask``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ragbias import methods
from ragbias.checks import Bounds, check_text
from ragbias.cli.terminal import MODELS, Force, JsonPath, console, integer, quiet_libraries, status, write_json
from ragbias.methods import DEFAULT_METHOD
from ragbias.models.threads import use_idle_cores

FEW_CHUNKS, MANY_CHUNKS = 3, 10  # default number of chunks; few for smollm2, which has only 135 M parameters


def ask(
    question: Annotated[str, typer.Argument(help="The question.")],
    documents: Annotated[Path, typer.Option(help="A text file, or a folder of .txt, .md and .rst files.")],
    model: Annotated[str, typer.Option(help=MODELS)],
    method: Annotated[
        str | None,
        typer.Option(help=f"See `ragbias methods`. Default: {DEFAULT_METHOD}, or the best known method for the model."),
    ] = None,
    reader: Annotated[str, typer.Option(help="Folder of a reader adapter for the method, see `ragbias adapt`.")] = "",
    k: Annotated[
        int | None,
        integer(Bounds(1, 1_000), "Chunks to retrieve. Default: 10 (3 for smollm2), or as many as fit the window."),
    ] = None,
    max_new_tokens: Annotated[int, integer(Bounds(1, 100_000), "Maximum number of tokens of the answer.")] = 128,
    cache: Annotated[
        Path | None, typer.Option(help="Folder filled by `ragbias cache warm`, for methods with reusable documents.")
    ] = None,
    json_path: JsonPath = None,
    force: Force = False,
) -> None:
    """Answer a question from your own text files. FAISS and MiniLM find the chunks."""
    if not question.strip():
        raise typer.BadParameter("the question is empty")
    check_text("the question", question)
    if cache is None:  # cached states depend on the number of threads
        use_idle_cores()
    chosen = methods.get(method, model, reader)

    from ragbias.cache import DocumentCache
    from ragbias.data.retrieval import Index, fit_window, stock_prompt
    from ragbias.data.texts import read_chunks
    from ragbias.lm import DebiasedLM

    console.print(f"Model: {model}", style="dim")
    quiet_libraries()
    chunks = read_chunks(documents)
    with status("Loading the model and embedding the documents"):
        document_cache = None if cache is None else DocumentCache(folder=cache)
        lm = DebiasedLM.from_pretrained(model, chosen, cache=document_cache)
        default_k = FEW_CHUNKS if model == "smollm2" else MANY_CHUNKS
        passages = Index(list(chunks)).search(question, k or default_k)
        if k is None:
            passages = fit_window(lm, passages, question, max_new_tokens)
        prompt = stock_prompt(lm, passages, question)
        generation = lm.generate(prompt, documents=passages, max_new_tokens=max_new_tokens)
    console.print(generation.text.strip() or "(the model gave no answer)")
    for number, passage in enumerate(passages, 1):
        console.print(f"\n[{number}] {passage}\n({chunks[passage]})", style="dim")
    report = generation.report
    method_text = f"{report.method_ran} with the reader {report.reader!r}" if report.reader else report.method_ran
    ran = f"\n{method_text} over {report.n_found} of {len(chunks)} chunks"
    console.print(f"{ran}: {report.reason}" if report.reason else f"{ran}.", style="dim")
    if cache is not None:
        console.print(
            f"{report.cached_tokens} of {generation.usage.prompt_tokens} tokens came from the cache.", style="dim"
        )
    if model == "tiny":
        console.print("(tiny can read only texts about its invented world; use another --model.)", style="dim")
    result = {"model": model, "text": generation.text, "report": report.as_dict(), "documents": passages}
    write_json({**result, "sources": [chunks[passage] for passage in passages]}, json_path)
