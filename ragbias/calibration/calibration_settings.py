"""Settings of a calibration."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ragbias.checks import check_choice
from ragbias.errors import MethodError

CRITERIA = ("monotonicity", "smoothness", "validation")
QUESTIONS = {"kv": 100, "data": 100, "tiny": 40}  # 100 as in the paper; fewer for minutes on one CPU core


@dataclass(frozen=True)
class CalibrationSettings:
    """Settings of a calibration. The command line checks their ranges.

    Attributes:
        model: a hub name, a path or ``"tiny"``.
        method: the method to search parameters for.
        task: source of the calibration set. None: ``data`` with a file, ``tiny`` for the embedded model, else ``kv``.
        data: JSON-lines file of ``{question, documents, answer, gold}``.
        strings, length: number of random token strings and their length; the paper uses 2000 of 1000. None: a length of
            1000, or the model's window if that is shorter.
        questions: number of generated questions, each at ``depths`` positions of the gold document.
        documents: per generated question. None: depends on task and window.
        batch_size: sequences per batch; changes speed and memory only.
        variant: of the channel search, ``"released"`` (the authors' code) or ``"paper"``.
        without: criteria left out, as in the paper's ablations: ``"monotonicity"``, ``"smoothness"``,
            ``"validation"`` (the first channel of the search is taken; its factor and layers are still chosen by loss).
        dtype: ``"float32"``, ``"bfloat16"`` or ``"float16"``; ``"auto"``: as stored.
        pair: also measure the best two channels scaled together, as in the paper's ablation. The profile has one.
    """

    model: str
    task: str | None = None
    data: Path | None = None
    strings: int = 500
    length: int | None = None
    questions: int | None = None
    documents: int | None = None
    depths: int = 5
    seed: int = 0
    batch_size: int = 8
    variant: str = "released"
    without: tuple[str, ...] = ()
    pair: bool = False
    method: str = "channel-scaling"
    dtype: str = "auto"

    def __post_init__(self) -> None:
        for criterion in self.without:
            check_choice("calibrate: without", criterion, CRITERIA)
        if self.method != "channel-scaling" and (self.variant, self.without, self.pair) != ("released", (), False):
            raise MethodError(
                f"calibrate: variant={self.variant!r}, without={self.without!r} and pair={self.pair!r} apply to "
                f"method='channel-scaling' only; leave them out for method={self.method!r}"
            )
        if self.task == "data" and self.data is None:
            raise MethodError("calibrate: task='data' needs a file; pass its path as data (--data FILE)")
        if self.data is not None and self.task not in (None, "data"):
            raise MethodError(
                f"calibrate: task={self.task!r} draws its own questions; leave out data={str(self.data)!r}"
            )
        if self.data is not None and not self.data.is_file():
            raise MethodError(f"calibrate: data={str(self.data)!r} is no file; expected JSON lines, one question each")

    def plan(self, window: int) -> CalibrationPlan:
        """The settings with their defaults for a model.

        Raises:
            MethodError: the strings are longer than the model's window.
        """
        if self.length is not None and self.length > window:
            raise MethodError(f"calibrate: length={self.length}, but the model's window is {window} tokens")
        task = self.task or ("data" if self.data else "tiny" if self.model == "tiny" else "kv")
        length, questions = self.length or min(1000, window), self.questions or QUESTIONS[task]
        return CalibrationPlan(**{**vars(self), "task": task, "length": length, "questions": questions})


@dataclass(frozen=True, kw_only=True)
class CalibrationPlan(CalibrationSettings):
    """Settings for one model. Equal plans give equal results, up to the order of sums."""

    task: str
    length: int
    questions: int

    def as_dict(self) -> dict[str, Any]:
        """What the results depend on, as plain data; a data file by its name and SHA-256."""
        plain = {**vars(self)}
        del plain["batch_size"]
        if self.data is not None:
            plain["data"] = {"file": self.data.name, "sha256": hashlib.sha256(self.data.read_bytes()).hexdigest()}
        return plain
