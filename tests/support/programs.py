"""Public programs and the promise that must hold in them: the order of the documents counts for nothing, or is told.

A program is run with its documents in several orders. Either every prompt it sends has the same parts in all of them,
documents as a set, and the answers are the same bit for bit; or every run warns, and with the remedy that the warning
names the first is true.
"""

from __future__ import annotations

import random
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ragbias import DebiasedLM
from ragbias.adapters.missing_documents import MissingDocumentsWarning
from ragbias.boundaries import NumberedHeadersWarning
from support.scripted import RecordingLM

Item = TypeVar("Item")
Order = Callable[[Sequence[Item]], list[Item]]
Run = Callable[[Any, Any, str], str]
Parts = tuple[tuple[int, ...], frozenset[tuple[tuple[int, ...], int]], tuple[int, ...]]

EARLIER = ("What is the passphrase of the station in the hills?", "What of the lighthouse?")  # asked in earlier turns
ORDERS: dict[str, Order[Any]] = {
    "as retrieved": list,
    "reversed": lambda found: list(reversed(found)),
    "shuffled": lambda found: random.Random(3).sample(list(found), len(found)),
    "shuffled again": lambda found: random.Random(4).sample(list(found), len(found)),
}


@dataclass(frozen=True)
class Program:
    """A program as its public source has it, but for the model.

    Args:
        run: from the model, the store and a question to the answer.
        treated: number of documents that its last prompt with documents treats, with the remedy if there is one.
        remedy: the model's fields that its warning asks for.
        remedied: the program as its warning asks for it. Without a remedy, no warning is expected.
    """

    run: Run
    treated: int
    remedy: dict[str, Any] = field(default_factory=dict)
    remedied: Run | None = None


@dataclass(frozen=True)
class Outcome:
    """What one run of a program came to.

    Attributes:
        calls: the parts of each prompt, documents as a multiset, and how often the model got them.
        bits: the log-probabilities of the last prompt's answer.
        warned: whether a warning told that the order counts.
        reports: of each prompt.
        treated: number of documents of the last prompt with documents.
    """

    answer: str
    calls: Counter[Parts]
    bits: list[float]
    warned: bool
    reports: list[dict[str, Any]]
    treated: int

    @property
    def clean(self) -> bool:
        return all(not each["reason"] and each["numbering"] != "kept" for each in self.reports if each["n_found"] > 1)

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
        return f"answer {self.answer!r}, warned {self.warned}: {shown}"

    def same_as(self, other: Outcome) -> bool:
        """Whether the order counted for nothing."""
        return (self.answer, self.calls, self.bits) == (other.answer, other.calls, other.bits)


def check(program: Program, outcomes: Callable[..., list[Outcome]]) -> None:
    """Assert the promise.

    Args:
        outcomes: of a program, by its ``run``, and the model's fields, in each order.
    """
    runs = outcomes(program.run)
    if program.remedy or program.remedied:
        assert all(each.warned for each in runs), "\n".join(map(str, runs))
        runs = outcomes(program.remedied or program.run, **program.remedy)
    first, *others = runs
    assert all(each.same_as(first) for each in others), "\n".join(map(str, runs))
    assert not any(each.warned for each in runs), first
    assert {each.treated for each in runs} == {program.treated}, first
    assert all(each.clean for each in runs), first


def outcome(
    lm: DebiasedLM, run: Callable[[RecordingLM], str], fresh: Callable[[], AbstractContextManager[Any]]
) -> Outcome:
    """Run a program that sees nothing of what others retrieved.

    Args:
        run: from the model to the answer.
        fresh: a context in which the listener starts anew.
    """
    recording = RecordingLM(lm)
    with fresh(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        answer = run(recording)
    (last,) = recording.batch([recording.requests[-1]], max_new_tokens=4, logprobs=True)
    assert last.logprobs
    told = (MissingDocumentsWarning, NumberedHeadersWarning)
    found = [len(request.tokens.documents) for request in recording.requests if len(request.tokens.documents) > 1]
    return Outcome(
        answer=answer,
        calls=Counter(_parts(request.tokens) for request in recording.requests),
        bits=last.logprobs,
        warned=any(issubclass(each.category, told) for each in caught),
        reports=recording.reports,
        treated=found[-1] if found else 0,
    )


def _parts(tokens: Any) -> Parts:
    documents = Counter(map(tuple, tokens.documents))
    return tuple(tokens.prefix), frozenset(documents.items()), tuple(tokens.suffix)
