"""A document's text together with its metadata, which formatters print around it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from pathlib import PureWindowsPath

MAX_FIELDS = 40
MAX_VALUES = MAX_FIELDS // 2  # each printed twice
MAX_VALUE = 300  # characters of one value
MAX_PRINTED = 2000  # characters of the metadata printed as a whole
IS_PATH = re.compile(r"[^\n'\"]*[/\\][^\n'\"/\\]+")
SCALARS = (str, int, float, bool, type(None))

Field = tuple[str, str]


class KnownText(str):
    """A document's text together with its metadata as printed. In all else it is the text alone.

    Attributes:
        fields: ``(name, text)`` of each value; several of one name where several documents have this text.
    """

    __slots__ = ("fields",)
    fields: tuple[Field, ...]

    def __new__(cls, text: str, fields: Iterable[Field] = ()) -> KnownText:
        """At most ``MAX_FIELDS`` of the fields, each once."""
        known = super().__new__(cls, text)
        known.fields = tuple(dict.fromkeys(fields))[:MAX_FIELDS]
        return known

    @classmethod
    def of(cls, text: str, metadata: Mapping[str, object] | None = None, id: str | None = None) -> KnownText:
        """A document's text with its metadata, as far as it is short enough to be printed beside a text.

        Args:
            text: the document's text.
            metadata: its values are known as ``str`` and ``repr`` print them, the whole as ``repr`` and ``json.dumps``.
            id: the document's own.
        """
        return cls(text, (each for each in _printed(metadata or {}, id) if _is_short(*each)))

    def __reduce__(self) -> tuple[type[KnownText], tuple[str, tuple[Field, ...]]]:
        return KnownText, (str(self), self.fields)


def fields_of(texts: Iterable[str]) -> dict[str, dict[str, list[str]]]:
    """For each text that knows metadata, the values by name; those of texts that are equal but for white space around
    them together."""
    known: dict[str, dict[str, list[str]]] = {}
    of_stripped: dict[str, dict[str, list[str]]] = {}
    for text in texts:
        if isinstance(text, KnownText) and text.fields:
            values = known[text] = of_stripped.setdefault(text.strip(), {})
            for name, value in text.fields:
                if value not in values.setdefault(name, []):
                    values[name].append(value)
    return known


def with_fields_of_both(old: str, new: str) -> str:
    """One text for two equal ones, with the metadata of both; the newer first, if there is too much of it."""
    ours, theirs = getattr(old, "fields", ()), getattr(new, "fields", ())
    return new if set(ours) <= set(theirs) else KnownText(new, (*theirs, *ours))


def _printed(metadata: Mapping[str, object], id: str | None) -> list[Field]:
    """The metadata as a whole, and each of its values; without those that cannot be printed."""
    fields: list[Field] = []
    plain = len(metadata) < MAX_FIELDS and all(isinstance(each, SCALARS) for each in metadata.values())
    if metadata and plain:
        fields += _tried("metadata", repr, metadata) + _tried("metadata!j", json.dumps, metadata)
    named = {str(name): value for name, value in metadata.items() if isinstance(name, SCALARS)}
    for name, value in islice({"id": id, **named}.items(), MAX_VALUES):
        if value is not None and (isinstance(value, SCALARS) or not isinstance(value, (Mapping, Iterable))):
            fields += _tried(name, str, value) + _tried(f"{name}!r", repr, value)
    return [*fields, *(each for name, value in fields for each in _file_names(name, value))]


def _file_names(name: str, value: str) -> list[Field]:
    """How a path is printed short: the file's name, with its suffix and without."""
    if not IS_PATH.fullmatch(value):
        return []
    file = PureWindowsPath(value)  # which knows both kinds of slashes
    return [(f"{name}!name", file.name), (f"{name}!stem", file.stem)]


def _tried(name: str, write: Callable[[object], str], value: object) -> list[Field]:
    try:
        return [(name, write(value))]
    except Exception:  # of the user's own classes; metadata are only a help
        return []


def _is_short(name: str, value: str) -> bool:
    longest = MAX_PRINTED if name in ("metadata", "metadata!j") else MAX_VALUE
    return bool(value.strip()) and len(value) <= longest
