"""Split text files into chunks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from ragbias.errors import DataError

SUFFIXES = (".txt", ".md", ".rst")


def read_chunks(path: Path, size: int = 800) -> dict[str, str]:
    """Split a text file, or all text files in a folder, into chunks of up to about ``size`` characters.

    Paragraphs of at most ``size`` characters stay whole. The result maps each chunk to the path of the first file that
    contains it.
    """
    files = [path]
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.suffix.lower() in SUFFIXES and file.is_file())
    folder = path if path.is_dir() else path.parent
    chunks: dict[str, str] = {}
    for file in files:
        for chunk in _split_chunks(read_text(file), size):
            chunks.setdefault(chunk, str(file.relative_to(folder)))
    if not chunks:
        raise DataError(f"{path} contains no text; expected non-empty {', '.join(SUFFIXES)} files")
    return chunks


def read_text(file: Path) -> str:
    """Read a file of UTF-8 text."""
    try:
        return file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{file} is not UTF-8 text ({error.reason}); convert it, or leave it out") from error


def _split_chunks(text: str, size: int) -> Iterator[str]:
    chunk = ""
    for paragraph in _split_paragraphs(text, size):
        if chunk and len(chunk) + len(paragraph) > size:
            yield chunk
            chunk = ""
        chunk = f"{chunk}\n\n{paragraph}" if chunk else paragraph
    if chunk:
        yield chunk


def _split_paragraphs(text: str, size: int) -> Iterator[str]:
    """Yield paragraphs. If one is longer than ``size``, cut it between sentences or, if necessary, between words."""
    end = r"(?=\s|$)"
    piece = re.compile(rf"\S.{{0,{size - 2}}}[.!?]{end}|\S.{{0,{size - 1}}}{end}|\S{{1,{size}}}", re.DOTALL)
    for paragraph in filter(None, map(str.strip, text.split("\n\n"))):
        if len(paragraph) <= size:
            yield paragraph
        else:
            yield from map(str.strip, piece.findall(paragraph))
