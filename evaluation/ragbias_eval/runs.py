"""Read and write runs. A run is a folder with the stored records of one bench, and its settings, costs and summary.

A record is one answer of a model. A lock admits one writing process at a time. Gzipped files of records can be read,
but not extended.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeAlias, TypeVar

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, TypeAdapter, ValidationError

from ragbias.data.jsonl import Line, read_lines
from ragbias.display import describe_changes, validation_message
from ragbias.errors import DataError, RunError
from ragbias.files import file_name_in_errors, sync_folder, write_atomically

ROWS = "rows.jsonl"
NOISE = "noise.jsonl"  # second answers to repeated cases
COST = "cost.json"
SETTINGS = "settings.json"
SUMMARY = "summary.json"
GZIP_SUFFIX = ".gz"  # suffix of a compressed file of records
LOCK = ".lock"

T = TypeVar("T")
Key: TypeAlias = tuple[str, str, str, str]
Count = Annotated[int, Field(ge=0)]
Spread = Annotated[list[FiniteFloat], Field(min_length=3, max_length=3)]  # median, lowest, highest
Costs = dict[str, dict[str, dict[str, Spread]]]  # by ``cost_key``, label of the method, and name of the figure


@dataclass(frozen=True)
class Record:
    """The answer of one model to one case with one method. Unknown fields in a file are ignored.

    ``question``, ``group``, ``gold_position``, ``order``, ``seed`` and ``shorten`` are those of the ``Case``.
    ``shown`` lists the alphabetical rank of each document, in the order of the model's prompt. A document has the same
    rank in all records with the same ``question``, ``documents`` and ``seed``. Only ``none``, ``segmented`` and methods
    that reorder have ``shown``; otherwise it is empty. The fields from ``logprob`` to ``agrees`` are None if they were
    not measured.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(strict=True)

    id: str  # of the case
    task: str
    model: str
    method: str  # label as the user typed it, e.g. ``"attention-sorting(rounds=2)"``
    question: str
    group: str
    documents: Count
    gold_position: Count | None
    order: Count
    seed: int
    prediction: str  # empty if only log-probabilities are measured
    score: Annotated[float, Field(ge=0, le=1)] | None  # of the prediction; None if not measured
    prompt_tokens: Count
    completion_tokens: Count
    # time of the batch divided by the number of cases that ran, plus the time to score the gold answers
    seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    method_ran: str  # ``"none"`` if the method could not run, see ``reason``
    reason: str = ""
    shown: tuple[Count, ...] = ()
    logprob: Annotated[float, Field(allow_inf_nan=False)] | None = None  # of the most probable gold answer, in nats
    answer_tokens: Count | None = None  # of that gold answer
    kl: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None  # KL(plain || method) of the next token
    agrees: bool | None = None  # whether the method and the plain model have the same most probable next token
    shorten: Count | None = None
    copied: bool = False  # whether the answer was copied from another order, see ``invariant_once``

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
    """Read a file of records. Skip an incomplete last line, which an interrupted run may leave."""
    first: dict[Key, Line[Record]] = {}
    for line in read_lines(path, Record, growing=True):
        known = first.setdefault(line.row.key, line)
        if known is not line:
            raise line.error(f"the same record as in line {known.number}; remove one of them")
    return [line.row for line in first.values()]


class _SettingsFile(BaseModel, extra="allow", strict=True):
    decides: dict[str, Any]
    settings: dict[str, Any] = {}


@dataclass(frozen=True)
class Run:
    """The files of a run. ``cost`` and ``settings`` are empty if their files are missing."""

    folder: Path
    records: list[Record]
    noise: list[Record]
    cost: Costs
    settings: dict[str, Any]


def read_run(folder: Path) -> Run:
    """Read the folder of a run. Raise ``RunError`` if it has no answers."""
    if not folder.is_dir():
        raise RunError(f"{folder} is not a folder; expected the --out folder of a bench")
    rows = _find_record_file(folder, ROWS)
    if rows is None:
        raise RunError(f"{folder} has no {ROWS} or {ROWS}.gz; expected the --out folder of a bench")
    records = read_records(rows)
    if not records:
        raise RunError(f"{rows} contains no answers yet; run the bench again to resume it")
    again = _find_record_file(folder, NOISE)
    noise = read_records(again) if again else []
    return Run(folder, records, noise, read_costs(folder), read_run_description(folder))


