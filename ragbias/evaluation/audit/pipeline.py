"""A user's pipeline: import it, call it, and record its prompts."""

from __future__ import annotations

import asyncio
import functools
import importlib
import inspect
import sys
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ragbias.errors import RunError
from ragbias.evaluation.audit.cases import AuditCase
from ragbias.evaluation.data.questions import Question
from ragbias.generation.recording import Recorded, recording

ACCEPTED = (
    "a LangChain runnable, a LangGraph graph or an agent of create_agent, a LlamaIndex query or chat engine, workflow "
    "or agent, a function of the question, or a function without arguments that makes one of these"
)
KEYS = ("input", "question", "query")  # of the question in LangChain's chains and graphs
MESSAGES = "messages"  # of a conversation in agents
RUN_KEYS = ("user_msg", "query", "question", "input")  # of it in LlamaIndex
FAILURES = (Exception, SystemExit)  # of a user's code; a script's sys.exit would end the audit
SWAP = (
    "let its LLM be one of ragbias: langchain_ragbias.ChatRagBias or RagBiasPipeline, or "
    "llama_index.llms.ragbias.RagBiasLLM; with method='none' it answers as before"
)
# objects often given instead of a pipeline, by a method that leads to one
MAKERS = {"compile": "its .compile()", "as_query_engine": "its .as_query_engine()", "as_retriever": "a chain with it"}


def load_pipeline(location: str) -> Any:
    """The object at ``module:object``, or its result if it is a function without arguments.

    Modules are also searched for in the current folder.

    Raises:
        RunError: it cannot be imported, does not exist, fails, or cannot be called.
    """
    module_name, colon, path = location.partition(":")
    if not (module_name and colon and path):
        raise RunError(f"pipeline {location!r}; expected module:object, e.g. my_app.chains:qa_chain")
    if (folder := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, folder)
    try:
        found: Any = importlib.import_module(module_name)
    except FAILURES as error:
        raise RunError(f"module {module_name!r} cannot be imported: {_described(error)}") from error
    try:
        for name in path.split("."):
            found = getattr(found, name)
        callable_ = any(True for _ in calls(found))
    except AttributeError as error:
        raise RunError(f"pipeline {location!r}: module {module_name!r} has no {path!r} ({error})") from error
    except FAILURES as error:
        raise RunError(f"pipeline {location!r} cannot be reached: {_described(error)}") from error
    if not callable_:
        raise RunError(f"pipeline {location!r} is {_shown(found)}, which cannot be called; expected {ACCEPTED}")
    return _made(found, location)


def _made(found: Any, location: str) -> Any:
    """The result of a function without required arguments; anything else unchanged."""
    if not (inspect.isroutine(found) and _needs_nothing(found)):
        return found
    try:
        made = completed(found())
        callable_ = any(True for _ in calls(made))
    except FAILURES as error:
        if inspect.signature(found).parameters:
            return found  # a function of a question that has a default
        raise RunError(
            f"pipeline {location!r} is a function without arguments, which fails: {_described(error)}"
        ) from error
    if callable_:
        return made
    if inspect.signature(found).parameters:
        return found
    raise RunError(
        f"pipeline {location!r} is a function without arguments and returns {_shown(made)}, which cannot be called; "
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
    """The object, and how it leads to a pipeline."""
    if isinstance(found, type):
        return f"the class {found.__name__}, no object of it"
    hint = next((f" (give {hint})" for maker, hint in MAKERS.items() if callable(getattr(found, maker, None))), "")
    return f"{found!r:.100}, of type {type(found).__name__}{hint}"


def from_pipeline(
    pipeline: Any, questions: Sequence[Question], progress: Callable[[int], None] = lambda asked: None
) -> tuple[list[AuditCase], int]:
    """Run a pipeline on each question and record its last request with two or more documents.

    Returns:
        The cases, and the number of questions answered without two documents.

    Raises:
        RunError: the pipeline fails, calls no model of ragbias, or no prompt holds two documents.
    """
    tried = list(calls(pipeline))
    cases: list[AuditCase] = []
    other: list[Recorded] = []
    for question in questions:
        worked, records = _run(tried, question.question)
        tried = [worked]
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
            "retriever return several, or name them by the LLM's segmenter or documents"
        )
    return cases, len(other)


