"""Chat messages of LlamaIndex as chat templates read them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llama_index.core.base.llms.types import (
    CachePoint,
    ChatMessage,
    CitableBlock,
    MessageRole,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
)
from llama_index.llms.ragbias import tool_calls

from ragbias.errors import RagBiasError

_ROLES = {
    MessageRole.DEVELOPER: "system",
    MessageRole.CHATBOT: "assistant",
    MessageRole.MODEL: "assistant",
    MessageRole.FUNCTION: "tool",
}
_RESULT_KEYS = ("tool_call_id", "name")
_NO_TEXT = (CachePoint, ThinkingBlock, ToolCallBlock)  # not text for templates


def with_system_prompt(messages: Sequence[ChatMessage], system_prompt: str | None) -> list[ChatMessage]:
    """The messages after the system prompt, unless a system message contains it."""
    held = [message.content or "" for message in messages if message.role == MessageRole.SYSTEM]
    if not system_prompt or any(system_prompt in text for text in held):
        return list(messages)
    return [ChatMessage(role=MessageRole.SYSTEM, content=system_prompt), *messages]


def to_dicts(messages: Sequence[ChatMessage]) -> list[dict[str, Any]]:
    """Role, text and tool calls of each message; leading system messages are merged, because templates take one.

    Raises:
        RagBiasError: a message contains an image, sound, video, file, or anything else but text.
    """
    turns = [_turn(message) for message in messages]
    n_system = next((index for index, turn in enumerate(turns) if turn["role"] != "system"), len(turns))
    system = "\n\n".join(turn["content"] for turn in turns[:n_system] if turn["content"])
    head = [{"role": "system", "content": system}] if system else []
    return head + turns[n_system:]


def _turn(message: ChatMessage) -> dict[str, Any]:
    turn: dict[str, Any] = {"role": _ROLES.get(message.role, message.role.value), "content": _text(message)}
    calls = [tool_calls.as_dict(block) for block in message.blocks if isinstance(block, ToolCallBlock)]
    if calls:
        turn["tool_calls"] = calls
    if turn["role"] == "tool":
        turn.update({key: message.additional_kwargs[key] for key in _RESULT_KEYS if key in message.additional_kwargs})
    return turn


def _text(message: ChatMessage) -> str:
    return "\n".join(text for block in message.blocks for text in _texts(block, message.role))


def _texts(block: Any, role: MessageRole) -> list[str]:
    if isinstance(block, TextBlock):
        return [block.text]
    if isinstance(block, CitableBlock):  # chat templates ignore its title and source
        return [text for inner in block.content for text in _texts(inner, role)]
    if isinstance(block, _NO_TEXT):
        return []
    kind = getattr(block, "block_type", type(block).__name__)
    raise RagBiasError(f"RagBiasLLM reads text, but a {role.value} message holds a {kind} block; leave it out")
