"""Count the public programs in which a recogniser fires: ``python tests/boundaries/count_recognisers.py``.

It runs the programs of LangChain and LlamaIndex in the tests, and reads what the functions of ``ragbias.boundaries``
return. A recogniser that no program needs may be replaced by a refusal that names a remedy.
"""

import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

from ragbias.boundaries import (
    assignment,
    locating,
    matching,
    metadata_blocks,
    numbering,
    recognisers,
    retrievals,
    splitting,
    text,
)

PROGRAMS = ["langchain/test_programs.py", "llama_index/test_programs.py"]
COUNTERS = ["figure", *numbering.WORDS, "numeral"]
Labels = Callable[[FrameType, Any], list[str]]  # what fired, from a function's frame and result


def _forms(_: FrameType, found: Any) -> list[str]:
    lowest = {min(occurrence.readings) for occurrence in found or ()}
    margins = any(any(occurrence.margins) for occurrence in found or ())
    return [
        *["texts: verbatim"] * (0 in lowest),
        *["texts: stripped or escaped"] * any(0 < index < len(matching.READINGS) for index in lowest),
        *["texts: rewritten or cut alike"] * any(index >= len(matching.READINGS) for index in lowest),
        *["texts: outer white space differs"] * margins,
        *["texts: in several places, refused"] * (found is None),
    ]


RECOGNISERS: dict[Callable[..., Any], Labels] = {
    locating.locate: lambda _, found: [f"source: {found.source}"] if found else [],
    locating._is_joined_text: lambda _, joins: ["texts: one joins others"] * bool(joins),
    assignment.assign_occurrences: _forms,
    assignment.select_last_message: lambda _, found: ["turn: unclear, refused"] * (found is None),
    assignment._have_same_introduction: lambda _, alike: ["turn: a chat loop"] * bool(alike),
    metadata_blocks._apply_template: lambda _, found: ["header: metadata"] * bool(found),
    text.enclosing_elements: lambda frame, found: (
        ["header: tag or printed list"] * (found is not frame.f_locals["spans"])
    ),
    splitting._shared_header_and_footer: lambda _, found: (
        ["header: the same for all"] * bool(found and (found[0] or found[1]))
    ),
    splitting._numbered_first_header: lambda _, header: ["header: of a known form"] * bool(header),
    splitting._first_header: lambda frame, header: (
        ["header: as many lines as the others"] * bool(header and "alike" in frame.f_locals)
    ),
    recognisers.find_below_headers: lambda _, found: ["headers: ambiguous, refused"] * bool(found and found[1]),
    numbering._Regions.certain_series: lambda _, series: ["numbers: certain"] * bool(series),
    numbering._Regions.even_series: lambda _, series: [f"numbers: doubtful, {series[0].kind}"] if series else [],
}
EVERY = [
    *(f"source: {source}" for source in (*retrievals.ORIGIN, "headers", "none")),
    "texts: verbatim",
    "texts: stripped or escaped",
    "texts: rewritten or cut alike",
    "texts: outer white space differs",
    "texts: one joins others",
    "texts: in several places, refused",
    "turn: a chat loop",
    "turn: unclear, refused",
    "header: metadata",
    "header: tag or printed list",
    "header: the same for all",
    "header: of a known form",
    "header: as many lines as the others",
    "headers: ambiguous, refused",
    "numbers: certain",
    *(f"numbers: doubtful, {kind}" for kind in COUNTERS),
]


@contextmanager
def fired() -> Iterator[set[str]]:
    """Collect the recognisers that fire in this block, also in threads that start in it."""
    found: set[str] = set()
    labels: dict[CodeType, Labels] = {function.__code__: label for function, label in RECOGNISERS.items()}

    def profile(frame: FrameType, event: str, result: Any) -> None:
        if event == "return" and frame.f_code in labels:
            found.update(labels[frame.f_code](frame, result))

    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        yield found
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]


class Counted:
    """A pytest plugin that counts the tests in which a recogniser fires."""

    def __init__(self) -> None:
        self.counts, self.programs = Counter[str](), 0

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_call(self) -> Iterator[None]:
        with fired() as found:
            yield
        self.counts.update(found)
        self.programs += 1

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        terminalreporter.write_line(f"\n| Recogniser | Programs of {self.programs} |\n|---|---|")
        for label in EVERY:
            terminalreporter.write_line(f"| {label} | {self.counts[label]} |")


if __name__ == "__main__":
    tests = Path(__file__).parents[1]
    sys.exit(pytest.main(["-q", "-W", "ignore", *(str(tests / each) for each in PROGRAMS)], plugins=[Counted()]))
