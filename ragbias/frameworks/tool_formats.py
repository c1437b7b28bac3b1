"""Parse tool calls in the formats of common chat templates.

- Hermes, Qwen: ``<tool_call>{"name": ..., "arguments": {...}}</tool_call>`` for each call
- Mistral: ``[TOOL_CALLS] [{"name": ..., "arguments": {...}}, ...]``
- Llama 3.1: ``{"name": ..., "parameters": {...}}`` as the whole answer, perhaps after ``<|python_tag|>``.
  Several calls are separated by ``;``.
"""

from __future__ import annotations

import json
import re
import uuid
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from ragbias.generation.decoding import safe_length

HERMES, MISTRAL, LLAMA = "<tool_call>", "[TOOL_CALLS]", "<|python_tag|>"
MARKERS = (HERMES, MISTRAL, LLAMA)
"""Markers before calls. Some are special tokens, so pass ``keep_special=MARKERS`` to ``generate``."""

_END = "</tool_call>"
_MARKER = re.compile("|".join(map(re.escape, MARKERS)))
_BARE = re.compile(r'\s*\{\s*("type"\s*:\s*"function"\s*,\s*)?"(name|parameters|arguments|function)"\s*:')
_ARGUMENTS = ("arguments", "parameters")
_decoder = json.JSONDecoder(strict=False)  # models write line breaks inside strings


def call_id() -> str:
    """Return a new id for a call. It has nine letters and digits, as Mistral's templates require."""
    return uuid.uuid4().hex[:9]


@dataclass(frozen=True)
class ToolCall:
    """A tool call in an answer. ``raw`` is the text of the call without markers, and ``id`` is a new id.

    A malformed call has an ``error``, and its ``arguments`` are None. Its ``name`` may be empty.
    """

    name: str
    arguments: dict[str, Any] | None
    raw: str
    error: str
    id: str = field(default_factory=call_id, compare=False)


def openai_call(name: str, arguments: Any, id: str) -> dict[str, Any]:
    """Return a tool call in OpenAI's format, in which the arguments are a JSON string."""
    function = {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)}
    return {"id": id, "type": "function", "function": function}


def parse_tool_calls(text: str) -> tuple[str, list[ToolCall]]:
    """Split an answer into content and tool calls. If there are calls, strip white space at the end of the content."""
    marker = _MARKER.search(text)
    if marker is None:
        calls, content = _parse_bare_calls(text)
        return (content if calls else text), calls
    content, end, calls = "", 0, []
    while marker is not None:
        content += text[end : marker.start()]
        marked, end = _parse_marked_calls(text, marker)
        calls += marked
        marker = _MARKER.search(text, end)
    return (content + text[end:]).rstrip(), calls


def parse_arguments(text: str) -> dict[str, Any] | None:
    """Parse the arguments of an earlier call. Return None if ``text`` is neither empty nor a JSON object."""
    with suppress(ValueError, RecursionError):
        arguments = json.loads(text or "{}")
        if isinstance(arguments, dict):
            return arguments
    return None


def visible_length(text: str) -> int:
    """Return the length of the longest prefix of a streamed answer that cannot be part of a tool call."""
    if not text.strip() or text.lstrip().startswith("{"):
        return 0
    found = _MARKER.search(text)
    end = found.start() if found else safe_length(text, MARKERS)
    return len(text[:end].rstrip())


def _parse_marked_calls(text: str, marker: re.Match[str]) -> tuple[list[ToolCall], int]:
    """Parse the calls after a marker. Return the calls and the index at which they end."""
    if marker[0] == HERMES:
        body, end_mark, _ = text[marker.end() :].partition(_END)
        return [_parse_call(body)], marker.end() + len(body) + len(end_mark)
    begin = len(text) - len(text[marker.end() :].lstrip())
    if marker[0] == LLAMA:
        calls, rest = _parse_bare_calls(text[begin:])
        if not calls:
            return [_parse_call(text[begin:])], len(text)
        return calls, len(text) - len(rest)
    try:
        values, end = _decoder.raw_decode(text, begin)
    except (ValueError, RecursionError) as error:
        return [_malformed_call(text[begin:], error)], len(text)
    listed = values if isinstance(values, list) else [values]
    return [_to_call(value, json.dumps(value, ensure_ascii=False)) for value in listed], end


def _parse_bare_calls(text: str) -> tuple[list[ToolCall], str]:
    """Parse unmarked calls at the beginning of an answer. Return the calls and the text after them."""
    calls: list[ToolCall] = []
    rest = text
    while _BARE.match(rest):
        rest = rest.lstrip()
        try:
            value, end = _decoder.raw_decode(rest)
        except (ValueError, RecursionError) as error:
            if any(f'"{key}"' in rest for key in _ARGUMENTS):
                return [*calls, _malformed_call(rest, error)], ""
            break
        inner = value["function"] if isinstance(value.get("function"), dict) else value
        if "name" not in inner or not any(key in inner for key in _ARGUMENTS):
            break
        calls.append(_to_call(value, rest[:end]))
        rest = rest[end:].lstrip().removeprefix(";")
    return calls, rest.rstrip() if calls else rest


def _parse_call(body: str) -> ToolCall:
    try:
        return _to_call(_decoder.decode(body.strip()), body.strip())
    except (ValueError, RecursionError) as error:
        return _malformed_call(body.strip(), error)


def _to_call(value: Any, raw: str) -> ToolCall:
    """Convert a JSON value to a tool call. Its arguments may be a JSON string."""
    if isinstance(value, dict) and isinstance(value.get("function"), dict):
        value = value["function"]
    if not isinstance(value, dict) or not isinstance(value.get("name"), str) or not value["name"]:
        return ToolCall("", None, raw, 'the call is not a JSON object with a "name"')
    arguments: Any = next((value[key] for key in _ARGUMENTS if key in value), {})
    if isinstance(arguments, str):
        try:
            arguments = _decoder.decode(arguments)
        except (ValueError, RecursionError) as error:
            return ToolCall(value["name"], None, raw, f"the arguments are not valid JSON: {error}")
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, dict):
        kind = type(arguments).__name__
        return ToolCall(value["name"], None, raw, f"the arguments must be a JSON object, got {kind}")
    return ToolCall(value["name"], arguments, raw, "")


def _malformed_call(raw: str, error: Exception) -> ToolCall:
    name = re.search(r'"name"\s*:\s*"([^"]*)"', raw)
    return ToolCall(name[1] if name else "", None, raw, f"the call is not valid JSON: {error}")


def forced_beginning(chat_template: str, name: str | None) -> str | None:
    """Return the beginning of a tool call, with the tool's ``name`` if given. Return None for unknown formats."""
    if HERMES in chat_template and "<function=" not in chat_template:  # Qwen3-Coder writes XML calls
        opening, key = HERMES + "\n", "arguments"
    elif MISTRAL in chat_template:
        opening, key = MISTRAL + " [", "arguments"
    elif LLAMA in chat_template or re.search(r'\\?"name\\?": .*\\?"parameters\\?": ', chat_template):
        opening, key = "", "parameters"
    else:
        return None
    if name is None:
        return opening + '{"name": "'
    return f'{opening}{{"name": {json.dumps(name)}, "{key}":'
