"""An answer from one's own text files: chunk, embed, retrieve, generate."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from ragbias.errors import DataError
from ragbias.evaluation.demo.retrieval import Index, minilm
from ragbias.evaluation.prompts.stock_prompt import stock_prompt
from ragbias.files import irregular, naming
from ragbias.generation.report import Generation
from ragbias.lm import DebiasedLM

ENDINGS = (".txt", ".md", ".rst")
LARGEST = 2**28  # bytes of one file


def read_chunks(path: Path, size: int = 800) -> dict[str, str]:
    """Paragraphs of all text files at ``path``, joined up to about ``size`` characters, and cut where they are longer.

    Returns:
        For each chunk the file that it was first found in, named from ``path``.

    Raises:
        DataError: there is no such path, no text file in it, or a file is no text; names it.
    """
    if not path.exists():
        raise DataError(f"{path} does not exist; give a text file, or a folder of {', '.join(ENDINGS)} files")
    if not path.is_dir() and (kind := irregular(path)):
        raise DataError(f"{path} is {kind}; give a text file, or a folder of {', '.join(ENDINGS)} files")
    files = (
        sorted(file for file in path.rglob("*") if file.suffix.lower() in ENDINGS and file.is_file())
        if path.is_dir()
        else [path]
    )
    folder = path if path.is_dir() else path.parent
    chunks: dict[str, str] = {}
    for file in files:
        for chunk in _chunks(_read(file), size):
            chunks.setdefault(chunk, str(file.relative_to(folder)))
    if not chunks:
        raise DataError(f"{path} holds no text; expected {', '.join(ENDINGS)} files that are not empty")
    return chunks


def _read(file: Path) -> str:
    if file.stat().st_size > LARGEST:
        raise DataError(f"{file} is larger than {LARGEST >> 20} MiB; split it, or leave it out")
    try:
        with naming(file):
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
    """No longer than ``size``: cut after a sentence if there is one, else between words, else within one."""
    end = r"(?=\s|$)"
    piece = re.compile(rf"\S.{{0,{size - 2}}}[.!?]{end}|\S.{{0,{size - 1}}}{end}|\S{{1,{size}}}", re.DOTALL)
    for paragraph in filter(None, (part.strip() for part in text.split("\n\n"))):
        yield from [paragraph] if len(paragraph) <= size else (found.strip() for found in piece.findall(paragraph))


def nearest(question: str, chunks: Sequence[str], k: int) -> list[str]:
    """The ``k`` chunks that are nearest to a question, the nearest first."""
    return Index(chunks, minilm()).search(question, min(k, len(chunks)))


def fitting(lm: DebiasedLM, question: str, documents: Sequence[str], max_new_tokens: int) -> list[str]:
    """The first documents, as many as fit into the model's window with question and answer; one at least."""
    count = len(documents)
    while count > 1 and _length(lm, question, documents[:count]) + max_new_tokens > lm.window:
        count -= 1
    return list(documents[:count])


def _length(lm: DebiasedLM, question: str, documents: Sequence[str]) -> int:
    return len(lm.tokenizer(stock_prompt(lm, documents, question), add_special_tokens=False)["input_ids"])


def answer(lm: DebiasedLM, question: str, documents: Sequence[str], max_new_tokens: int) -> Generation:
    """The answer from documents."""
    return lm.generate(stock_prompt(lm, documents, question), documents=documents, max_new_tokens=max_new_tokens)