def _find_record_file(folder: Path, name: str) -> Path | None:
    """Return the file with this name, or its compressed copy, or None if neither exists."""
    candidates = (folder / name, folder / f"{name}{GZIP_SUFFIX}")
    return next((path for path in candidates if path.is_file()), None)


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


class RecordFile:
    """A file of records as JSON lines, without repetitions."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch()
        self.by_key: dict[Key, Record] = {record.key: record for record in read_records(path)}
        with path.open("r+b") as file:  # drop an incomplete last line
            file.truncate(file.read().rfind(b"\n") + 1)

    def holds(self, keys: Sequence[Key]) -> bool:
        return self.by_key.keys() >= set(keys)

    def append(self, records: Sequence[Record]) -> int:
        """Write the records that the file lacks, flush them to disk, and return their number."""
        new = [record for record in records if record.key not in self.by_key]
        with file_name_in_errors(self.path), self.path.open("ab") as file:
            file.write(as_json_lines(new).encode())
            file.flush()
            os.fsync(file.fileno())
        self.by_key.update((record.key, record) for record in new)
        return len(new)

    def sort(self, keys: Sequence[Key]) -> None:
        """Sort the records in the order of ``keys``. Records with other keys come last."""
        if list(self.by_key)[: len(keys)] != keys:
            self.by_key = {**{key: self.by_key[key] for key in keys}, **self.by_key}
            write_atomically(self.path, as_json_lines(self.by_key.values()).encode())


@contextmanager
def locked_store(folder: Path, about: Mapping[str, Any]) -> Iterator[Store]:
    """Create a run's folder if it is missing. Lock it until the ``with`` block ends."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LOCK).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunError(f"{folder}: another process writes to it; wait for it, or give a new folder") from None
        yield Store(folder, about)


class Store:
    """The folder of a run. ``about`` is the description of the run, see ``describe_run``.

    A run resumes only with the same settings, or with a higher limit, which leaves the first questions unchanged. Until
    the first record is written, a run with other settings can take over the folder.
    """

    def __init__(self, folder: Path, about: Mapping[str, Any]) -> None:
        self.folder = folder
        self._check_settings(json.loads(json.dumps(about)))
        self.records = RecordFile(folder / ROWS)
        self.noise = RecordFile(folder / NOISE)
        sync_folder(folder)

    def _check_settings(self, about: dict[str, Any]) -> None:
        before = read_run_description(self.folder)
        if before and holds_records(self.folder):
            changed = describe_changes(before["decides"], about["decides"])
            if not changed:
                return
            old, new = before["decides"].get("limit"), about["decides"].get("limit")
            higher = isinstance(old, int) and isinstance(new, int) and old < new
            if not (higher and {**before["decides"], "limit": new} == about["decides"]):
                raise RunError(f"{self.folder} contains another run ({'; '.join(changed)}); give a new folder")
            (self.folder / SUMMARY).unlink(missing_ok=True)  # outdated
        self.write(SETTINGS, about)

    def write(self, name: str, data: Any) -> None:
        write_atomically(self.folder / name, (json.dumps(data, indent=2, ensure_ascii=False) + "\n").encode())


def holds_records(folder: Path) -> bool:
    return any((folder / name).is_file() and (folder / name).stat().st_size for name in (ROWS, NOISE))


def check_folder_contents(folder: Path) -> None:
    """Check that the folder is empty or contains a run that can resume. Otherwise raise ``RunError``."""
    if compressed := [path.name for path in folder.glob(f"*{GZIP_SUFFIX}")]:
        raise RunError(
            f"{folder} contains {compressed[0]}: compressed answers cannot be extended; give a new folder, or unpack "
            "it with gunzip first"
        )
    others = sorted(path.name for path in folder.glob("*") if not path.name.startswith((LOCK, SETTINGS)))
    if others and not (folder / SETTINGS).exists():
        raise RunError(f"{folder} contains {others[0]!r} but no run of a bench ({SETTINGS}); give a new folder")
