"""Import a user's pipeline, call it, and record its prompts."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import operator
import sys
import uuid
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ragbias.data.questions import Question
from ragbias.errors import RunError
from ragbias.generation.recording import RecordedRequest, recording
from ragbias_eval.audit.cases import AuditCase

ACCEPTED_PIPELINES = (
    "a LangChain runnable, a LangGraph graph or an agent of create_agent, a LlamaIndex query or chat engine, workflow "
    "or agent, a function of the question, or a function without arguments that returns one of these"
)
INPUT_KEYS = ("input", "question", "query")  # usual keys of the question in LangChain chains and graphs
MESSAGES_KEY = "messages"  # key of the conversation in LangChain agents
AGENT_KEY = "user_msg"  # parameter of the question in LlamaIndex agents
PIPELINE_ERRORS = (Exception, SystemExit)  # errors of user code; scripts may call sys.exit
LLM_REMEDY = (
    "use a ragbias LLM in it: langchain_ragbias.ChatRagBias or RagBiasPipeline, or "
    "llama_index.llms.ragbias.RagBiasLLM; with method='none' it answers as before"
)
Calls = dict[str, Callable[[str], Any]]  # functions of a question, by their names in errors


def load_pipeline(location: str) -> Any:
    """Import the object at ``module:object``, and call it if it is a function without arguments.

    The module may be in the current folder. Raise ``RunError`` if the result is not a callable pipeline.
    """
    module_name, colon, path = location.partition(":")
    if not (module_name and colon and path):
        raise RunError(f"pipeline {location!r}; expected module:object, e.g. my_app.chains:qa_chain")
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    which = "is"
    try:
        found: Any = operator.attrgetter(path)(importlib.import_module(module_name))
        if inspect.isroutine(found) and not inspect.signature(found).parameters:
            found = wait_for_result(found())
            which = "is a function without arguments and returns"
        callable_ = bool(possible_calls(found))
    except PIPELINE_ERRORS as error:
        raise RunError(f"pipeline {location!r} cannot be loaded: {_describe_error(error)}") from error
    if not callable_:
        raise RunError(
            f"pipeline {location!r} {which} {found!r:.100}, which cannot be called; expected {ACCEPTED_PIPELINES}"
        )
    return found


def from_pipeline(
    pipeline: Any, questions: Sequence[Question], progress: Callable[[int], None] = lambda count: None
) -> list[AuditCase]:
    """Run a pipeline on each question. Record the last request that has two or more documents.

    Questions without such a request are left out.
    """
    candidates = possible_calls(pipeline)
    cases: list[AuditCase] = []
    without_documents: list[RecordedRequest] = []
    for question in questions:
        name, records = _try_calls(candidates, question.question)
        candidates = {name: candidates[name]}
        if not records:
            raise RunError(f"the pipeline answered {question.question!r:.80} without a ragbias LLM; {LLM_REMEDY}")
        suitable = [record for record in records if len(record.request.prompt.parts.documents) > 1]
        if suitable:
            cases.append(AuditCase(question, suitable[-1]))
        else:
            without_documents.append(records[-1])
        progress(1)
    if not cases:
        requests = (record.request for record in without_documents)
        reasons = (request.report.reason or request.prompt.boundaries.reason for request in requests)
        reason = "; ".join(dict.fromkeys(filter(None, reasons)))
        raise RunError(
            f"no prompt of the pipeline contains two or more documents ({reason or 'none were retrieved'}); let the "
            "retriever return several, or give the LLM a segmenter or the documents"
        )
    return cases


def _try_calls(candidates: Calls, question: str) -> tuple[str, list[RecordedRequest]]:
    """Try the calls in turn. Return the name of the first that succeeds, and the requests that it sent to the model."""
    failures: dict[str, BaseException] = {}
    for name, call in candidates.items():
        with recording() as records:
            try:
                call(question)
            except PIPELINE_ERRORS as error:
                failures[name] = error
                continue
        return name, records
    listed = "; ".join(f"{name}: {_describe_error(error)}" for name, error in failures.items())
    raise RunError(f"the pipeline fails on {question!r:.80}: {listed}") from next(iter(failures.values()))


def _describe_error(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def possible_calls(pipeline: Any) -> Calls:
    """Return the calls to try on a pipeline, in order, or {} if the object cannot be called."""
    if isinstance(pipeline, type):
        return {}
    if callable(chat := getattr(pipeline, "chat", None)):
        reset = getattr(pipeline, "reset", lambda: None)
        # the reset makes the engine forget earlier questions
        return {"chat(question)": lambda question: (reset(), wait_for_result(chat(question)))}
    if callable(query := getattr(pipeline, "query", None)):
        return {"query(question)": lambda question: wait_for_result(query(question))}
    if callable(getattr(pipeline, "invoke", None)):
        keys = ("", *INPUT_KEYS, MESSAGES_KEY)
        names = {key: f"invoke({{{key!r}: question}})" if key else "invoke(question)" for key in keys}
        return {names[key]: partial(_invoke, pipeline, key) for key in keys}
    if callable(getattr(pipeline, "run", None)):
        return {f"run({key}=question)": partial(_run_workflow, pipeline, key) for key in (AGENT_KEY, *INPUT_KEYS)}
    return {"calling it": lambda question: wait_for_result(pipeline(question))} if callable(pipeline) else {}


def _invoke(runnable: Any, key: str, question: str) -> Any:
    content = [{"role": "user", "content": question}] if key == MESSAGES_KEY else question
    # a graph with a checkpointer remembers the questions of a thread, so each question gets a new thread
    remembers = getattr(runnable, "checkpointer", None) not in (None, False)
    config = {"configurable": {"thread_id": uuid.uuid4().hex}} if remembers else None
    return wait_for_result(runnable.invoke({key: content} if key else question, config))


def _run_workflow(workflow: Any, key: str, question: str) -> Any:
    async def run() -> Any:
        return await workflow.run(**{key: question})  # ``run`` needs a running event loop

    return asyncio.run(run())


def wait_for_result(value: Any) -> Any:
    """Await a pipeline's result if it is awaitable, and read a stream to its end."""

    async def collect() -> Any:
        return [part async for part in value] if inspect.isasyncgen(value) else await value

    if inspect.isawaitable(value) or inspect.isasyncgen(value):
        return asyncio.run(collect())
    # reading the stream of a LlamaIndex query engine calls the model
    stream = value if inspect.isgenerator(value) else getattr(value, "__dict__", {}).get("response_gen")
    if inspect.isgenerator(stream):
        for _ in stream:
            pass
    return value
