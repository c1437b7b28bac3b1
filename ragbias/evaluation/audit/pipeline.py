"""Somebody's pipeline: importing it, asking it, and catching what it asks the model."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ragbias.errors import RunError
from ragbias.evaluation.audit.asking import AuditCase
from ragbias.evaluation.audit.ways import ACCEPTED, FAILURES, Way, settled, ways
from ragbias.evaluation.data.questions import Question
from ragbias.generation.recording import Recorded, recording

SWAP = (
    "let its LLM be one of ragbias: langchain_ragbias.ChatRagBias or RagBiasPipeline, or "
    "llama_index.llms.ragbias.RagBiasLLM; with method='none' it answers as before"
)
# what is often given instead of a pipeline, by a method of it that leads to one
MAKERS = {"compile": "its .compile()", "as_query_engine": "its .as_query_engine()", "as_retriever": "a chain with it"}


def load_pipeline(location: str) -> Any:
    """The object at ``module:object``, or what it returns if it is a function without arguments.

    Modules are looked for in the current folder too.

    Raises:
        RunError: it cannot be imported, is not there, cannot be made, or cannot be asked.
    """
    module_name, colon, path = location.partition(":")
    if not (module_name and colon and path):
        raise RunError(f"pipeline {location!r}; expected module:object, e.g. my_app.chains:qa_chain")
    if (folder := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, folder)
    try:
        found: Any = importlib.import_module(module_name)
    except FAILURES as error:
        raise RunError(f"module {module_name!r} cannot be imported: {_told(error)}") from error
    try:
        for name in path.split("."):
            found = getattr(found, name)
        can_be_asked = any(True for _ in ways(found))
    except AttributeError as error:
        raise RunError(f"pipeline {location!r}: module {module_name!r} has no {path!r} ({error})") from error
    except FAILURES as error:
        raise RunError(f"pipeline {location!r} cannot be reached: {_told(error)}") from error
    if not can_be_asked:
        raise RunError(f"pipeline {location!r} is {_shown(found)}, which cannot be asked; expected {ACCEPTED}")
    return _made(found, location)


def _made(found: Any, location: str) -> Any:
    """What a function makes that needs no arguments; anything else as it is."""
    if not (inspect.isroutine(found) and _needs_nothing(found)):
        return found
    try:
        made = settled(found())
        can_be_asked = any(True for _ in ways(made))
    except FAILURES as error:
        if inspect.signature(found).parameters:
            return found  # a function of a question that has a default
        raise RunError(f"pipeline {location!r} is a function without arguments, which fails: {_told(error)}") from error
    if can_be_asked:
        return made
    if inspect.signature(found).parameters:
        return found
    raise RunError(
        f"pipeline {location!r} is a function without arguments and returns {_shown(made)}, which cannot be asked; "
        f"expected {ACCEPTED}"
    )


def _needs_nothing(function: Any) -> bool:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # of a function written in C
        return False
    optional = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return all(each.default is not each.empty or each.kind in optional for each in parameters)


def _shown(found: Any) -> str:
    """What was given, and what it leads to."""
    if isinstance(found, type):
        return f"the class {found.__name__}, no object of it"
    hint = next((f" (give {hint})" for maker, hint in MAKERS.items() if callable(getattr(found, maker, None))), "")
    return f"{found!r:.100}, of type {type(found).__name__}{hint}"


def from_pipeline(
    pipeline: Any, questions: Sequence[Question], progress: Callable[[int], None] = lambda asked: None
) -> tuple[list[AuditCase], int]:
    """Run a pipeline on each question and keep its last request that held two or more documents.

    Returns:
        the cases, and the number of questions that were answered without two documents.

    Raises:
        RunError: the pipeline fails, asks none of ragbias' models, or gives them documents for no question.
    """
    tried = list(ways(pipeline))
    cases: list[AuditCase] = []
    other: list[Recorded] = []
    for question in questions:
        way, records = _run(tried, question.question)
        tried = [way]
        if not records:
            raise RunError(f"the pipeline answered {question.question!r:.80} without a model of ragbias; {SWAP}")
        holding = [each for each in records if len(each.request.origin.tokens.documents) > 1]
        if holding:
            cases.append(AuditCase(question, holding[-1]))
        else:
            other.append(records[-1])
        progress(1)
    if not cases:
        why = (each.request.report.reason or each.request.origin.boundaries.reason for each in other)
        reason = "; ".join(dict.fromkeys(filter(None, why)))
        raise RunError(
            f"no prompt of the pipeline holds two documents or more ({reason or 'none were retrieved'}); let the "
            "retriever give several, or tell the LLM which they are by segmenter or documents"
        )
    return cases, len(other)


def _run(tried: Sequence[Way], question: str) -> tuple[Way, list[Recorded]]:
    """The first way to ask that does not fail, and what the models were asked meanwhile."""
    failures: dict[str, BaseException] = {}
    for way in tried:
        with recording() as records:
            try:
                way.ask(question)
            except FAILURES as error:
                failures[way.name] = error
                continue
        return way, records
    told = "; ".join(f"{name}: {_told(error)}" for name, error in failures.items())
    raise RunError(f"the pipeline fails on {question!r:.80}: {told}") from next(iter(failures.values()))


def _told(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
