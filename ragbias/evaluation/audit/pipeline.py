"""Somebody's pipeline: importing it, asking it, and catching what it asks the model.

No framework is imported here. What a pipeline is, its methods tell: ``chat`` (a LlamaIndex chat engine), ``query`` (a
LlamaIndex query engine), ``invoke`` (a LangChain runnable), or else it is called with the question.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ragbias.errors import RunError
from ragbias.evaluation.audit.asking import AuditCase
from ragbias.evaluation.data.questions import Question
from ragbias.generation.recording import Recorded, recording

KEYS = ("input", "question", "query")  # under which LangChain's chains take the question
SWAP = (
    "let its LLM be one of ragbias: langchain_ragbias.ChatRagBias or RagBiasPipeline, or "
    "llama_index.llms.ragbias.RagBiasLLM; with debias='none' it answers as before"
)
FAILURES = (Exception, SystemExit)  # whatever a user's code raises; a script's sys.exit would end the audit unheard
Ask = Callable[[str], Any]


def load_pipeline(location: str) -> Any:
    """The object at ``module:object``; modules are looked for in the current folder too.

    Raises:
        RunError: it cannot be imported, is not there, or cannot be asked.
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
        can_be_asked = not isinstance(found, type) and any(_ways(found))
    except AttributeError as error:
        raise RunError(f"pipeline {location!r}: module {module_name!r} has no {path!r} ({error})") from error
    except FAILURES as error:
        raise RunError(f"pipeline {location!r} cannot be reached: {_told(error)}") from error
    if not can_be_asked:
        raise RunError(
            f"pipeline {location!r} is {found!r:.100}, which cannot be asked; expected a LangChain runnable, a "
            "LlamaIndex query or chat engine, or a function of the question"
        )
    return found


def from_pipeline(
    pipeline: Any, questions: Sequence[Question], progress: Callable[[int], None] = lambda asked: None
) -> tuple[list[AuditCase], int]:
    """Run a pipeline on each question and keep its last request that held two or more documents.

    Returns:
        the cases, and the number of questions that were answered without two documents.

    Raises:
        RunError: the pipeline fails, asks none of ragbias' models, or gives them documents for no question.
    """
    ways = list(_ways(pipeline))
    cases: list[AuditCase] = []
    other: list[Recorded] = []
    for question in questions:
        way, records = _run(ways, question.question)
        ways = [way]
        if not records:
            raise RunError(f"the pipeline answered {question.question!r:.80} without a model of ragbias; {SWAP}")
        holding = [each for each in records if len(each.request.origin.tokens.documents) > 1]
        if holding:
            cases.append(AuditCase(question, holding[-1]))
        else:
            other.append(records[-1])
        progress(1)
    if not cases:
        reason = "; ".join(dict.fromkeys(each.request.report.reason for each in other if each.request.report.reason))
        raise RunError(
            f"no prompt of the pipeline holds two documents or more ({reason or 'none were retrieved'}); let the "
            "retriever give several, or tell the LLM which they are by segmenter or documents"
        )
    return cases, len(other)


def _run(ways: Sequence[Ask], question: str) -> tuple[Ask, list[Recorded]]:
    """The first way to ask that does not fail, and what the models were asked meanwhile."""
    failures: list[BaseException] = []
    for way in ways:
        with recording() as records:
            try:
                way(question)
            except FAILURES as error:
                failures.append(error)
                continue
        return way, records
    raise RunError(f"the pipeline fails on {question!r:.80}: " + "; ".join(map(_told, failures))) from failures[0]


def _told(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _ways(pipeline: Any) -> Iterator[Ask]:
    """How a pipeline may be asked, the likeliest way first."""
    if callable(chat := getattr(pipeline, "chat", None)):
        reset = getattr(pipeline, "reset", lambda: None)
        yield lambda question: (reset(), chat(question))  # a question must not see those before it
    elif callable(query := getattr(pipeline, "query", None)):
        yield query
    elif callable(invoke := getattr(pipeline, "invoke", None)):
        named = [_under(invoke, key) for key in _keys(pipeline)]
        yield from [*named, invoke] if _takes_a_mapping(pipeline) else [invoke, *named]
    elif callable(pipeline):
        yield pipeline


def _under(invoke: Callable[[Any], Any], key: str) -> Ask:
    return lambda question: invoke({key: question})


def _properties(runnable: Any) -> list[str]:
    """Keys of a LangChain runnable's input, where it declares any."""
    try:
        schema = runnable.get_input_jsonschema()
    except FAILURES:  # not every runnable can tell
        return []
    return list(schema.get("properties", ()))


def _takes_a_mapping(runnable: Any) -> bool:
    return any(key in _properties(runnable) for key in KEYS)


def _keys(runnable: Any) -> list[str]:
    declared = _properties(runnable)
    return sorted(KEYS, key=lambda key: key not in declared)
