"""From a chat request to what the chat template reads: messages, tools, and how the answer is to be read."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from ragbias.adapters.json_answers import BEGINNING, json_request
from ragbias.adapters.tool_use import AnswerFormat, begun_call, check_tools, template_call, tool_choice, why_not_shown
from ragbias.errors import ArgumentError
from ragbias.lm import DebiasedLM
from ragbias.serving.documents import Messages
from ragbias.serving.errors import refused
from ragbias.serving.schemas import ChatRequest, Message, ToolCall

RESERVED = ("tokenize", "add_generation_prompt", "return_dict", "return_tensors", "chat_template", "conversation")


def template_messages(messages: Sequence[Message]) -> Messages:
    """The messages of a request as chat templates read them.

    Raises:
        ApiError: the arguments of a call of a tool are no JSON object.
    """
    return [_template_message(message, f"messages[{index}]") for index, message in enumerate(messages)]


def _template_message(message: Message, param: str) -> dict[str, Any]:
    found: dict[str, Any] = {"role": "system" if message.role == "developer" else message.role, "content": message.text}
    if message.tool_calls:
        found["tool_calls"] = [
            template_call(call.function.name, _arguments(call, f"{param}.tool_calls[{index}]"), call.id)
            for index, call in enumerate(message.tool_calls)
        ]
    if message.role == "tool":
        found["tool_call_id"] = message.tool_call_id or ""
        if message.name:
            found["name"] = message.name
    return found


def _arguments(call: ToolCall, param: str) -> dict[str, Any]:
    try:
        found = json.loads(call.function.arguments or "{}")
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        param = f"{param}.function.arguments"
        raise refused(param, f"{param}: expected a JSON object, as text")
    return found


def answer_format(lm: DebiasedLM, body: ChatRequest) -> AnswerFormat:
    """How the answer is to be read, and what it is made to begin with.

    Raises:
        ApiError: the tools are none, cannot be shown, or cannot be forced; or the format is unknown.
    """
    tools = body.tools or []
    try:
        check_tools(tools)
    except ArgumentError as error:
        raise refused("tools", str(error)) from error
    try:
        chosen = tool_choice(body.tool_choice, tools)
    except ArgumentError as error:
        raise refused("tool_choice", str(error)) from error
    if body.response_format and body.response_format.get("type") != "text":
        if tools and chosen.offered:
            raise refused("response_format", "response_format and tools cannot go together; leave one of them out")
        return AnswerFormat(beginning=BEGINNING)
    if not tools or not chosen.offered:
        return AnswerFormat()
    if reason := why_not_shown(lm, tools):
        raise refused("tools", f"the model's chat template cannot show tools: {reason}", "unsupported_parameter")
    beginning = begun_call(lm, tools, chosen.name) if chosen.required else ""
    if beginning is None:
        raise refused(
            "tool_choice",
            "the model's chat template writes calls in a format that is not known here, so none can be forced; "
            "send 'auto'",
            "unsupported_parameter",
        )
    return AnswerFormat(tools, beginning)


def asking_for_json(messages: Messages, body: ChatRequest) -> Messages:
    """The conversation with the request for JSON at its end, where ``response_format`` asks for some."""
    if not body.response_format or body.response_format.get("type") == "text":
        return messages
    try:
        request = json_request(body.response_format)
    except ArgumentError as error:
        raise refused("response_format", str(error)) from error
    if messages[-1]["role"] == "user":
        return [*messages[:-1], {**messages[-1], "content": f"{messages[-1]['content']}\n\n{request}"}]
    return [*messages, {"role": "user", "content": request}]


def variables(body: ChatRequest) -> dict[str, Any]:
    """Variables for the chat template.

    Raises:
        ApiError: one of them is not the client's to set.
    """
    given = dict(body.chat_template_kwargs.__pydantic_extra__ or {}) if body.chat_template_kwargs else {}
    for name in given:
        if name in RESERVED or name in ("tools", "messages"):
            param = f"chat_template_kwargs.{name}"
            raise refused(param, f"{param} is settled by the server; leave it out", "unsupported_parameter")
    return given


def templated(lm: DebiasedLM, messages: Sequence[dict[str, Any]], tools: Sequence[Any], given: dict[str, Any]) -> str:
    """The flat prompt.

    Raises:
        ApiError: there is no template, or it refuses the conversation.
    """
    try:
        return lm.chat_text(messages, tools, **given)
    except ArgumentError as error:
        raise refused("messages", str(error), "no_chat_template") from error
    except (Exception, RecursionError) as error:  # a template is a program of its author's and may fail in any way
        raise refused("messages", f"the model's chat template refuses this conversation: {error!s:.300}") from error