def _run(tried: Sequence[Call], question: str) -> tuple[Call, list[Recorded]]:
    """The first call that does not fail, and the prompts recorded meanwhile."""
    failures: dict[str, BaseException] = {}
    for call in tried:
        with recording() as records:
            try:
                call.run(question)
            except FAILURES as error:
                failures[call.name] = error
                continue
        return call, records
    listed = "; ".join(f"{name}: {_described(error)}" for name, error in failures.items())
    raise RunError(f"the pipeline fails on {question!r:.80}: {listed}") from next(iter(failures.values()))


def _described(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


@dataclass(frozen=True)
class Call:
    """One way to call a pipeline.

    Attributes:
        name: as code, for errors.
        run: answers a question.
    """

    name: str
    run: Callable[[str], Any]


def calls(pipeline: Any) -> Iterator[Call]:
    """Ways to call a pipeline, the likeliest first; none for other objects.

    ``chat`` (a LlamaIndex chat engine), ``query`` (a LlamaIndex query engine), ``invoke`` (a LangChain runnable, a
    graph or agent of LangGraph), ``run`` (a LlamaIndex workflow or agent), or the pipeline itself.
    """
    if isinstance(pipeline, type):
        return
    if callable(chat := getattr(pipeline, "chat", None)):
        reset = getattr(pipeline, "reset", lambda: None)
        # a question must not see those before it
        yield Call("chat(question)", lambda question: (reset(), completed(chat(question))))
    elif callable(query := getattr(pipeline, "query", None)):
        yield Call("query(question)", lambda question: completed(query(question)))
    elif callable(getattr(pipeline, "invoke", None)):
        yield from _invocations(pipeline)
    elif callable(getattr(pipeline, "run", None)):
        yield from _runs(pipeline)
    elif callable(pipeline):
        yield Call("calling it", lambda question: completed(pipeline(question)))


def completed(value: Any) -> Any:
    """Await what was returned, or read it to the end if it is a stream."""
    if inspect.isawaitable(value):
        return asyncio.run(_awaited(value))
    if inspect.isasyncgen(value):
        return asyncio.run(_read(value))
    # a LlamaIndex query engine calls the model only when its stream is read
    stream = value if inspect.isgenerator(value) else getattr(value, "__dict__", {}).get("response_gen")
    if inspect.isgenerator(stream):
        for _ in stream:
            pass
    return value


async def _awaited(value: Any) -> Any:
    return await value


async def _read(stream: Any) -> None:
    async for _ in stream:
        pass


def _invocations(runnable: Any) -> Iterator[Call]:
    declared = _properties(runnable)
    # a graph with a checkpointer needs a conversation; a question must not see those before it
    settings = (lambda: {"configurable": {"thread_id": uuid.uuid4().hex}}) if _remembers(runnable) else (lambda: None)

    def call(name: str, value: Callable[[str], Any]) -> Call:
        return Call(f"invoke({name})", lambda question: completed(runnable.invoke(value(question), settings())))

    plain = call("question", lambda question: question)
    keys = sorted(KEYS, key=lambda key: key not in declared)
    named = [call(f"{{{key!r}: question}}", functools.partial(_under, key)) for key in keys]
    talk = call("{'messages': [...]}", lambda question: {MESSAGES: [{"role": "user", "content": question}]})
    if any(key in declared for key in KEYS):
        yield from [*named, talk, plain]
    elif MESSAGES in declared:
        yield from [talk, *named]
    else:
        yield from [plain, *named]


def _under(key: str, question: str) -> dict[str, str]:
    return {key: question}


def _properties(runnable: Any) -> list[str]:
    """Keys of a LangChain runnable's input, where it declares any."""
    try:
        schema = runnable.get_input_jsonschema()
    except FAILURES:  # not every runnable has a schema
        return []
    return list(schema.get("properties", ()))


def _remembers(runnable: Any) -> bool:
    return getattr(runnable, "checkpointer", None) not in (None, False)


def _runs(workflow: Any) -> Iterator[Call]:
    declared = _fields(workflow)
    keys = sorted(RUN_KEYS, key=lambda key: key not in declared)
    for key in declared if len(declared) == 1 else keys:
        yield Call(f"run({key}=question)", functools.partial(_run_to_end, workflow, key))


def _run_to_end(workflow: Any, key: str, question: str) -> Any:
    async def run() -> Any:
        return await workflow.run(**{key: question})  # inside a loop, as workflows begin at once

    return asyncio.run(run())


def _fields(workflow: Any) -> list[str]:
    """The fields of a workflow's first event, or the parameters of its ``run``."""
    event = getattr(workflow, "start_event_class", None)
    fields = list(getattr(event, "model_fields", ()))
    return fields or [name for name in inspect.signature(workflow.run).parameters if name in RUN_KEYS]
