"""Tools in a prompt, and answers that may call them, whole or as they grow; knows no framework."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ragbias.adapters.tool_formats import MARKERS, ToolCall, forced_beginning, parse_tool_calls, visible_length
from ragbias.errors import ArgumentError
from ragbias.lm import DebiasedLM

Tool = dict[str, Any]
"""As chat templates read it: ``{"type": "function", "function": {"name", "description", "parameters"}}``."""

_PROBE: Tool = {
    "type": "function",
    "function": {
        "name": "ragbias_probe",
        "description": "Looks something up.",
        "parameters": {"type": "object", "properties": {"query": {"type": "string", "description": "What for."}}},
    },
}


class ChatModel(Protocol):
    """A model with a chat template: a ``DebiasedLM``, or one behind a server."""

    @property
    def tokenizer(self) -> Any:
        """Has ``chat_template``."""

    def chat_text(self, messages: Sequence[dict[str, Any]], tools: Sequence[Any] | None = None) -> str:
        """The flat prompt."""


@dataclass(frozen=True)
class ToolChoice:
    """What a ``tool_choice`` means.

    Attributes:
        offered: whether the model is shown tools at all.
        required: whether it has to call one.
        name: of the one that it has to call; ``None`` for any.
    """

    offered: bool = True
    required: bool = False
    name: str | None = None


def tool_choice(choice: Any, tools: Sequence[Tool]) -> ToolChoice:
    """Read a choice: ``None`` or ``"auto"``; ``"none"``; ``"any"``, ``"required"`` or ``True``; a tool's name, or
    OpenAI's ``{"type": "function", "function": {"name": ...}}``.

    Raises:
        ArgumentError: it names none of the tools, or there are none to call.
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


def knows_tools(lm: ChatModel) -> bool:
    """Whether the tokenizer's chat template shows tools to the model."""
    return not why_not_shown(lm, [_PROBE])


def why_not_shown(lm: ChatModel, tools: Sequence[Tool]) -> str:
    """Why the tokenizer's chat template cannot show these tools to the model; empty if it can."""
    if not lm.tokenizer.chat_template:
        return "there is none"
    conversation = [{"role": "user", "content": "Hello"}]
    try:
        plain, text = lm.chat_text(conversation), lm.chat_text(conversation, tools)
    except Exception as error:  # a template is a program of its author's and may fail in any way
        return f"it fails with {type(error).__name__}: {error}"
    return "" if text != plain and all(_name(tool) in text for tool in tools) else "it does not read them"


def begun_call(lm: DebiasedLM, tools: Sequence[Tool], name: str | None = None) -> str | None:
    """What makes an answer a call of this tool, or of any, when it is put after the prompt.

    ``None`` if the chat template writes calls in a format that is not known here.
    """
    if name is None and len(tools) == 1:
        name = _name(tools[0])
    return forced_beginning(str(lm.tokenizer.chat_template), name)


def template_call(name: str, arguments: Mapping[str, Any], id: str | None) -> dict[str, Any]:
    """A call in an earlier message of the conversation, as chat templates read it."""
    return {"type": "function", "id": id, "function": {"name": name, "arguments": arguments}}


def check_tools(tools: Sequence[Tool]) -> None:
    """Refuse what no chat template shows.

    Raises:
        ArgumentError: a tool is no function, as the built-in ones of a provider's server.
    """
    for tool in tools:
        function = tool.get("function") if isinstance(tool, dict) else None
        if not isinstance(function, dict) or not function.get("name"):
            raise ArgumentError(
                f"tool {tool!r} is no function; a local model calls only functions: "
                '{"type": "function", "function": {"name": ..., "parameters": ...}}'
            )


def _name(tool: Tool) -> str:
    return str(tool["function"]["name"])


@dataclass(frozen=True)
class AnswerFormat:
    """How an answer is to be read.

    Attributes:
        tools: that the prompt offers; without any, what looks like a call is text.
        beginning: what the prompt ends with already and belongs to the answer.
    """

    tools: Sequence[Tool] = ()
    beginning: str = ""

    @property
    def settings(self) -> dict[str, Any]:
        """For ``DebiasedLM``: the special tokens that begin a call stay in the text."""
        return {"keep_special": MARKERS} if self.tools else {}

    def visible(self, text: str) -> str:
        """What can be shown of a growing answer: no part of a call."""
        return text[: visible_length(text)] if self.tools else text

    def read(self, text: str) -> tuple[str, list[ToolCall]]:
        """Content and calls of what the model wrote after the beginning."""
        whole = self.beginning + text
        return parse_tool_calls(whole) if self.tools else (whole, [])


class GrowingAnswer:
    """A streamed answer; ``shown`` is the part of it that has been given out."""

    def __init__(self, form: AnswerFormat) -> None:
        self.shown = ""
        self._form, self._text = form, form.beginning

    def add(self, piece: str) -> str:
        """What can be shown now that ``piece`` has come."""
        self._text += piece
        return self.rest(self._form.visible(self._text))

    def rest(self, content: str) -> str:
        """What has not been shown yet of the content, which begins with what has."""
        new, self.shown = content[len(self.shown) :], content
        return new
