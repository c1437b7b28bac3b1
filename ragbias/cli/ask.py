"""``ragbias ask``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ragbias.cli.numeric import whole
from ragbias.cli.terminal import JsonPath, console, quiet_libraries, status, write_json
from ragbias.evaluation import bounds


def ask(
    question: Annotated[str, typer.Argument(help="What you want to know.")],
    documents: Annotated[Path, typer.Option(help="A text file, or a folder of .txt, .md and .rst files.")],
    model: Annotated[str, typer.Option(help="'tiny', a hub name or a path.")] = "tiny",
    method: Annotated[str, typer.Option(help="See `ragbias methods`.")] = "pine",
    k: Annotated[int, whole(bounds.CHUNKS, "Chunks to retrieve.")] = 10,
    max_new_tokens: Annotated[int, whole(bounds.NEW_TOKENS, "The most tokens of the answer.")] = 128,
    json_path: JsonPath = None,
) -> None:
    """Answer a question from your own text files: FAISS, MiniLM and a model with a method."""
    from ragbias.evaluation.demo.own_files import ask as answer
    from ragbias.evaluation.demo.own_files import read_chunks
    from ragbias.evaluation.model_loading import load_model

    if not question.strip():
        raise typer.BadParameter("the question is empty")
    quiet_libraries()
    chunks = read_chunks(documents)
    with status("Loading the model, embedding the documents"):
        lm = load_model(model, method)
        generation, used = answer(lm, question, chunks, k, max_new_tokens)
    console.print(generation.text.strip() or "(the model gave no answer)")
    report = generation.report
    about = f"{report.method_ran} over {report.n_found} of {len(chunks)} chunks"
    console.print(f"{about}: {report.reason}" if report.reason else f"{about}.", style="dim")
    if model == "tiny":
        console.print("(tiny reads only texts of its own made-up world; for others, name a --model.)", style="dim")
    write_json({"text": generation.text, "report": report.as_dict(), "documents": used}, json_path)
