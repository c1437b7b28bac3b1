"""A document's text together with its metadata, which formatters print around it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

MAX_FIELDS = 40
MAX_VALUE = 300  # characters of one value
MAX_PRINTED = 2000  # characters of the metadata printed as a whole
SCALARS = (str, int, float, bool, type(None))

Field = tuple[str, str]


class KnownText(str):
    """A document's text that knows what its metadata looks like in print. In all else it is the text alone.

    Attributes:
        fields: ``(name, text)`` of each value; several of one name where one text stands for several documents.
    """

    __slots__ = ("fields",)
    fields: tuple[Field, ...]

    def __new__(cls, text: str, fields: Iterable[Field] = ()) -> KnownText:
        """Bounded, whatever the metadata: what is too long is left out."""
        known = super().__new__(cls, text)
        known.fields = tuple(dict.fromkeys(fields))[:MAX_FIELDS]
        return known

    @classmethod
    def of(cls, text: str, metadata: Mapping[str, object] | None = None, id: str | None = None) -> KnownText:
        """A document's text.

        Args:
            metadata: its values are known as ``str``, ``repr`` and ``json.dumps`` print them, and so is the whole.
            id: the document's own.
        """
        fields: list[Field] = []
        values = {"id": id, **(metadata or {})}
        for name, value in list(values.items())[: MAX_FIELDS // 2]:
            if value is not None and (isinstance(value, SCALARS) or not isinstance(value, (Mapping, Iterable))):
                fields += [(str(name), str(value)), (f"{name}!r", repr(value))]
        whole: list[Field] = []
        if metadata and len(metadata) < MAX_FIELDS and all(isinstance(each, SCALARS) for each in metadata.values()):
            for name, printed in (("metadata", repr(metadata)), ("metadata!j", json.dumps(metadata, default=str))):
                whole += [(name, printed)] if len(printed) <= MAX_PRINTED else []
        return cls(text, (each for each in (*whole, *fields) if each[1].strip() and len(each[1]) <= _longest(each[0])))

    def __reduce__(self) -> tuple[type[KnownText], tuple[str, tuple[Field, ...]]]:
        return KnownText, (str(self), self.fields)


def fields_of(texts: Iterable[str]) -> dict[str, dict[str, list[str]]]:
    """For each text that knows metadata, the values by name; those of equal texts together."""
    known: dict[str, dict[str, list[str]]] = {}
    for text in texts:
        if isinstance(text, KnownText) and text.fields:
            values = known.setdefault(text, {})
            for name, value in text.fields:
                if value not in values.setdefault(name, []):
                    values[name].append(value)
    return known


def merged(old: str, new: str) -> str:
    """One text for two equal ones, with the metadata of both; the newer first, if there is too much of it."""
    ours, theirs = getattr(old, "fields", ()), getattr(new, "fields", ())
    return new if set(ours) <= set(theirs) else KnownText(new, (*theirs, *ours))


def _longest(name: str) -> int:
    return MAX_PRINTED if name in ("metadata", "metadata!j") else MAX_VALUE
