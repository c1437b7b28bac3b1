"""Add tools and JSON formats to prompts, and parse the answers, which may contain tool calls."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ragbias.errors import ArgumentError, UnsupportedToolsError
from ragbias.frameworks.remote import LanguageModel, RemoteLM
from ragbias.frameworks.tool_formats import MARKERS, ToolCall, forced_beginning, parse_tool_calls, visible_length
from ragbias.generation import Generation

Tool = dict[str, Any]
"""A tool for chat templates: ``{"type": "function", "function": {"name", "description", "parameters"}}``."""

JSON_BEGINNING = "{"  # start of a JSON answer, appended to the prompt
Message = dict[str, Any]  # for chat templates; its content is a text, or a list of texts and ``ChatDocument``
_PROBE: Tool = {
    "type": "function",
    "function": {
        "name": "ragbias_probe",
        "description": "Looks something up.",
        "parameters": {"type": "object", "properties": {"query": {"type": "string", "description": "What for."}}},
    },
}


def json_instruction(response_format: Mapping[str, Any]) -> str:
    """Return the instruction for OpenAI's ``response_format``, which is added to the user's last message.

    Raises:
        ArgumentError: the format is unknown.
    """
    kind = response_format.get("type") if isinstance(response_format, Mapping) else None
    if kind == "json_object":
        return "Answer with one JSON object and nothing else."
    if kind == "json_schema" and isinstance(response_format.get("json_schema"), dict):
        inner = response_format["json_schema"]
        schema = json.dumps(inner.get("schema", inner), ensure_ascii=False)
        return f"Answer with one JSON object that fits this JSON schema, and nothing else:\n{schema}"
    raise ArgumentError(
        f"response_format={response_format!r}; expected type 'json_object', or 'json_schema' with a schema"
    )


@dataclass(frozen=True)
class ToolChoice:
    """A parsed ``tool_choice``."""

    offered: bool = True  # whether the prompt lists the tools
    required: bool = False  # whether the model must call a tool
    name: str | None = None  # the tool that the model must call; None for any tool


def parse_tool_choice(choice: object, tools: Sequence[Tool]) -> ToolChoice:
    """Parse OpenAI's and LangChain's values of ``tool_choice``, including tool names and booleans.

    Raises:
        ArgumentError: the choice names an unknown tool, or requires a call although there are no tools.
    """
    if choice in (None, "auto", False):
        return ToolChoice()
    if choice == "none":
        return ToolChoice(offered=False)
    if choice in ("any", "required", True):
        if not tools:
            raise ArgumentError(f"tool_choice={choice!r} needs tools; pass them with the call")
        return ToolChoice(required=True)
    inner = choice.get("function", choice) if isinstance(choice, dict) else {"name": choice}
    name = inner.get("name") if isinstance(inner, dict) else None
    names = [_tool_name(tool) for tool in tools]
    if name not in names:
        known = ", ".join(map(repr, names)) or "none"
        raise ArgumentError(
            f"tool_choice={choice!r}; expected 'auto', 'none', 'any', 'required' or the name of a tool, here: {known}"
        )
    return ToolChoice(required=True, name=str(name))


def check_tools(tools: Sequence[Tool]) -> None:
    """Raise ``ArgumentError`` for a tool that is not a function, such as a provider's built-in tool."""
    for tool in tools:
        function = tool.get("function") if isinstance(tool, dict) else None
        if not isinstance(function, dict) or not function.get("name"):
            raise ArgumentError(
                f"tools={tool!r} is not a function; a local model calls only functions: "
                '{"type": "function", "function": {"name": ..., "parameters": ...}}'
            )


def supports_tools(lm: LanguageModel) -> bool:
    """Whether the chat template supports tools."""
    return not template_problem(lm, [_PROBE])


def template_problem(lm: LanguageModel, tools: Sequence[Tool]) -> str:
    """Return why the chat template cannot render these tools, or an empty string if it can."""
    if not lm.chat_template:
        return "there is none"
    conversation = [{"role": "user", "content": "Hello"}]
    try:
        plain = lm.chat_text(conversation)
        text = lm.chat_text(conversation, tools)
    except Exception as error:  # a template is a program and may fail in any way
        return f"it fails with {type(error).__name__}: {error}"
    has_names = all(_tool_name(tool) in text for tool in tools)
    return "" if has_names and text != plain else "it ignores them"


def template_message(
    role: str, content: object, calls: Sequence[object] = (), call_id: str | None = None, name: str | None = None
) -> Message:
    """Return a message in the format of chat templates, with its tool calls.

    A tool's result has the ``call_id`` of the call, and may have the ``name`` of the tool.
    """
    fields = {"tool_calls": list(calls) or None, "tool_call_id": call_id, "name": name or None}
    return {"role": role, "content": content, **{key: value for key, value in fields.items() if value is not None}}


def template_call(name: str, arguments: Mapping[str, Any], id: str | None) -> dict[str, Any]:
    """Return a tool call of an earlier message in the format of chat templates."""
    return {"type": "function", "id": id, "function": {"name": name, "arguments": arguments}}


def _tool_name(tool: Tool) -> str:
    return str(tool["function"]["name"])


