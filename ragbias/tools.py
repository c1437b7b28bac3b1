"""Tool calls in a model's text, as models in the style of Hermes and Qwen write them."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

_CALL = re.compile(r"<tool_call>\s*(.*?)\s*</tool_call>", re.DOTALL)


@dataclass(frozen=True)
class ToolCall:
    """A call as found: `arguments` is None and `error` says why where it is malformed; `raw` is its text."""

    name: str
    arguments: dict[str, Any] | None
    raw: str
    error: str


def parse_tool_calls(text: str) -> tuple[str, list[ToolCall]]:
    """The text without its calls, and the calls in order."""
    return _CALL.sub("", text).strip(), [_parse(match) for match in _CALL.finditer(text)]


def _parse(match: re.Match[str]) -> ToolCall:
    try:
        call = json.loads(match[1])
        return ToolCall(str(call["name"]), dict(call.get("arguments") or {}), match[0], "")
    except (ValueError, TypeError, KeyError) as error:
        return ToolCall("", None, match[0], f"not a call in JSON: {type(error).__name__}")
