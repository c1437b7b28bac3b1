"""Records of a bench: the lines of ``rows.jsonl`` and ``noise.jsonl``, which may be gzipped (``.gz``)."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, ClassVar, TypeAlias

from pydantic import ConfigDict, Field, TypeAdapter

from ragbias.data.jsonl import parse
from ragbias.errors import DataError
from ragbias.files import irregular

Key: TypeAlias = tuple[str, str, str, str]
Count = Annotated[int, Field(ge=0)]
OF_LOGPROB = ("answer_tokens", "kl", "agrees")  # measured together with ``logprob``
PACKED = ".gz"  # suffix of a compressed file of records


@dataclass(frozen=True)
class Record:
    """The answer of one model to one case with one method. Unknown fields in files are ignored.

    Attributes:
        id: id of the case. With ``task``, ``model`` and ``method`` it identifies the record.
        method: label of the method as the user typed it, e.g. ``"attention-sorting(rounds=2)"``.
        question: id of the question. Cases with the same ``question``, ``documents`` and ``seed`` differ only in the
            order of the documents.
        documents: number of documents.
        gold_position: position of the gold document, counted from 0; None without a gold document.
        seed: seed that selected the documents; 0 if the data file determines them.
        prediction: the model's answer; empty if only log-probabilities are measured.
        score: score of the prediction, from 0 to 1; None if not measured.
        seconds: wall time of the batch, divided by the number of its cases.
        method_ran: name of the method that ran; ``"none"`` if the method could not run, see ``reason``.
        shown: order of the documents in the model's prompt, as numbers from ``tasks.orders.ranking``. A document has
            the same number in all records with the same ``question``, ``documents`` and ``seed``. Empty for methods
            that do not change the order, except ``none`` and ``segmented``.
        logprob: log-probability of the most probable gold answer, in nats, summed over tokens. This and the next three
            fields are None if they were not measured.
        answer_tokens: number of tokens of that gold answer.
        kl: KL(plain || method) of the token after the prompt, in nats.
        agrees: whether the method and the plain model predict the same most probable token after the prompt.
        shorten: number of words around the answer to which each passage was cut; None: passages are complete.
        copied: whether the record was copied from another order of the same documents, see ``invariant_once``.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(strict=True)

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
    logprob: Annotated[float, Field(allow_inf_nan=False)] | None = None
    answer_tokens: Count | None = None
    kl: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    agrees: bool | None = None
    shorten: Count | None = None
    copied: bool = False

    @property
    def key(self) -> Key:
        """Task, model, method and case id. Unique in a run."""
        return self.task, self.model, self.method, self.id


def as_lines(records: Iterable[Record]) -> str:
    """Format the records as JSON lines."""
    return "".join(json.dumps(asdict(record), ensure_ascii=False) + "\n" for record in records)


_RECORD = TypeAdapter(Record)


def read_records(path: Path) -> list[Record]:
    """Read a file of records. Skip an incomplete last line of an interrupted run.

    If records differ only in ``seconds``, only the first is returned.
    """
    if kind := irregular(path):
        raise DataError(f"{path} is {kind}; expected a regular file of records from a bench")
    raw = _unpack(path) if path.suffix == PACKED else path.read_bytes()
    by_key: dict[Key, tuple[int, Record]] = {}
    for number, line in enumerate(raw[: raw.rfind(b"\n") + 1].split(b"\n"), start=1):
        if line.strip():
            record = _record(line, f"{path}, line {number}")
            first, same = by_key.setdefault(record.key, (number, record))
            if replace(record, seconds=same.seconds) != same:
                raise DataError(
                    f"{path}, lines {first} and {number}: two records of task {record.task!r}, model {record.model!r}, "
                    f"method {record.method!r} and case {record.id!r} differ; remove the wrong one"
                )
    return [record for _, record in by_key.values()]


def _unpack(path: Path) -> bytes:
    try:
        if raw := path.read_bytes():
            return gzip.decompress(raw)
        raise EOFError("it is empty")
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(f"{path} is damaged, not a whole gzip file: {error}; restore the file") from error


def _record(line: bytes, where: str) -> Record:
    record = parse(line, where, _RECORD)
    if record.score is None and record.logprob is None:
        raise DataError(f"{where}: neither score nor logprob was measured; repair or remove the line")
    if any((getattr(record, name) is None) != (record.logprob is None) for name in OF_LOGPROB):
        names = ", ".join(("logprob", *OF_LOGPROB))
        raise DataError(f"{where}: some of {names} are missing; repair or remove the line")
    return record
