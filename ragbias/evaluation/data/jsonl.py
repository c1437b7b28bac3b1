"""Reading files of JSON objects, one per line or in a list, plain or gzipped; errors name the file and the line."""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from ragbias.errors import DataError, RunError
from ragbias.files import irregular

T = TypeVar("T")
LONGEST_LINE = 2**28  # bytes, so that a file without line ends does not fill the memory
BETWEEN = re.compile(r"[\s,]*")  # two entries of a list
WORDS = {str: "a string", bool: "true or false", int: "a whole number", list: "a list", dict: "an object"}


@dataclass(frozen=True)
class Line:
    """One object of a file, or one inside of it.

    Attributes:
        path: of the file.
        number: of the line, or of the entry of a list; counted from 1.
        fields: of the object.
        inside: the path of the object in its line, e.g. ``"ctxs[2]"``; empty: it is the whole line.
        begins: the line that an entry of a list begins in; None: the object is a line.
    """

    path: Path
    number: int
    fields: dict[str, Any]
    inside: str = ""
    begins: int | None = None

    def text(self, name: str) -> str:
        """A field that is a string.

        Raises:
            DataError: the field is missing or of another type; so for all fields.
        """
        return self._text(name, self._field(name))

    def choice(self, name: str, allowed: Sequence[int]) -> int:
        """A field that is one of these whole numbers."""
        value, expected = self.fields.get(name), " or ".join(map(str, allowed))
        if name not in self.fields:
            raise self.error(f"no field {name!r} (fields: {self._names}); expected one that is {expected}")
        if type(value) is not int or value not in allowed:
            raise self.error(f"{name!r} is {_shown(value)}; expected {expected}")
        return value

    def flag(self, name: str) -> bool:
        """A field that is true or false."""
        return self._typed(name, self._field(name), bool)

    def texts(self, name: str) -> tuple[str, ...]:
        """A field that is a list of strings, at least one."""
        return tuple(self._text(f"{name}[{index}]", value) for index, value in enumerate(self._list(name)))

    def answers(self) -> tuple[str, ...]:
        """The field ``answers``: texts of which none is blank, as a blank one is part of whatever is said."""
        found = self.texts("answers")
        if not all(answer.strip() for answer in found):
            raise self.error("'answers' holds an empty text; fill it in, or leave the line out")
        return found

    def pairs(self, name: str) -> tuple[tuple[str, str], ...]:
        """A field that is a list of lists of two strings, at least one."""
        found = []
        for index, value in enumerate(self._list(name)):
            entry = f"{name}[{index}]"
            if not isinstance(value, list) or len(value) != 2:
                raise self.error(f"{entry!r} is {_shown(value)}; expected a list of two strings")
            found.append((self._text(f"{entry}[0]", value[0]), self._text(f"{entry}[1]", value[1])))
        return tuple(found)

    def objects(self, name: str) -> tuple[Line, ...]:
        """A field that is a list of objects, at least one."""
        return tuple(
            replace(self, fields=self._typed(f"{name}[{index}]", value, dict), inside=f"{name}[{index}]")
            for index, value in enumerate(self._list(name))
        )

    def error(self, reason: str) -> DataError:
        """The error that names file, line and object, and what is wrong with it."""
        reason = f"{self.inside}: {reason}" if self.inside else reason
        if self.begins is None:
            return _error(self.path, self.number, reason)
        return _error(self.path, self.begins, f"entry {self.number}: {reason}")

    @property
    def _names(self) -> str:
        return ", ".join(map(repr, self.fields)) or "none"

    def _field(self, name: str) -> Any:
        if name not in self.fields:
            raise self.error(
                f"no field {name!r} (fields: {self._names}); give a file of the task's format, or add the field"
            )
        return self.fields[name]

    def _list(self, name: str) -> list[Any]:
        values = self._typed(name, self._field(name), list)
        if not values:
            raise self.error(f"{name!r} is an empty list; expected at least one entry")
        return values

    def _text(self, name: str, value: Any) -> str:
        text = self._typed(name, value, str)
        if not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
            raise self.error(f"{name!r} holds half of a surrogate pair, which is no character; repair the text")
        return text

    def _typed(self, name: str, value: Any, kind: type[T]) -> T:
        if not isinstance(value, kind):
            raise self.error(f"{name!r} is {_shown(value)}; expected {WORDS[kind]}")
        return value


