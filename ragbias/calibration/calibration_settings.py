"""What a calibration runs on, and how much of it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ragbias import checks as bounds
from ragbias.checks import check_choice, check_whole_between
from ragbias.errors import MethodError
from ragbias.evaluation.cost.model_shapes import DTYPES

BOUNDS = {
    "strings": bounds.STRINGS,
    "length": bounds.STRING_LENGTH,
    "questions": bounds.DRAWN_QUESTIONS,
    "documents": bounds.DRAWN_DOCUMENTS,
    "depths": bounds.DEPTHS,
    "seed": bounds.SEED,
    "batch_size": bounds.BATCH,
}
QUESTIONS = {"kv": 100, "data": 100, "tiny": 40}  # 100 as in the paper; fewer where one CPU core shall do in minutes
SEARCHED = ("channel-scaling", "ape", "siw", "position-interpolation")
VARIANTS = ("released", "paper")  # of the search for channels
ABLATIONS = ("monotonicity", "smoothness", "validation")


@dataclass(frozen=True)
class CalibrationSettings:
    """What is asked for.

    Attributes:
        model: a hub name, a path or ``"tiny"``.
        method: whose parameters are searched, of ``SEARCHED``.
        task: where the calibration set comes from; None: ``data`` if there is a file, ``tiny`` for the embedded model,
            else ``kv``.
        data: JSON-lines file of ``{question, documents, answer, gold}``.
        strings, length: random token strings and their length; the paper has 2000 of 1000. No length means 1000 or the
            model's window, whichever is less.
        questions: of a generated calibration set, each asked at ``depths`` positions of the gold document.
        documents: per question of a generated set; None: what suits task and window.
        batch_size: sequences that run together; changes speed and memory only.
        variant: of the search for channels, ``"released"`` as in the authors' code or ``"paper"``.
        without: of the paper's ablations, the criteria that are left out: ``"monotonicity"``, ``"smoothness"``,
            ``"validation"`` (the first channel of the search is taken, its factor and layers still by loss).
        dtype: of weights and computation, ``"float32"``, ``"bfloat16"`` or ``"float16"``; ``"auto"``: as stored.
        pair: measure the best two channels scaled together as well, as in the paper's ablation; the profile has one.
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
        for name, each in BOUNDS.items():
            if getattr(self, name) is not None:
                check_whole_between(f"calibrate: {name}", getattr(self, name), each)
        check_choice("calibrate: method", self.method, SEARCHED)
        check_choice("calibrate: dtype", self.dtype, ("auto", *DTYPES))
        if self.method != "channel-scaling" and (self.variant, self.without, self.pair) != ("released", (), False):
            raise MethodError(
                f"calibrate: variant={self.variant!r}, without={self.without!r} and pair={self.pair!r} are of the "
                f"search for channels; leave them out for method={self.method!r}"
            )
        check_choice("calibrate: variant", self.variant, VARIANTS)
        for criterion in self.without:
            check_choice("calibrate: without", criterion, ABLATIONS)
        if self.task is not None:
            check_choice("calibrate: task", self.task, tuple(QUESTIONS))
        if self.task == "data" and self.data is None:
            raise MethodError("calibrate: task='data' needs a file; give its path as data (--data FILE)")
        if self.data is not None and self.task not in (None, "data"):
            raise MethodError(
                f"calibrate: task={self.task!r} draws its own questions; leave out data={str(self.data)!r}"
            )
        if self.data is not None and not self.data.is_file():
            raise MethodError(f"calibrate: data={str(self.data)!r} is no file; expected JSON lines, one question each")

    def plan(self, window: int) -> CalibrationPlan:
        """The settings with nothing left open but what depends on the tokenizer.

        Raises:
            MethodError: the strings are longer than the model's window.
        """
        if self.length is not None and self.length > window:
            raise MethodError(f"calibrate: length={self.length}, but the model's window is {window} tokens")
        task = self.task or ("data" if self.data else "tiny" if self.model == "tiny" else "kv")
        settled = {
            "task": task,
            "length": self.length or min(1000, window),
            "questions": self.questions or QUESTIONS[task],
        }
        return CalibrationPlan(**{**vars(self), **settled})


@dataclass(frozen=True, kw_only=True)
class CalibrationPlan(CalibrationSettings):
    """Settings made definite for a model. Results of equal plans are equal, up to the order of sums."""

    task: str
    length: int
    questions: int

    def as_dict(self) -> dict[str, Any]:
        """What the results depend on, as plain data; of a data file its name and the SHA-256 of what it holds."""
        plain = {**vars(self)}
        del plain["batch_size"]
        if self.data is not None:
            plain["data"] = {"file": self.data.name, "sha256": hashlib.sha256(self.data.read_bytes()).hexdigest()}
        return plain
