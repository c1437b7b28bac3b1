"""LangChain messages as the dicts that chat templates read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, ChatMessage, HumanMessage, SystemMessage, ToolMessage

from ragbias.adapters.tool_use import template_call

ROLES: dict[type[BaseMessage], str] = {
    SystemMessage: "system",
    HumanMessage: "user",
    AIMessage: "assistant",
    ToolMessage: "tool",
}
CALLS = ("tool_use", "tool_call", "tool_call_chunk", "invalid_tool_call")


def template_messages(messages: Sequence[BaseMessage]) -> list[dict[str, Any]]:
    """One dict with ``role`` and ``content`` per message, tool calls included.

    Raises:
        ValueError: a message holds something that is no text, or has no role in a chat template.
    """
    return [_template_message(message) for message in messages]


def _template_message(message: BaseMessage) -> dict[str, Any]:
    converted: dict[str, Any] = {"role": _role(message), "content": _content(message)}
    if isinstance(message, AIMessage) and message.tool_calls:
        converted["tool_calls"] = [template_call(call["name"], call["args"], call["id"]) for call in message.tool_calls]
    if isinstance(message, ToolMessage):
        converted["tool_call_id"] = message.tool_call_id
        if message.name:
            converted["name"] = message.name
    return converted


def _role(message: BaseMessage) -> str:
    if isinstance(message, ChatMessage):
        return message.role
    for kind, role in ROLES.items():
        if isinstance(message, kind):
            return role
    raise ValueError(f"{type(message).__name__} has no role in a chat template; use system, human, ai or tool messages")


def _content(message: BaseMessage) -> str:
    if isinstance(message.content, str):
        return message.content
    blocks = [block for block in message.content if not _is_call(block, message)]
    return "".join(_block_text(block, message) for block in blocks)


def _is_call(block: str | dict[Any, Any], message: BaseMessage) -> bool:
    """Whether a block repeats a tool call, which ``message.tool_calls`` holds as well."""
    return isinstance(message, AIMessage) and isinstance(block, dict) and block.get("type") in CALLS


def _block_text(block: str | dict[Any, Any], message: BaseMessage) -> str:
    if isinstance(block, str):
        return block
    if block.get("type") == "text" and isinstance(block.get("text"), str):
        return str(block["text"])
    kind = block.get("type")
    raise ValueError(f"a {message.type} message holds a content block of type {kind!r}; this model reads text only")
