"""Whether the answers of two runs to one task may be compared, by the settings that the runs were made with."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ragbias.errors import RunError

OTHER_PROMPTS = (
    "indices",
    "chat",
    "shorten",
    "explain",
    "letters",
    "cut_middle",
    "seed",
    "include_path",
    "tasks",
)  # options of a task that change what is asked
EXPECTED = ("models", "methods", "tasks")  # keys in which runs that are reported together are meant to differ

About = tuple[Path, Mapping[str, Any]]  # a run's folder and its settings


def differences(first: About, second: About, task: str) -> list[str]:
    """One note for everything that the runs of a task differ in, and that may make answers differ.

    Raises:
        RunError: they asked other questions, or in other words.
    """
    (here, own), (there, other) = first, second
    if not own or not other:
        unknown = " and ".join(str(folder) for folder, about in (first, second) if not about)
        return [f"The settings of {unknown} are not recorded, so nothing tells whether the runs compare."]
    ours, theirs = _options(own, task), _options(other, task)
    _refuse_other_prompts(ours, theirs, f"{here} and {there}", task)
    decided, compared = own["decides"], other["decides"]
    plain = {name for name in {*decided, *compared} - set(EXPECTED) if decided.get(name) != compared.get(name)}
    of_task = {name for name in {*ours, *theirs} if ours.get(name) != theirs.get(name)}
    notes = [_note(name, decided.get(name), compared.get(name), here, there) for name in sorted(plain)]
    notes += [_note(name, _short(ours, name), _short(theirs, name), here, there) for name in sorted(of_task)]
    return notes


def _options(about: Mapping[str, Any], task: str) -> Mapping[str, Any]:
    """The options of a task by its name; of lm-eval's tasks those of the one that runs them."""
    tasks = about["decides"].get("tasks", [])
    return next((each for each in tasks if task in (each.get("name"), *each.get("tasks", []))), {})


def _refuse_other_prompts(ours: Mapping[str, Any], theirs: Mapping[str, Any], folders: str, task: str) -> None:
    for name in OTHER_PROMPTS:
        if ours.get(name) != theirs.get(name):
            raise RunError(
                f"{folders} asked task {task!r} with other prompts: {name} is {ours.get(name, 'the default')!r} in one "
                f"and {theirs.get(name, 'the default')!r} in the other; report them one by one"
            )
    data = [_digests(options) for options in (ours, theirs)]
    if all(data) and not data[0] & data[1]:
        raise RunError(f"{folders} asked task {task!r} from other files of data; report them one by one")


def _digests(options: Mapping[str, Any]) -> set[str]:
    return {file["sha256"] for file in options.get("data", []) if "sha256" in file}


def _short(options: Mapping[str, Any], name: str) -> Any:
    """An option's value; files by their names."""
    if name != "data":
        return options.get(name, "the default")
    return [f"{file.get('file')} ({str(file.get('sha256'))[:8]})" for file in options.get(name, [])]


def _note(name: str, own: Any, other: Any, here: Path, there: Path) -> str:
    return f"The runs differ in {name}: {own!r} in {here}, {other!r} in {there}; differences may come from that."
