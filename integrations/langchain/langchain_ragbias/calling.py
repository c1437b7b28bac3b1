"""Tools in a prompt, and tool calls in messages."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from langchain_core.messages import AIMessage, AIMessageChunk, InvalidToolCall
from langchain_core.messages.tool import ToolCall, ToolCallChunk
from langchain_core.utils.function_calling import convert_to_openai_tool

from ragbias import DebiasedLM
from ragbias.adapters import tool_formats as tools
from ragbias.adapters.remote import RemoteFormat, RemoteLM
from ragbias.adapters.tool_formats import call_id
from ragbias.adapters.tool_use import AnswerFormat, begun_call, check_tools, tool_choice, why_not_shown
from ragbias.errors import ArgumentError
from ragbias.generation.request import Request


@dataclass(frozen=True)
class PreparedChat:
    """A conversation made ready: the request, keyword arguments of ``DebiasedLM.batch``, how to read the answer."""

    request: Request
    settings: dict[str, Any]
    form: AnswerFormat


def answer_format(lm: DebiasedLM | RemoteLM, tools: Sequence[Any] | None, choice: Any) -> AnswerFormat:
    """What ``tools`` and ``tool_choice`` mean for one model.

    Raises:
        NotImplementedError: the chat template shows no tools, or ``choice`` cannot be forced in its format.
        ValueError: ``choice`` names no tool, or a tool is no function.
    """
    schemas = [convert_to_openai_tool(tool) for tool in tools or []]
    try:
        check_tools(schemas)
        chosen = tool_choice(choice, schemas)
    except ArgumentError as error:
        raise ValueError(str(error)) from error
    if not schemas or not chosen.offered:
        return AnswerFormat()
    if reason := why_not_shown(lm, schemas):
        raise NotImplementedError(
            f"the chat template of {lm.name!r} cannot show tools to the model: {reason}; use a model whose template "
            "has tools, or leave them out"
        )
    if isinstance(lm, RemoteLM):
        return RemoteFormat(schemas, choice=choice)
    beginning = begun_call(lm, schemas, chosen.name) if chosen.required else ""
    if beginning is None:
        raise NotImplementedError(
            f"tool_choice={choice!r}: the chat template of {lm.name!r} writes tool calls in a format that is not known "
            "here, so a call cannot be forced; use tool_choice='auto', or method='json_schema' for structured output"
        )
    return AnswerFormat(schemas, beginning)


def message(content: str, calls: Sequence[tools.ToolCall], **fields: Any) -> AIMessage:
    """An answer with its tool calls."""
    valid = [
        ToolCall(name=call.name, args=call.arguments, id=call_id(), type="tool_call")
        for call in calls
        if call.arguments is not None
    ]
    invalid = [
        InvalidToolCall(name=call.name or None, args=call.raw, id=call_id(), error=call.error, type="invalid_tool_call")
        for call in calls
        if call.error
    ]
    return AIMessage(content, tool_calls=valid, invalid_tool_calls=invalid, **fields)


def last_chunk(content: str, calls: Sequence[tools.ToolCall], **fields: Any) -> AIMessageChunk:
    """The end of a streamed answer, with its tool calls.

    Chunks repair broken JSON where they can, and a broken call must not become a call. So its text is given as a JSON
    string, which is no arguments in any case.
    """
    chunks = [
        ToolCallChunk(
            name=call.name or None,
            args=json.dumps(call.raw if call.error else call.arguments, ensure_ascii=False),
            id=call_id(),
            index=index,
            type="tool_call_chunk",
        )
        for index, call in enumerate(calls)
    ]
    return AIMessageChunk(content=content, tool_call_chunks=chunks, chunk_position="last", **fields)
