"""One row per answer of a bench, in ``rows.jsonl``."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Row:
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
    """

    id: str
    task: str
    model: str
    method: str
    question: str
    group: str
    documents: int
    gold_position: int | None
    order: int
    seed: int
    prediction: str
    score: float
    prompt_tokens: int
    completion_tokens: int
    seconds: float
    method_ran: str
    reason: str = ""

    @property
    def key(self) -> tuple[str, str, str, str]:
        return self.task, self.model, self.method, self.id

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def as_lines(rows: Iterable[Row]) -> str:
    """JSON lines, one for each row, the last one ended as well."""
    return "".join(json.dumps(row.as_dict(), ensure_ascii=False) + "\n" for row in rows)


def read_rows(path: Path) -> list[Row]:
    """The rows of a file; a last line without an end, which an interrupted run leaves, does not count."""
    text = path.read_text(encoding="utf-8")
    return [Row(**json.loads(line)) for line in text[: text.rfind("\n") + 1].split("\n") if line]
