"""Tools and JSON formats in a prompt, and answers that may call tools, whole or streamed; knows no framework."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ragbias.adapters.remote import RemoteGeneration, RemoteLM
from ragbias.adapters.tool_formats import (
    MARKERS,
    ToolCall,
    forced_beginning,
    openai_logprobs,
    parse_tool_calls,
    visible_length,
)
from ragbias.errors import ArgumentError
from ragbias.generation.report import Generation
from ragbias.lm import DebiasedLM

Tool = dict[str, Any]
"""As chat templates read it: ``{"type": "function", "function": {"name", "description", "parameters"}}``."""

JSON_BEGINNING = "{"  # of an answer in JSON; appended to the prompt
_PROBE: Tool = {
    "type": "function",
    "function": {
        "name": "ragbias_probe",
        "description": "Looks something up.",
        "parameters": {"type": "object", "properties": {"query": {"type": "string", "description": "What for."}}},
    },
}


def json_request(response_format: Any) -> str:
    """The instruction that OpenAI's ``response_format`` adds after the last message of the user.

    Raises:
        ArgumentError: the format is unknown.
    """
    kind = response_format.get("type") if isinstance(response_format, dict) else None
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
    """A parsed ``tool_choice``: whether the prompt shows tools, and whether the model must call one (of that name)."""

    offered: bool = True
    required: bool = False
    name: str | None = None


def tool_choice(choice: Any, tools: Sequence[Tool]) -> ToolChoice:
    """Parse ``None`` or ``"auto"``; ``"none"``; ``"any"``, ``"required"`` or ``True``; a tool's name, or OpenAI's
    ``{"type": "function", "function": {"name": ...}}``.

    Raises:
        ArgumentError: it names none of the tools, or requires a call without tools.
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
    names = [_name(tool) for tool in tools]
    if name not in names:
        known = ", ".join(map(repr, names)) or "none"
        raise ArgumentError(
            f"tool_choice={choice!r}; expected 'auto', 'none', 'any', 'required' or the name of a tool, here: {known}"
        )
    return ToolChoice(required=True, name=str(name))


def check_tools(tools: Sequence[Tool]) -> None:
    """Raise ``ArgumentError`` for a tool that is not a function, such as a built-in tool of a provider's server."""
    for tool in tools:
        function = tool.get("function") if isinstance(tool, dict) else None
        if not isinstance(function, dict) or not function.get("name"):
            raise ArgumentError(
                f"tool {tool!r} is no function; a local model calls only functions: "
                '{"type": "function", "function": {"name": ..., "parameters": ...}}'
            )


def knows_tools(lm: DebiasedLM | RemoteLM) -> bool:
    """Whether the chat template can show tools to the model."""
    return not why_not_shown(lm, [_PROBE])


def why_not_shown(lm: DebiasedLM | RemoteLM, tools: Sequence[Tool]) -> str:
    """Why the chat template cannot show these tools to the model; empty if it can."""
    if isinstance(lm, RemoteLM):
        return "" if lm.has_tools else "it does not read them"
    if not lm.tokenizer.chat_template:
        return "there is none"
    conversation = [{"role": "user", "content": "Hello"}]
    try:
        plain, text = lm.chat_text(conversation), lm.chat_text(conversation, tools)
    except Exception as error:  # a template is a program by its author and may fail in any way
        return f"it fails with {type(error).__name__}: {error}"
    return "" if text != plain and all(_name(tool) in text for tool in tools) else "it does not read them"


def begun_call(lm: DebiasedLM, tools: Sequence[Tool], name: str | None = None) -> str | None:
    """As ``forced_beginning``, with the name of the only tool."""
    if name is None and len(tools) == 1:
        name = _name(tools[0])
    return forced_beginning(str(lm.tokenizer.chat_template), name)


def template_call(name: str, arguments: Mapping[str, Any], id: str | None) -> dict[str, Any]:
    """A call in an earlier message of the conversation, as chat templates read it."""
    return {"type": "function", "id": id, "function": {"name": name, "arguments": arguments}}


def _name(tool: Tool) -> str:
    return str(tool["function"]["name"])


@dataclass(frozen=True)
class AnswerFormat:
    """How to read an answer.

    Attributes:
        tools: tools in the prompt; without any, a call in the answer is plain text.
        beginning: the end of the prompt that belongs to the answer.
        request_fields: fields for a server that begins the answer itself.
    """

    tools: Sequence[Tool] = ()
    beginning: str = ""
    request_fields: Mapping[str, Any] = field(default_factory=dict)

    @property
    def settings(self) -> dict[str, Any]:
        """Keyword arguments for the model's ``batch`` and ``stream``."""
        return {**({"keep_special": MARKERS} if self.tools else {}), **self.request_fields}

    def read(self, text: str) -> tuple[str, list[ToolCall]]:
        """Content and calls of a whole answer."""
        whole = self.beginning + text
        return parse_tool_calls(whole) if self.tools else (whole, [])

    def logprobs(self, lm: DebiasedLM | RemoteLM, generation: Generation) -> dict[str, Any] | None:
        """Log-probabilities as in OpenAI's chat completions, without ``top_logprobs``; ``None`` unless requested."""
        if isinstance(generation, RemoteGeneration):
            found = generation.chat_logprobs
        elif generation.logprobs is None or isinstance(lm, RemoteLM):
            return None
        else:
            found = openai_logprobs(generation, lm.tokenizer, self.settings.get("keep_special", ()))
        tokens = (found or {}).get("content", ())
        return found and {
            "content": [{name: token[name] for name in ("token", "logprob", "bytes")} for token in tokens]
        }


class GrowingAnswer:
    """A streamed answer; ``shown`` is the content emitted so far."""

    def __init__(self, form: AnswerFormat) -> None:
        self.shown = ""
        self._form, self._text = form, form.beginning

    def add(self, piece: str) -> str:
        """The content that ``piece`` completes; nothing while it may be part of a call."""
        self._text += piece
        return self.rest(self._text[: visible_length(self._text)] if self._form.tools else self._text)

    def rest(self, content: str) -> str:
        """The part of the content that was not emitted yet."""
        new, self.shown = content[len(self.shown) :], content
        return new
