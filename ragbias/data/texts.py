"""Split text files into chunks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from ragbias.errors import DataError
from ragbias.files import file_name_in_errors, irregular_kind

ENDINGS = (".txt", ".md", ".rst")
LARGEST = 2**28  # maximum number of bytes of one file


def read_chunks(path: Path, size: int = 800) -> dict[str, str]:
    """Split all text files at ``path`` into chunks of whole paragraphs with about ``size`` characters.

    Longer paragraphs are cut. Return the chunks, with the relative path of the first file that contains each chunk.
    """
    problem = "missing" if not path.exists() else "" if path.is_dir() else irregular_kind(path)
    if problem:
        raise DataError(f"{path} is {problem}; give a text file, or a folder of {', '.join(ENDINGS)} files")
    files = [path]
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.suffix.lower() in ENDINGS and file.is_file())
    folder = path if path.is_dir() else path.parent
    chunks: dict[str, str] = {}
    for file in files:
        for chunk in _chunks(read_text(file), size):
            chunks.setdefault(chunk, str(file.relative_to(folder)))
    if not chunks:
        raise DataError(f"{path} contains no text; expected non-empty {', '.join(ENDINGS)} files")
    return chunks


def read_text(file: Path) -> str:
    """Read a file of UTF-8 text."""
    if file.stat().st_size > LARGEST:
        raise DataError(f"{file} is larger than {LARGEST >> 20} MiB; split it, or leave it out")
    try:
        with file_name_in_errors(file):
            return file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{file} is not UTF-8 text ({error.reason}); convert it, or leave it out") from error


def _chunks(text: str, size: int) -> Iterator[str]:
    chunk = ""
    for paragraph in _paragraphs(text, size):
        if chunk and len(chunk) + len(paragraph) > size:
            yield chunk
            chunk = ""
        chunk = f"{chunk}\n\n{paragraph}" if chunk else paragraph
    if chunk:
        yield chunk


def _paragraphs(text: str, size: int) -> Iterator[str]:
    """Yield paragraphs, cut to at most ``size`` characters: between sentences if possible, otherwise between words."""
    end = r"(?=\s|$)"
    piece = re.compile(rf"\S.{{0,{size - 2}}}[.!?]{end}|\S.{{0,{size - 1}}}{end}|\S{{1,{size}}}", re.DOTALL)
    for paragraph in filter(None, (part.strip() for part in text.split("\n\n"))):
        yield from [paragraph] if len(paragraph) <= size else (part.strip() for part in piece.findall(paragraph))
