"""One row per answer of a bench, in ``rows.jsonl``."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from ragbias.errors import DataError
from ragbias.evaluation.validation import complaints

Count = Annotated[int, Field(ge=0)]


@dataclass(frozen=True)
class Record:
    """What one model said to one case with one method.

    Attributes:
        id: of the case; with ``task``, ``model`` and ``method`` it names the row.
        method: as typed, with its parameters, e.g. ``"attention-sorting(rounds=2)"``.
        question: cases of one question, with equally many ``documents`` and the same ``seed``, differ in the documents'
            order only.
        documents: their number.
        gold_position: place of the gold document, counted from 0.
        seed: what drew the documents; 0 where the data gives them, also if it shuffled them.
        score: 0 to 1.
        seconds: wall time of its batch, divided by the rows of the batch.
        method_ran: ``"none"`` where the method could not act; ``reason`` says why.
        shown: the documents in the order in which the model saw them, as ``arranging.ranking`` numbers them: a number
            is the same document in all rows of one question, equally many ``documents`` and the same ``seed``. Only of
            methods that reorder the documents, and of ``none``, which shows them as given; else empty.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid", strict=True)

    id: str
    task: str
    model: str
    method: str
    question: str
    group: str
    documents: Count
    gold_position: Count | None
    order: Count
    seed: int
    prediction: str
    score: Annotated[float, Field(ge=0, le=1)]
    prompt_tokens: Count
    completion_tokens: Count
    seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    method_ran: str
    reason: str = ""
    shown: tuple[Count, ...] = ()

    @property
    def key(self) -> tuple[str, str, str, str]:
        return self.task, self.model, self.method, self.id

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def as_lines(rows: Iterable[Record]) -> str:
    """JSON lines, one for each row, the last one ended as well."""
    return "".join(json.dumps(row.as_dict(), ensure_ascii=False) + "\n" for row in rows)


_ROW = TypeAdapter(Record)


def read_records(path: Path) -> list[Record]:
    """The rows of a file; a last line without an end, which an interrupted run leaves, does not count.

    Raises:
        DataError: a line is no row; names file and line.
    """
    raw = path.read_bytes()
    whole = raw[: raw.rfind(b"\n") + 1].split(b"\n")
    return [_row(path, number, line) for number, line in enumerate(whole, start=1) if line.strip()]


def _row(path: Path, number: int, line: bytes) -> Record:
    try:
        return _ROW.validate_json(line)
    except ValidationError as error:
        raise DataError(f"{path}, line {number}: {complaints(error)}; repair the line, or drop it") from error
