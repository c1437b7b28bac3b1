"""Records of a bench's answers: what ``rows.jsonl`` and ``noise.jsonl`` hold, gzipped (``.gz``) or not."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, ClassVar, Literal, TypeAlias

from pydantic import ConfigDict, Field, TypeAdapter

from ragbias.errors import DataError
from ragbias.evaluation.data.jsonl import parse
from ragbias.files import irregular

Key: TypeAlias = tuple[str, str, str, str]
Count = Annotated[int, Field(ge=0)]
OF_LOGPROB = ("answer_tokens", "kl", "agrees")  # measured together with ``logprob``
PACKED = ".gz"  # ends the name of a compressed file of records


@dataclass(frozen=True)
class Record:
    """The answer of one model to one case with one method.

    Attributes:
        id: of the case; with ``task``, ``model`` and ``method`` it identifies the record.
        method: as typed, with its parameters, e.g. ``"attention-sorting(rounds=2)"``.
        question: cases of one question, with equally many ``documents`` and the same ``seed``, differ in the documents'
            order only.
        documents: their number.
        gold_position: of the gold document, counted from 0; None: there is none.
        seed: what drew the documents; 0 where the data gives them, also if it shuffled them.
        prediction: empty where only log-probabilities are measured.
        score: 0 to 1; None: not measured.
        seconds: wall time of its batch, divided by the cases of the batch.
        method_ran: ``"none"`` where the method could not act; ``reason`` says why.
        shown: the documents in the order in which the model saw them, numbered by ``tasks.orders.ranking``: a number
            is the same document in all records of one question, equally many ``documents`` and the same ``seed``.
            Only of methods that reorder the documents, and of ``none`` and ``segmented``; else empty.
        cut: the lost part of a prompt longer than the window: ``"front"``, ``"middle"``, or nothing.
        logprob: of the most probable gold answer, in nats, summed over its tokens. None: not measured, like the fields
            below.
        answer_tokens: of that gold answer.
        kl: KL(plain || method) of the token after the prompt, in nats.
        agrees: whether the most probable token after the prompt is the plain model's.
        shorten: words that each passage was cut to, around the answer; None: passages are whole.
        copied: whether the record is that of the same documents in another order (setting ``invariant_once``).
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
    score: Annotated[float, Field(ge=0, le=1)] | None
    prompt_tokens: Count
    completion_tokens: Count
    seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    method_ran: str
    reason: str = ""
    shown: tuple[Count, ...] = ()
    cut: Literal["", "front", "middle"] = ""
    logprob: Annotated[float, Field(allow_inf_nan=False)] | None = None
    answer_tokens: Count | None = None
    kl: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    agrees: bool | None = None
    shorten: Count | None = None
    copied: bool = False

    @property
    def key(self) -> Key:
        """Task, model, method and id: no two records of a run share it."""
        return self.task, self.model, self.method, self.id


def as_lines(records: Iterable[Record]) -> str:
    """One JSON line per record, each with its line end."""
    return "".join(json.dumps(asdict(record), ensure_ascii=False) + "\n" for record in records)


_RECORD = TypeAdapter(Record)


def read_records(path: Path) -> list[Record]:
    """Read a file of records. An unfinished last line, as an interrupted run leaves it, is skipped.

    Records that differ in nothing but their ``seconds`` count once.
    """
    if kind := irregular(path):
        raise DataError(f"{path} is {kind}; expected a regular file of records, as a bench writes it")
    raw = _unpack(path) if path.suffix == PACKED else path.read_bytes()
    found: dict[Key, tuple[int, Record]] = {}
    for number, line in enumerate(raw[: raw.rfind(b"\n") + 1].split(b"\n"), start=1):
        if line.strip():
            record = _record(line, f"{path}, line {number}")
            first, same = found.setdefault(record.key, (number, record))
            if replace(record, seconds=same.seconds) != same:
                raise DataError(
                    f"{path}, lines {first} and {number}: two records of task {record.task!r}, model {record.model!r}, "
                    f"method {record.method!r} and case {record.id!r}, which differ; drop the wrong one"
                )
    return [record for _, record in found.values()]


def _unpack(path: Path) -> bytes:
    try:
        if raw := path.read_bytes():
            return gzip.decompress(raw)
        raise EOFError("it is empty")
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(f"{path} is damaged, no whole gzip file: {error}; put the file back") from error


def _record(line: bytes, where: str) -> Record:
    record = parse(line, where, _RECORD)
    if record.score is None and record.logprob is None:
        raise DataError(f"{where}: neither score nor logprob was measured; repair the line, or drop it")
    if any((getattr(record, name) is None) != (record.logprob is None) for name in OF_LOGPROB):
        together = ", ".join(("logprob", *OF_LOGPROB))
        raise DataError(f"{where}: of {together} some are missing; repair the line, or drop it")
    return record
