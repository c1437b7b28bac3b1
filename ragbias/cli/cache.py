"""``ragbias cache``: precompute documents into a folder, and manage the folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ragbias.cli.terminal import MODELS, Force, JsonPath, console, progress, quiet_libraries, status, write_json

if TYPE_CHECKING:
    from ragbias.cache import DocumentCache

cache = typer.Typer(help="Precompute documents into a folder, and manage the folder.")

Folder = Annotated[Path, typer.Argument(help="The folder of the cache.")]
Disk = Annotated[str | None, typer.Option(help="Size limit of the folder. Default: 20GB.")]
REUSABLE_METHOD = "ape"  # all methods with reusable documents share entries


@cache.command()
def warm(
    folder: Folder,
    documents: Annotated[Path, typer.Option(help="A text file, or a folder of .txt, .md and .rst files.")],
    model: Annotated[str, typer.Option(help=MODELS)],
    disk: Disk = None,
    json_path: JsonPath = None,
    force: Force = False,
) -> None:
    """Precompute the chunks for `ragbias ask --cache`. All methods with reusable documents can use them.

    Repeat the command to resume a stopped run.
    """
    from ragbias.cache import DocumentCache
    from ragbias.data.retrieval import stock_prompt
    from ragbias.data.texts import read_chunks
    from ragbias.frameworks.warming import warm as compute
    from ragbias.lm import DebiasedLM

    console.print(f"Model: {model}")
    quiet_libraries()
    chunks = list(read_chunks(documents))
    document_cache = DocumentCache(memory=None, folder=folder, disk=disk)
    with status("Loading the model"):
        lm = DebiasedLM.from_pretrained(model, REUSABLE_METHOD, cache=document_cache)
    with progress() as bar:
        task = bar.add_task("documents", total=len(chunks))
        computed = compute(
            lm, chunks, str, lambda texts: stock_prompt(lm, texts, "?"), lambda done: bar.update(task, completed=done)
        )
    console.print(f"{computed} chunks computed, {len(chunks) - computed} already cached.")
    _print_stats(document_cache, json_path)


@cache.command()
def stats(folder: Folder, json_path: JsonPath = None, force: Force = False) -> None:
    """Show the number of entries and their size."""
    _print_stats(_open(folder), json_path)


@cache.command()
def verify(folder: Folder, json_path: JsonPath = None, force: Force = False) -> None:
    """Read and check all files. The exit code is 1 if a file is damaged."""
    document_cache = _open(folder)
    with progress() as bar:
        task = bar.add_task("files", total=document_cache.stats().disk_entries)
        damaged = document_cache.verify(lambda path: bar.update(task, advance=1))
    for reason in damaged.values():
        console.print(reason)
    console.print(f"{len(damaged)} of {document_cache.stats().disk_entries} files are damaged.")
    write_json({str(path): reason for path, reason in damaged.items()}, json_path)
    if damaged:
        raise typer.Exit(1)


@cache.command()
def clear(folder: Folder) -> None:
    """Remove all entries. Keep other files in the folder."""
    document_cache = _open(folder)
    count = document_cache.stats().disk_entries
    document_cache.clear()
    console.print(f"{count} entries were removed from {folder}.")


def _open(folder: Path) -> DocumentCache:
    from ragbias.cache import DocumentCache

    if not folder.is_dir():
        raise typer.BadParameter(f"{folder} is not a folder; give the folder of a cache")
    return DocumentCache(memory=None, folder=folder)


def _print_stats(document_cache: DocumentCache, json_path: Path | None) -> None:
    from tqdm import tqdm

    counts = document_cache.stats()
    broken = f", {counts.broken} broken" if counts.broken else ""
    size = tqdm.format_sizeof(counts.disk_bytes, "B")
    entries = f"{counts.disk_entries} entries (documents, and the texts before them)"
    console.print(f"{entries}, {size}{broken}: {document_cache.folder}")
    write_json(counts.as_dict(), json_path)
