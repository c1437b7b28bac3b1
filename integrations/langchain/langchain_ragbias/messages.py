"""Convert LangChain's messages and tools to the format of chat templates, and answers to LangChain's messages."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter
from typing import Any

from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    ChatMessage,
    HumanMessage,
    InvalidToolCall,
    SystemMessage,
    ToolMessage,
)
from langchain_core.messages.tool import ToolCall, ToolCallChunk
from langchain_core.output_parsers import BaseOutputParser, JsonOutputParser, PydanticOutputParser
from langchain_core.runnables import Runnable, RunnableMap, RunnablePassthrough
from langchain_core.tools import BaseTool
from langchain_core.utils.function_calling import convert_to_json_schema, convert_to_openai_tool
from langchain_core.utils.pydantic import is_basemodel_subclass

from ragbias.errors import ArgumentError, WrongTypeError, first_line
from ragbias.frameworks import ChatDocument, block_document, template_call, template_message
from ragbias.frameworks import ToolCall as ParsedCall

ROLES: dict[type[BaseMessage], str] = {
    SystemMessage: "system",
    HumanMessage: "user",
    AIMessage: "assistant",
    ToolMessage: "tool",
}
ToolLike = dict[str, Any] | type | Callable[..., Any] | BaseTool
Schema = dict[str, Any] | type
CALLS = ("tool_use", "tool_call", "tool_call_chunk", "invalid_tool_call")


def template_messages(messages: Sequence[BaseMessage]) -> list[dict[str, Any]]:
    """Convert messages to dicts for chat templates. The content is a text, or a list if it contains documents."""
    return [_template_message(message) for message in messages]


def _template_message(message: BaseMessage) -> dict[str, Any]:
    role, content = _role(message), _content(message)
    if isinstance(message, ToolMessage):
        return template_message(role, content, call_id=message.tool_call_id, name=message.name)
    calls = message.tool_calls if isinstance(message, AIMessage) else ()
    converted = [template_call(call["name"], call["args"], call["id"]) for call in calls]
    return template_message(role, content, converted)


def _role(message: BaseMessage) -> str:
    if isinstance(message, ChatMessage):
        return message.role
    for kind, role in ROLES.items():
        if isinstance(message, kind):
            return role
    raise ArgumentError(
        f"{type(message).__name__} has no role in a chat template; use system, human, ai or tool messages"
    )


def _content(message: BaseMessage) -> str | list[str | ChatDocument]:
    if isinstance(message.content, str):
        return message.content
    if not message.content and not isinstance(message, (AIMessage, ToolMessage)):  # a tool may return nothing
        raise ArgumentError(
            f"a {message.type} message has an empty list as content; give a string, or at least one part"
        )
    parts = [_part(block, message) for block in message.content]
    if any(isinstance(part, ChatDocument) for part in parts):
        return parts
    return "".join(map(str, parts))


def _part(block: str | dict[Any, Any], message: BaseMessage) -> str | ChatDocument:
    if isinstance(block, str):
        return block
    if document := block_document(block):
        return document
    kind = block.get("type")
    if kind in CALLS and isinstance(message, AIMessage):  # also in message.tool_calls
        return ""
    if kind == "text" and isinstance(block.get("text"), str):
        return str(block["text"])
    raise ArgumentError(f"a {message.type} message has a content block of type {kind!r}; this model reads text only")


# tool calls


def tool_schemas(tools: Sequence[ToolLike] | None) -> list[dict[str, Any]]:
    """Convert tools to OpenAI's format."""
    if isinstance(tools, str) or not isinstance(tools, Iterable | None):
        raise WrongTypeError(f"tools={tools!r}; expected a list of functions, LangChain tools, classes or schemas")
    try:
        return [convert_to_openai_tool(tool) for tool in tools or ()]
    except ValueError as error:
        raise WrongTypeError(str(error)) from error


def answer_message(content: str, calls: Sequence[ParsedCall], **fields: Any) -> AIMessage:
    """Return an answer as a message with valid and invalid tool calls."""
    valid = [
        ToolCall(name=call.name, args=call.arguments, id=call.id, type="tool_call")
        for call in calls
        if call.arguments is not None
    ]
    invalid = [
        InvalidToolCall(
            name=call.name or None,
            args=call.raw,
            id=call.id,
            error=call.error,
            type="invalid_tool_call",
        )
        for call in calls
        if call.error
    ]
    return AIMessage(content, tool_calls=valid, invalid_tool_calls=invalid, **fields)


def last_chunk(content: str, calls: Sequence[ParsedCall], **fields: Any) -> AIMessageChunk:
    """Return the last chunk of a streamed answer, with its tool calls.

    LangChain repairs broken JSON in chunks, which could make malformed calls valid. To prevent this, the text of a
    malformed call becomes a JSON string, which is never valid as arguments.
    """
    chunks = [
        ToolCallChunk(
            name=call.name or None,
            args=json.dumps(call.raw if call.error else call.arguments, ensure_ascii=False),
            id=call.id,
            index=index,
            type="tool_call_chunk",
        )
        for index, call in enumerate(calls)
    ]
    return AIMessageChunk(content=content, tool_call_chunks=chunks, chunk_position="last", **fields)


# structured output


def response_format(schema: Schema, method: str) -> dict[str, Any]:
    """Return the ``response_format`` of OpenAI's API for a schema and LangChain's ``method``."""
    if method == "json_mode":
        return {"type": "json_object"}
    try:
        return {"type": "json_schema", "json_schema": {"schema": convert_to_json_schema(schema)}}
    except ValueError as error:
        expected = "expected a pydantic class, a TypedDict, or a JSON schema with a title"
        raise WrongTypeError(f"schema={schema!r:.60} ({first_line(error)}); {expected}") from error


def parse_answers(llm: Runnable[Any, Any], schema: Schema, include_raw: bool) -> Runnable[Any, Any]:
    """Return a runnable that parses answers into objects of a pydantic class, or into dicts for other schemas.

    With ``include_raw``, its result is a dict of ``raw``, ``parsed`` and ``parsing_error``.
    """
    parser: BaseOutputParser[Any] = JsonOutputParser()
    if isinstance(schema, type) and is_basemodel_subclass(schema):
        parser = PydanticOutputParser(pydantic_object=schema)
    if not include_raw:
        return llm | parser
    read = RunnablePassthrough.assign(parsed=itemgetter("raw") | parser, parsing_error=lambda _: None)
    failed = RunnablePassthrough.assign(parsed=lambda _: None)
    return RunnableMap(raw=llm) | read.with_fallbacks([failed], exception_key="parsing_error")
