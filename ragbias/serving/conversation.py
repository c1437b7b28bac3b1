"""From a chat request to the input of the chat template: messages, tools, and the format of the answer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from ragbias.adapters.tool_use import (
    JSON_BEGINNING,
    AnswerFormat,
    begun_call,
    check_tools,
    json_request,
    template_call,
    tool_choice,
    why_not_shown,
)
from ragbias.errors import ArgumentError
from ragbias.lm import DebiasedLM
from ragbias.serving.errors import refused, refusing
from ragbias.serving.schemas import ChatRequest, Json, Message, ToolCall

# variables of a template that clients must not set
RESERVED = (
    "tokenize", "add_generation_prompt", "return_dict", "return_tensors", "chat_template", "conversation", "tools",
    "messages",
)  # fmt: skip


def template_messages(body: ChatRequest) -> list[Json]:
    """The messages as chat templates read them, with the request for JSON if ``response_format`` asks for it.

    Raises:
        ApiError: the arguments of a tool call are not a JSON object, or ``response_format`` is unknown.
    """
    messages = [_template_message(message, f"messages[{index}]") for index, message in enumerate(body.messages)]
    if not _wants_json(body):
        return messages
    with refusing("response_format"):
        request = json_request(body.response_format)
    if messages[-1]["role"] != "user":
        return [*messages, {"role": "user", "content": request}]
    return [*messages[:-1], {**messages[-1], "content": f"{messages[-1]['content']}\n\n{request}"}]


def _wants_json(body: ChatRequest) -> bool:
    return bool(body.response_format and body.response_format.get("type") != "text")


def _template_message(message: Message, param: str) -> Json:
    found: Json = {"role": "system" if message.role == "developer" else message.role, "content": message.text}
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


def _arguments(call: ToolCall, param: str) -> Json:
    try:
        found = json.loads(call.function.arguments or "{}")
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        param = f"{param}.function.arguments"
        raise refused(param, f"{param}: expected a JSON object, as text")
    return found


def answer_format(lm: DebiasedLM, body: ChatRequest) -> AnswerFormat:
    """How to read the answer, and the text that it begins with.

    Raises:
        ApiError: the tools are invalid, cannot be shown, or cannot be forced; or they come with ``response_format``.
    """
    tools = body.tools or []
    with refusing("tools"):
        check_tools(tools)
    with refusing("tool_choice"):
        chosen = tool_choice(body.tool_choice, tools)
    offered = bool(tools) and chosen.offered
    if _wants_json(body):
        if offered:
            raise refused("response_format", "response_format and tools exclude each other; leave one of them out")
        return AnswerFormat(beginning=JSON_BEGINNING)
    if not offered:
        return AnswerFormat()
    if reason := why_not_shown(lm, tools):
        raise refused("tools", f"the model's chat template cannot show tools: {reason}", "unsupported_parameter")
    beginning = begun_call(lm, tools, chosen.name) if chosen.required else ""
    if beginning is None:
        message = "no tool call can be forced: the model's chat template uses an unknown format; send 'auto'"
        raise refused("tool_choice", message, "unsupported_parameter")
    return AnswerFormat(tools, beginning)


def variables(body: ChatRequest) -> Json:
    """Variables for the chat template.

    Raises:
        ApiError: the client must not set one of them.
    """
    given = dict(body.chat_template_kwargs.__pydantic_extra__ or {}) if body.chat_template_kwargs else {}
    if reserved := sorted(given.keys() & set(RESERVED)):
        param = f"chat_template_kwargs.{reserved[0]}"
        raise refused(param, f"{param} is set by the server; leave it out", "unsupported_parameter")
    return given


def templated(lm: DebiasedLM, messages: Sequence[Json], tools: Sequence[Any], given: Json) -> str:
    """The flat prompt.

    Raises:
        ApiError: the model has no chat template, or it refuses the conversation.
    """
    try:
        return lm.chat_text(messages, tools, **given)
    except ArgumentError as error:
        raise refused("messages", str(error), "no_chat_template") from error
    except (Exception, RecursionError) as error:  # a template is a program and may fail in any way
        raise refused("messages", f"the model's chat template refuses this conversation: {error!s:.300}") from error
