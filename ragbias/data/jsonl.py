"""Read files with one JSON object per line, or with one list of objects. Errors name the file and the line."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Annotated, Generic, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from ragbias.display import validation_message
from ragbias.errors import DataError, RunError


class Row(BaseModel):
    """Base class of JSON objects. Unknown fields are ignored."""

    model_config = ConfigDict(strict=True, frozen=True)


def _check_not_blank(text: str) -> str:
    if not text.strip():
        raise ValueError("is empty")
    return text


NonBlank = Annotated[str, AfterValidator(_check_not_blank)]
Answers = Annotated[tuple[NonBlank, ...], Field(min_length=1)]  # every prediction would contain an empty answer

T = TypeVar("T")


@dataclass(frozen=True)
class Line(Generic[T]):
    """One object of a file."""

    number: int  # number of the line, or of the entry in a list, counted from 1
    where: str  # file and line, or file and entry, for error messages
    row: T

    def error(self, reason: str) -> DataError:
        """Create an error that names the file, the line and ``reason``."""
        return DataError(f"{self.where}: {reason}")


def read_lines(path: Path, row: type[T], growing: bool = False) -> Iterator[Line[T]]:
    """Yield the objects of a file with one object per line, or of a ``.json`` file with one list.

    The file may be gzipped (``.gz``). Blank lines are skipped. With ``growing``, an incomplete last line is skipped,
    and an uncompressed file may be empty.
    """
    form = TypeAdapter(row)
    number = 0
    not_empty = False
    may_be_list = path.name.removesuffix(".gz").endswith(".json")
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            for number, raw in enumerate(file, 1):
                where = f"{path}, line {number}"
                if not raw.strip() or (growing and not raw.endswith(b"\n")):
                    continue
                if may_be_list and not not_empty and raw.lstrip().startswith(b"["):
                    entries = parse_json(raw + file.read(), str(path), TypeAdapter(list[row]))  # type: ignore[valid-type]
                    for index, entry in enumerate(entries, 1):
                        yield Line(index, f"{path}, entry {index}", entry)
                    not_empty = bool(entries)
                    break
                not_empty = True
                yield Line(number, where, parse_json(raw, where, form))
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(f"{path}, line {number + 1}: broken gzip ({error}); fetch the file again") from error
    if not not_empty and not (growing and path.suffix != ".gz"):
        raise DataError(f"{path} contains no examples; expected one JSON object per line")


def parse_json(raw: bytes, where: str, form: TypeAdapter[T]) -> T:
    """Parse and validate JSON. Error messages begin with ``where``."""
    try:
        return form.validate_json(raw)
    except ValidationError as error:
        raise DataError(f"{where}: {validation_message(error)}; repair or remove it") from error


def files_by_name(paths: Sequence[Path]) -> dict[str, Path]:
    """Return the paths by file name, without suffixes. Raise ``RunError`` if two files have the same name.

    Case ids contain these names.
    """
    if not paths:
        raise RunError("no data files; name at least one, as .jsonl or .jsonl.gz")
    by_name: dict[str, Path] = {}
    for path in paths:
        name = path.name.removesuffix(".gz").removesuffix(".jsonl")
        if other := by_name.get(name):
            raise RunError(f"data files {other} and {path} are both named {name!r}; remove or rename one of them")
        by_name[name] = path
    return by_name


def numbered_lines(paths: Sequence[Path], limit: int | None, row: type[T]) -> Iterator[tuple[str, Line[T]]]:
    """Yield ``(question id, line)`` for the first ``limit`` lines of each file. Ids are ``file name/number``."""
    for source, path in files_by_name(paths).items():
        for line in islice(read_lines(path, row), limit):
            yield f"{source}/{line.number}", line
