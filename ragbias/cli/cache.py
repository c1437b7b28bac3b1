"""``ragbias cache``: documents computed before they are asked for, and what is kept of them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ragbias.cli.terminal import MODELS, JsonPath, console, progress, quiet_libraries, status, write_json

if TYPE_CHECKING:
    from ragbias.cache import DocumentCache

cache = typer.Typer(help="What a model makes of documents, computed once and kept in a folder.")

Folder = Annotated[Path, typer.Argument(help="The folder of the cache.")]
Disk = Annotated[str | None, typer.Option(help="The most that is kept there. Default: 20GB.")]
REUSABLE = "ape"  # of the methods with reusable documents any will do: what is kept is the same


@cache.command()
def warm(
    folder: Folder,
    documents: Annotated[Path, typer.Option(help="A text file, or a folder of .txt, .md and .rst files.")],
    model: Annotated[str, typer.Option(help=MODELS)],
    disk: Disk = None,
    json_path: JsonPath = None,
) -> None:
    """Compute the chunks that `ragbias ask --cache` will retrieve, for any method with reusable documents.

    The same command goes on where it was stopped.
    """
    from ragbias.adapters.warming import warm as compute
    from ragbias.cache import DocumentCache
    from ragbias.evaluation.demo.own_files import read_chunks
    from ragbias.evaluation.prompts.stock_prompt import stock_prompt
    from ragbias.lm import DebiasedLM

    quiet_libraries()
    chunks = list(read_chunks(documents))
    kept = DocumentCache(memory=None, folder=folder, disk=disk)
    with status(f"Loading the model {model}"):
        lm = DebiasedLM.from_pretrained(model, REUSABLE, cache=kept)
    with progress() as bar:
        task = bar.add_task("documents", total=len(chunks))
        computed = compute(
            lm, chunks, str, lambda some: stock_prompt(lm, some, "?"), lambda done: bar.update(task, completed=done)
        )
    console.print(f"{computed} of {len(chunks)} chunks were computed; the others were there.")
    _print_stats(kept, json_path)


@cache.command()
def stats(folder: Folder, json_path: JsonPath = None) -> None:
    """How much is kept."""
    _print_stats(_opened(folder), json_path)


@cache.command()
def verify(folder: Folder, json_path: JsonPath = None) -> None:
    """Read every file and check it. Exit code 1 if one is not what was written."""
    kept = _opened(folder)
    with progress() as bar:
        task = bar.add_task("files", total=kept.stats().disk_entries)
        wrong = kept.verify(lambda path: bar.update(task, advance=1))
    for reason in wrong.values():
        console.print(reason)
    console.print(f"{len(wrong)} of {kept.stats().disk_entries} files are not what was written.")
    write_json({str(path): reason for path, reason in wrong.items()}, json_path)
    if wrong:
        raise typer.Exit(1)


@cache.command()
def clear(folder: Folder) -> None:
    """Remove all that is kept; other files of the folder stay."""
    kept = _opened(folder)
    count = kept.stats().disk_entries
    kept.clear()
    console.print(f"{count} entries were removed from {folder}.")


def _opened(folder: Path) -> DocumentCache:
    from ragbias.cache import DocumentCache

    if not folder.is_dir():
        raise typer.BadParameter(f"{folder} is no folder; give that of a cache")
    return DocumentCache(memory=None, folder=folder)


def _print_stats(kept: DocumentCache, json_path: Path | None) -> None:
    from ragbias.cache.document_cache import size_text

    found = kept.stats()
    broken = f", {found.broken} set aside as broken" if found.broken else ""
    console.print(f"{found.disk_entries} entries, {size_text(found.disk_bytes)}{broken}: {kept.folder}")
    write_json(found.as_dict(), json_path)
