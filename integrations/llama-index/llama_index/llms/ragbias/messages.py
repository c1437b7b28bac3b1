"""Chat messages of LlamaIndex as the plain dictionaries that chat templates read."""

from __future__ import annotations

from collections.abc import Sequence

from llama_index.core.base.llms.types import AudioBlock, ChatMessage, DocumentBlock, ImageBlock, MessageRole, VideoBlock

from ragbias.errors import RagBiasError

_ROLES = {
    MessageRole.DEVELOPER: "system",
    MessageRole.CHATBOT: "assistant",
    MessageRole.MODEL: "assistant",
    MessageRole.FUNCTION: "tool",
}
_NOT_TEXT = (AudioBlock, DocumentBlock, ImageBlock, VideoBlock)


def with_system_prompt(messages: Sequence[ChatMessage], system_prompt: str | None) -> list[ChatMessage]:
    """The messages with the system prompt in front, unless a system message holds it already."""
    held = [message.content or "" for message in messages if message.role == MessageRole.SYSTEM]
    if not system_prompt or any(system_prompt in text for text in held):
        return list(messages)
    return [ChatMessage(role=MessageRole.SYSTEM, content=system_prompt), *messages]


def to_dicts(messages: Sequence[ChatMessage]) -> list[dict[str, str]]:
    """Role and text of each message, all leading system messages as one.

    LlamaIndex puts the LLM's system prompt in front of a prompt's own system message, and chat templates take one.

    Raises:
        RagBiasError: a message holds an image, sound, video or file.
    """
    turns = [{"role": _ROLES.get(message.role, message.role.value), "content": _text(message)} for message in messages]
    n_system = next((index for index, turn in enumerate(turns) if turn["role"] != "system"), len(turns))
    system = "\n\n".join(turn["content"] for turn in turns[:n_system] if turn["content"])
    head = [{"role": "system", "content": system}] if system else []
    return head + turns[n_system:]


def _text(message: ChatMessage) -> str:
    for block in message.blocks:
        if isinstance(block, _NOT_TEXT):
            raise RagBiasError(f"RagBiasLLM reads text, but a {message.role.value} message holds a {block.block_type}")
    return message.content or ""
