"""Public programs, and the guarantee they test: document order has no effect, or there is a warning.

A program runs with its documents in several orders. Either every prompt has the same parts in all orders, with
documents as a set, and the answers are bit-identical. Or every run warns, and with the remedy from the warning
the first alternative holds.
"""

from __future__ import annotations

import gc
import random
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ragbias import DebiasedLM
from ragbias.errors import MissingDocumentsWarning, NumberedHeadersWarning
from support.scripted import RecordingLM

Item = TypeVar("Item")
Order = Callable[[Sequence[Item]], list[Item]]
Run = Callable[[Any, Any, str], str]
Parts = tuple[tuple[int, ...], frozenset[tuple[tuple[int, ...], int]], tuple[int, ...]]

EARLIER = ("What is the passphrase of the station in the hills?", "What of the lighthouse?")  # earlier questions
ORDERS: dict[str, Order[Any]] = {
    "as retrieved": list,
    "reversed": lambda found: list(reversed(found)),
    "shuffled": lambda found: random.Random(3).sample(list(found), len(found)),
    "shuffled again": lambda found: random.Random(4).sample(list(found), len(found)),
}


@dataclass(frozen=True)
class Program:
    """A program as published, except for the model.

    Args:
        run: function from the model, the store and a question to the answer.
        treated: number of debiased documents in the last prompt with documents, after applying the remedy.
        remedy: fields of the model that the warning recommends.
        remedied: the program after the change that the warning recommends. Without a remedy, no warning is expected.
    """

    run: Run
    treated: int
    remedy: dict[str, Any] = field(default_factory=dict)
    remedied: Run | None = None


@dataclass(frozen=True)
class Outcome:
    """The outcome of one run of a program.

    Attributes:
        calls: the parts of each prompt, documents as a multiset, with the number of calls.
        bits: log-probabilities of the last prompt's answer.
        warnings: warnings that the order has an effect.
        reports: reports of all prompts.
        treated: number of debiased documents in the last prompt with documents.
    """

    answer: str
    calls: Counter[Parts]
    bits: list[float]
    warnings: list[str]
    reports: list[dict[str, Any]]
    treated: int

    @property
    def clean(self) -> bool:
        return all(
            not each["reason"] and each["numbering"] != "present" for each in self.reports if each["n_found"] > 1
        )

    def __str__(self) -> str:
        shown = [
            (
                e["method_ran"],
                e["source"],
                e["n_found"],
                e["n_expected"],
                e["n_left_plain"],
                e["numbering"],
                e["reason"],
            )
            for e in self.reports
        ]
        return f"answer {self.answer!r}, warnings {self.warnings}: {shown}"

    def same_as(self, other: Outcome) -> bool:
        """Whether the two runs are bit-identical, so that the order had no effect."""
        return (self.answer, self.calls, self.bits) == (other.answer, other.calls, other.bits)


def check(program: Program, outcomes: Callable[..., list[Outcome]]) -> None:
    """Assert the guarantee.

    Args:
        outcomes: function of ``run`` and the model's fields that returns the outcome in each order.
    """
    gc.collect()  # so that no stream that an earlier test dropped warns here
    runs = outcomes(program.run)
    if program.remedy or program.remedied:
        assert all(each.warnings for each in runs), "\n".join(map(str, runs))
        runs = outcomes(program.remedied or program.run, **program.remedy)
    shown = "\n".join(map(str, runs))
    assert all(each.same_as(runs[0]) for each in runs), shown
    assert not any(each.warnings for each in runs), shown
    assert {each.treated for each in runs} == {program.treated}, shown
    assert all(each.clean for each in runs), shown


def outcome(
    lm: DebiasedLM, run: Callable[[RecordingLM], str], fresh: Callable[[], AbstractContextManager[Any]]
) -> Outcome:
    """Run a program, isolated from retrievals of other programs.

    Args:
        run: function from the model to the answer.
        fresh: context manager with a new listener.
    """
    recording = RecordingLM(lm)
    with fresh(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        answer = run(recording)
    (last,) = recording.batch([recording.requests[-1]], max_new_tokens=4, logprobs=True)
    assert last.logprobs
    categories = (MissingDocumentsWarning, NumberedHeadersWarning)
    found = [len(request.tokens.documents) for request in recording.requests if len(request.tokens.documents) > 1]
    return Outcome(
        answer=answer,
        calls=Counter(_parts(request.tokens) for request in recording.requests),
        bits=last.logprobs,
        warnings=[str(each.message) for each in caught if issubclass(each.category, categories)],
        reports=recording.reports,
        treated=found[-1] if found else 0,
    )


def _parts(tokens: Any) -> Parts:
    documents = Counter(map(tuple, tokens.documents))
    return tuple(tokens.prefix), frozenset(documents.items()), tuple(tokens.suffix)
