"""How a pipeline may be asked: told by its methods, so that no framework is imported here.

``chat`` (a LlamaIndex chat engine), ``query`` (a LlamaIndex query engine), ``invoke`` (a LangChain runnable, a graph or
agent of LangGraph), ``run`` (a LlamaIndex workflow or agent), or else it is called with the question.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

ACCEPTED = (
    "a LangChain runnable, a LangGraph graph or an agent of create_agent, a LlamaIndex query or chat engine, workflow "
    "or agent, a function of the question, or a function without arguments that makes one of these"
)
KEYS = ("input", "question", "query")  # under which LangChain's chains and graphs take the question
MESSAGES = "messages"  # under which agents take a conversation
RUN_KEYS = ("user_msg", "query", "question", "input")  # under which LlamaIndex's agents and workflows take it
FAILURES = (Exception, SystemExit)  # whatever a user's code raises; a script's sys.exit would end the audit unheard


@dataclass(frozen=True)
class Way:
    """One way to ask a pipeline.

    Attributes:
        name: as code, for errors.
        ask: asks a question, and comes back when it is answered.
    """

    name: str
    ask: Callable[[str], Any]


def ways(pipeline: Any) -> Iterator[Way]:
    """How a pipeline may be asked, the likeliest way first; none for what cannot be asked."""
    if isinstance(pipeline, type):
        return
    if callable(chat := getattr(pipeline, "chat", None)):
        reset = getattr(pipeline, "reset", lambda: None)
        # a question must not see those before it
        yield Way("chat(question)", lambda question: (reset(), settled(chat(question))))
    elif callable(query := getattr(pipeline, "query", None)):
        yield Way("query(question)", lambda question: settled(query(question)))
    elif callable(getattr(pipeline, "invoke", None)):
        yield from _invocations(pipeline)
    elif callable(getattr(pipeline, "run", None)):
        yield from _runs(pipeline)
    elif callable(pipeline):
        yield Way("calling it", lambda question: settled(pipeline(question)))


def settled(value: Any) -> Any:
    """What was returned, with all that it still has to do done: awaited, or read to the end if it is a stream."""
    if inspect.isawaitable(value):
        return asyncio.run(_awaited(value))
    if inspect.isasyncgen(value):
        return asyncio.run(_read(value))
    # what a LlamaIndex query engine streams; only then does it ask the model
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


def _invocations(runnable: Any) -> Iterator[Way]:
    declared = _properties(runnable)
    # a graph that keeps conversations must be told which one; a question must not see those before it
    settings = (lambda: {"configurable": {"thread_id": uuid.uuid4().hex}}) if _remembers(runnable) else (lambda: None)

    def way(name: str, value: Callable[[str], Any]) -> Way:
        return Way(f"invoke({name})", lambda question: settled(runnable.invoke(value(question), settings())))

    plain = way("question", lambda question: question)
    keys = sorted(KEYS, key=lambda key: key not in declared)
    named = [way(f"{{{key!r}: question}}", functools.partial(_under, key)) for key in keys]
    talk = way("{'messages': [...]}", lambda question: {MESSAGES: [{"role": "user", "content": question}]})
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
    except FAILURES:  # not every runnable can tell
        return []
    return list(schema.get("properties", ()))


def _remembers(runnable: Any) -> bool:
    return getattr(runnable, "checkpointer", None) not in (None, False)


def _runs(workflow: Any) -> Iterator[Way]:
    declared = _fields(workflow)
    keys = sorted(RUN_KEYS, key=lambda key: key not in declared)
    for key in declared if len(declared) == 1 else keys:
        yield Way(f"run({key}=question)", functools.partial(_run_to_end, workflow, key))


def _run_to_end(workflow: Any, key: str, question: str) -> Any:
    async def run() -> Any:
        return await workflow.run(**{key: question})  # where a loop runs, as workflows begin at once

    return asyncio.run(run())


def _fields(workflow: Any) -> list[str]:
    """What a workflow's first event or its ``run`` is declared to take."""
    event = getattr(workflow, "start_event_class", None)
    fields = list(getattr(event, "model_fields", ()))
    return fields or [name for name in inspect.signature(workflow.run).parameters if name in RUN_KEYS]
