"""Tools in a prompt, and tool calls in messages."""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from langchain_core.messages import AIMessage, AIMessageChunk
from langchain_core.messages.tool import InvalidToolCall, ToolCall, ToolCallChunk
from langchain_core.utils.function_calling import convert_to_openai_tool

from ragbias import DebiasedLM
from ragbias import tools as formats
from ragbias.request import Request


@dataclass(frozen=True)
class Answering:
    """How an answer is to be read.

    Attributes:
        schemas: of the tools that the prompt offers, for the chat template.
        beginning: what stands behind the prompt already and belongs to the answer.
    """

    schemas: list[dict[str, Any]] = field(default_factory=list)
    beginning: str = ""

    @property
    def keep_special(self) -> tuple[str, ...]:
        """The special tokens that the answer's text must keep."""
        return formats.MARKERS if self.schemas else ()

    def visible(self, text: str) -> str:
        """What can be shown of a growing answer: no part of a tool call."""
        return text[: formats.visible_length(text)] if self.schemas else text

    def parsed(self, text: str) -> tuple[str, list[formats.ToolCall]]:
        """Content and tool calls of a whole answer."""
        return formats.parse_tool_calls(text) if self.schemas else (text, [])


@dataclass(frozen=True)
class Asked:
    """A conversation made ready: the request, keyword arguments of ``DebiasedLM.batch``, how to read the answer."""

    request: Request
    settings: dict[str, Any]
    answering: Answering

    def growing(self) -> Growing:
        """The answer while it is streamed."""
        return Growing(self.answering)


class Growing:
    """A streamed answer: ``shown`` is the part of it that has been given out."""

    def __init__(self, answering: Answering) -> None:
        self.shown = ""
        self._answering, self._text = answering, answering.beginning

    def add(self, piece: str) -> str:
        """What can be shown now that ``piece`` has come."""
        self._text += piece
        visible = self._answering.visible(self._text)
        new, self.shown = visible[len(self.shown) :], visible
        return new


def with_tools(lm: DebiasedLM, tools: Sequence[Any] | None, choice: Any) -> Answering:
    """What ``tools`` and ``tool_choice`` mean for one model.

    Raises:
        NotImplementedError: the chat template shows no tools, or ``choice`` cannot be forced in its format.
        ValueError: ``choice`` names no tool.
    """
    schemas = [convert_to_openai_tool(tool) for tool in tools or []]
    if choice in (None, "auto", False):
        name, forced = None, False
    elif choice == "none":
        return Answering()
    else:
        name, forced = _named(choice, [schema["function"]["name"] for schema in schemas]), True
    if not schemas:
        return Answering()
    _require_rendering(lm, schemas)
    if not forced:
        return Answering(schemas)
    beginning = formats.forced_beginning(str(lm.tokenizer.chat_template), name)
    if beginning is None:
        raise NotImplementedError(
            f"tool_choice={choice!r}: the chat template of {lm.name!r} writes tool calls in a format that is not known "
            "here, so a call cannot be forced; use tool_choice='auto', or method='json_schema' for structured output"
        )
    return Answering(schemas, beginning)


def _named(choice: Any, names: Sequence[str]) -> str | None:
    """The tool that has to be called; ``None`` for any of them."""
    if choice in ("any", "required", True):
        if not names:
            raise ValueError(f"tool_choice={choice!r} needs tools; pass tools= or use bind_tools")
        return names[0] if len(names) == 1 else None
    inner = choice.get("function", choice) if isinstance(choice, dict) else {"name": choice}
    name = inner.get("name") if isinstance(inner, dict) else None
    if name not in names:
        known = ", ".join(map(repr, names)) or "none"
        raise ValueError(
            f"tool_choice={choice!r}; expected 'auto', 'none', 'any', or the name of a tool, here: {known}"
        )
    return str(name)


def _require_rendering(lm: DebiasedLM, schemas: list[dict[str, Any]]) -> None:
    probe = [{"role": "user", "content": ""}]
    plain, reason = lm.chat_text(probe), "it does not read them"
    try:
        text = lm.chat_text(probe, tools=schemas)
    except Exception as error:  # whatever a template does with a schema that it was not written for
        text, reason = plain, f"it fails with {type(error).__name__}: {error}"
    names = [schema["function"]["name"] for schema in schemas]
    if text == plain or not all(name in text for name in names):
        raise NotImplementedError(
            f"the chat template of {lm.name!r} cannot show tools to the model: {reason}; use a model whose template "
            "has tools, or leave them out"
        )


def message(content: str, calls: Sequence[formats.ToolCall], **fields: Any) -> AIMessage:
    """An answer with its tool calls."""
    valid = [ToolCall(name=call.name, args=call.arguments, id=_id(), type="tool_call") for call in _good(calls)]
    invalid = [
        InvalidToolCall(name=call.name or None, args=call.raw, id=_id(), error=call.error, type="invalid_tool_call")
        for call in calls
        if call.error
    ]
    return AIMessage(content, tool_calls=valid, invalid_tool_calls=invalid, **fields)


def last_chunk(content: str, calls: Sequence[formats.ToolCall], **fields: Any) -> AIMessageChunk:
    """The end of a streamed answer, with its tool calls.

    Chunks repair broken JSON where they can, and a broken call must not become a call. So its text is given as a JSON
    string, which is no arguments in any case.
    """
    chunks = [
        ToolCallChunk(
            name=call.name or None,
            args=json.dumps(call.raw if call.error else call.arguments, ensure_ascii=False),
            id=_id(),
            index=index,
            type="tool_call_chunk",
        )
        for index, call in enumerate(calls)
    ]
    return AIMessageChunk(content, tool_call_chunks=chunks, chunk_position="last", **fields)


def _good(calls: Sequence[formats.ToolCall]) -> list[formats.ToolCall]:
    return [call for call in calls if not call.error]


def _id() -> str:
    return uuid.uuid4().hex[:9]  # nine signs, as Mistral's templates demand