@dataclass(frozen=True)
class AnswerFormat:
    """The required format of an answer: how to prompt for it and how to parse it.

    Attributes:
        tools: tools that the prompt lists. Without tools, answers are not searched for tool calls.
        beginning: beginning of the answer, which is appended to the prompt.
        instruction: text that is added to the user's last message.
        request_fields: fields that set this format in requests to a server, in addition to ``tools``.
        parallel: whether the answer may have several tool calls.
    """

    tools: Sequence[Tool] = ()
    beginning: str = ""
    instruction: str = ""
    request_fields: Mapping[str, Any] = field(default_factory=dict)
    parallel: bool = True

    @property
    def keep_special(self) -> tuple[str, ...]:
        """Special tokens that begin tool calls in the answer."""
        return MARKERS if self.tools else ()

    def with_instruction(self, messages: Sequence[Message]) -> list[Message]:
        """Add the instruction to the last message, or as a new message if the last one is not the user's."""
        if not self.instruction:
            return list(messages)
        if not messages:
            raise ArgumentError("response_format needs a conversation, and there is no message")
        if messages[-1]["role"] != "user":
            return [*messages, {"role": "user", "content": self.instruction}]
        return [*messages[:-1], {**messages[-1], "content": f"{messages[-1]['content']}\n\n{self.instruction}"}]

    def read(self, text: str) -> tuple[str, list[ToolCall]]:
        """Split a complete answer into its content and its tool calls."""
        whole = self.beginning + text
        return parse_tool_calls(whole) if self.tools else (whole, [])

    def read_valid(self, text: str) -> tuple[str, list[ToolCall], list[ToolCall]]:
        """Split a complete answer into content, valid tool calls, and malformed tool calls.

        The content includes the malformed calls. If ``parallel`` is false, only the first valid call is returned.
        """
        content, calls = self.read(text)
        valid = [call for call in calls if not call.error]
        malformed = [call for call in calls if call.error]
        texts = [content, *(call.raw for call in malformed)]
        content = "\n".join(filter(None, texts))
        return content, valid if self.parallel else valid[:1], malformed


def answer_format(
    lm: LanguageModel, tools: Sequence[Tool], choice: object = None, response_format: Mapping[str, Any] | None = None
) -> AnswerFormat:
    """Return the format of answers for these tools or this ``response_format``.

    Args:
        tools: tools that the model may call.
        choice: whether the model must call a tool, see ``parse_tool_choice``.
        response_format: the field of OpenAI's chat requests.

    Raises:
        ArgumentError: a tool is not a function, the choice names an unknown tool, the response format is unknown, or
            both tools and a response format are given.
        UnsupportedToolsError: the chat template does not support tools, or a call is required and the template's
            format of calls is unknown.
    """
    check_tools(tools)
    chosen = parse_tool_choice(choice, tools)
    tools = tools if chosen.offered else ()
    if isinstance(response_format, Mapping) and response_format.get("type") == "text":
        response_format = None
    if response_format and tools:
        raise ArgumentError(f"response_format={response_format!r} and tools exclude each other; leave one of them out")
    instruction = json_instruction(response_format) if response_format else ""
    if tools and (reason := template_problem(lm, tools)):
        raise UnsupportedToolsError(
            f"tools={[_tool_name(tool) for tool in tools]}: the chat template cannot render tools: {reason}; use a "
            "model whose template supports tools, or leave the tools out"
        )
    if isinstance(lm, RemoteLM):  # the server ensures the format
        fields = {"tool_choice": choice if chosen.required else None, "response_format": response_format or None}
        return AnswerFormat(tools, request_fields=fields)
    if instruction:
        return AnswerFormat((), JSON_BEGINNING, instruction)
    if not chosen.required:
        return AnswerFormat(tools)
    only = _tool_name(tools[0]) if len(tools) == 1 else None
    beginning = forced_beginning(lm.chat_template, chosen.name or only)
    if beginning is None:
        raise UnsupportedToolsError(
            f"tool_choice={choice!r}: the chat template writes tool calls in an unknown format, so a call cannot be "
            "forced; use tool_choice='auto', or a response_format for structured output"
        )
    return AnswerFormat(tools, beginning)


@dataclass(frozen=True)
class StreamedPart:
    """A part of a streamed answer.

    Attributes:
        new: the new content, without text that may belong to a tool call.
        shown: the content of all parts so far.
        generation: the complete answer, only in the last part. Its content may be longer than ``shown``, because
            ``shown`` lacks text that may belong to a tool call.
    """

    new: str
    shown: str
    generation: Generation | None = None


class GrowingAnswer:
    """A streamed answer that may contain tool calls. ``shown`` is the content that was emitted so far."""

    def __init__(self, form: AnswerFormat) -> None:
        self.shown = ""
        self._form = form
        self._text = form.beginning

    def add(self, piece: str) -> str:
        """Append a piece of the answer. Return the new content, without text that may be part of a tool call."""
        self._text += piece
        visible = self._text[: visible_length(self._text)] if self._form.tools else self._text
        return self.rest(visible)

    def rest(self, content: str) -> str:
        """Return the part of ``content`` that was not emitted yet. ``content`` begins with the emitted part."""
        new = content[len(self.shown) :]
        self.shown = content
        return new