def read_lines(path: Path) -> Iterator[Line]:
    r"""The objects of a file, one by one: one per line, or the entries of a ``.json`` file that is one list.

    Either may be gzipped (``.gz``). Blank lines are skipped. Lines end at ``\n`` alone: other characters that break
    lines, as U+2028, may occur inside JSON strings.

    Raises:
        DataError: a line is no JSON object or no UTF-8, the gzip stream is broken, or the file holds no object.
        DataError: it is no regular file; a pipe gives its lines only once, and data is read several times.
        OSError: the file cannot be opened.
    """
    if kind := irregular(path):
        raise DataError(f"{path} is {kind}; expected a regular file of JSON lines, .jsonl or .jsonl.gz")
    number, found = 0, False
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        while raw := _read(path, number + 1, partial(file.readline, LONGEST_LINE)):
            number += 1
            if len(raw) == LONGEST_LINE:
                raise _error(path, number, f"longer than {LONGEST_LINE >> 20} MiB; expected one object per line")
            if not raw.strip():
                continue
            if not found and raw.lstrip().startswith(b"[") and path.name.removesuffix(".gz").endswith(".json"):
                yield from _entries(path, b"\n" * (number - 1) + raw + _read(path, number, file.read))
                return
            found = True
            yield Line(path, number, _parsed(path, number, raw))
    if not found:
        raise DataError(f"{path} holds no examples; expected one JSON object per line")


def _read(path: Path, number: int, read: Callable[[], bytes]) -> bytes:
    try:
        return read()
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise _error(path, number, f"broken gzip ({error}); fetch the file again") from error


def _entries(path: Path, raw: bytes) -> Iterator[Line]:
    """The entries of a list, each with the line it begins in."""
    try:
        text = raw.decode("utf-8")
        values = json.loads(text)
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 ({error.reason}); convert the file") from error
    except (ValueError, RecursionError) as error:
        number = getattr(error, "lineno", 1)
        raise _error(path, number, f"not JSON ({error}); expected one list of objects, repair it") from error
    if not values:
        raise DataError(f"{path} holds an empty list; expected at least one object in it")
    decoder, counted, number = json.JSONDecoder(), 0, 1
    end = text.index("[") + 1
    for index, value in enumerate(values, start=1):
        begin = BETWEEN.match(text, end).end()  # type: ignore[union-attr]  # it matches nothing as well
        counted, number = begin, number + text.count("\n", counted, begin)
        _, end = decoder.raw_decode(text, begin)
        if not isinstance(value, dict):
            raise _error(path, number, f"entry {index}: {_shown(value)}; expected an object, {{...}}")
        yield Line(path, index, value, begins=number)


def _parsed(path: Path, number: int, raw: bytes) -> dict[str, Any]:
    try:
        value = json.loads(raw.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise _error(path, number, f"not UTF-8 ({error.reason}); convert the file") from error
    except (ValueError, RecursionError) as error:  # a whole number of thousands of digits is a ValueError as well
        raise _error(path, number, f"not JSON ({error}); expected one object per line, repair or drop it") from error
    if not isinstance(value, dict):
        raise _error(path, number, f"{_shown(value)}; expected an object, {{...}}")
    return value


def sources(paths: Sequence[Path]) -> dict[str, Path]:
    """The files by their names without endings, which ids of cases begin with.

    Raises:
        RunError: there are none, or two of one name.
    """
    if not paths:
        raise RunError("no files of data are given; name at least one, as .jsonl or .jsonl.gz")
    named: dict[str, Path] = {}
    for path in paths:
        name = path.name.removesuffix(".gz").removesuffix(".jsonl")
        if name in named:
            raise RunError(f"data files {named[name]} and {path} are both named {name!r}; drop or rename one of them")
        named[name] = path
    return named


def numbered_lines(paths: Sequence[Path], limit: int | None) -> Iterator[tuple[str, Line]]:
    """The first ``limit`` lines of each file, each with its question's id: the file's name and the line's number."""
    for source, path in sources(paths).items():
        for line in islice(read_lines(path), limit):
            yield f"{source}/{line.number}", line


def _error(path: Path, number: int, reason: str) -> DataError:
    return DataError(f"{path}, line {number}: {reason}")


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:40]}..."
