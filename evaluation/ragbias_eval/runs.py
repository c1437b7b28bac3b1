"""Read the folder of a bench run: files of answers, which may be gzipped, and JSON files."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeAlias, TypeVar

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, TypeAdapter, ValidationError

from ragbias.data.jsonl import Line, read_lines
from ragbias.display import validation_message
from ragbias.errors import DataError

ROWS = "rows.jsonl"
NOISE = "noise.jsonl"  # second answers to repeated cases
COST = "cost.json"
SETTINGS = "settings.json"
SUMMARY = "summary.json"
GZIP_SUFFIX = ".gz"  # suffix of a compressed file of records

T = TypeVar("T")
Key: TypeAlias = tuple[str, str, str, str]
Count = Annotated[int, Field(ge=0)]
Spread = Annotated[list[FiniteFloat], Field(min_length=3, max_length=3)]  # median, lowest, highest
Costs = dict[str, dict[str, dict[str, Spread]]]  # by ``cost_key``, label of the method, and name of the figure


@dataclass(frozen=True)
class Record:
    """The answer of one model to one case with one method. Unknown fields in a file are ignored.

    Attributes:
        id: id of the case. ``question``, ``group``, ``gold_position``, ``order``, ``seed`` and ``shorten`` are those of
            the ``Case``.
        method: label of the method as the user typed it, e.g. ``"attention-sorting(rounds=2)"``.
        documents: number of documents.
        prediction: the model's answer; empty if only log-probabilities are measured.
        score: score of the prediction, from 0 to 1; None if not measured.
        seconds: wall time of the batch divided by the number of cases that ran, plus the time to score the gold
            answers.
        method_ran: name of the method that ran; ``"none"`` if the method could not run, see ``reason``.
        shown: order of the documents in the model's prompt, as alphabetical ranks. A document has the same rank in all
            records with the same ``question``, ``documents`` and ``seed``. Empty, except for ``none``, ``segmented``
            and methods that reorder.
        logprob: log-probability of the most probable gold answer, in nats, summed over tokens. ``logprob``,
            ``answer_tokens``, ``kl`` and ``agrees`` are None if they were not measured.
        answer_tokens: number of tokens of that gold answer.
        kl: KL divergence KL(plain || method) of the token after the prompt, in nats.
        agrees: whether the method and the plain model have the same most probable token after the prompt.
        copied: whether the answer was copied from another order of the same documents. See ``invariant_once``.
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

    def __post_init__(self) -> None:
        if self.score is None and self.logprob is None:
            raise ValueError("neither score nor logprob was measured")
        if len({value is None for value in (self.logprob, self.answer_tokens, self.kl, self.agrees)}) > 1:
            raise ValueError("some of logprob, answer_tokens, kl, agrees are missing")

    @property
    def key(self) -> Key:
        """Task, model, method and case id, which identify the record in a run."""
        return self.task, self.model, self.method, self.id


def as_json_lines(records: Iterable[Record]) -> str:
    """Format the records as JSON lines."""
    return "".join(json.dumps(asdict(record), ensure_ascii=False) + "\n" for record in records)


def read_records(path: Path) -> list[Record]:
    """Read a file of records. Skip an incomplete last line, which an interrupted run may leave.

    If records differ only in ``seconds``, return only the first.
    """
    by_key: dict[Key, Line[Record]] = {}
    for line in read_lines(path, Record, growing=True):
        first = by_key.setdefault(line.row.key, line)
        if replace(line.row, seconds=first.row.seconds) != first.row:
            raise line.error(f"not the same record of {line.row.key} as in line {first.number}; remove the wrong one")
    return [line.row for line in by_key.values()]


class _SettingsFile(BaseModel, extra="allow", strict=True):
    decides: dict[str, Any]
    settings: dict[str, Any] = {}


def find_records_file(folder: Path, name: str) -> Path | None:
    """Find a file of records, plain or gzipped. ``name`` is ``ROWS`` or ``NOISE``. Return None if there is no file."""
    paths = (folder / name, folder / f"{name}{GZIP_SUFFIX}")
    return next(filter(Path.is_file, paths), None)


def cost_key(model: str, task: str, documents: int) -> str:
    """Return the key in ``cost.json`` for a model, task and number of documents."""
    return f"{model}|{task}|{documents}"


def read_costs(folder: Path) -> Costs:
    """Read the costs of a run. Return {} if they were not measured."""
    return _read_json(folder / COST, TypeAdapter(Costs), "restore or remove the file") or {}


def read_run_description(folder: Path) -> dict[str, Any]:
    """Read the description of a run, see ``describe_run``. Return {} if the file is missing."""
    about = _read_json(folder / SETTINGS, TypeAdapter(_SettingsFile), "restore the file")
    return about.model_dump(exclude_unset=True) if about else {}


def _read_json(path: Path, form: TypeAdapter[T], remedy: str) -> T | None:
    """Read and validate a JSON file. Return None if it does not exist."""
    if not path.exists():
        return None
    try:
        return form.validate_json(path.read_bytes(), strict=True)
    except ValidationError as error:
        raise DataError(f"{path} is damaged: {validation_message(error)}; {remedy}") from error
