"""Tools for chat templates, and tool calls in answers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from llama_index.core.base.llms.types import ChatResponse, ToolCallBlock
from llama_index.core.llms.llm import ToolSelection
from llama_index.core.tools.types import BaseTool

from ragbias.adapters.remote import RemoteLM
from ragbias.adapters.tool_formats import call_id
from ragbias.adapters.tool_use import AnswerFormat, Tool, begun_call, check_tools, template_call, tool_choice
from ragbias.errors import ArgumentError, RagBiasError
from ragbias.lm import DebiasedLM


def offered(tools: Sequence[BaseTool], choice: str | dict[str, Any] | None) -> tuple[list[Tool], bool]:
    """The tools for the prompt, as chat templates read them, and whether the model must call one.

    Args:
        choice: as in `ragbias.adapters.tool_use.tool_choice`; if it names a tool, only that one is shown.

    Raises:
        ArgumentError: no tool has the chosen name.
    """
    specs = [tool.metadata.to_openai_tool(skip_length_check=True) for tool in tools]
    chosen = tool_choice(choice, specs)
    shown = [spec for spec in specs if chosen.offered and chosen.name in (None, spec["function"]["name"])]
    return shown, chosen.required


def answer_format(lm: DebiasedLM | RemoteLM, tools: Sequence[Tool], required: bool) -> AnswerFormat:
    """How to read an answer; a required call is begun if the template's format is known."""
    check_tools(tools)
    if isinstance(lm, RemoteLM):
        return AnswerFormat(tools, request_fields={"tool_choice": "required"} if tools and required else {})
    return AnswerFormat(tools, (begun_call(lm, tools) or "") if tools and required else "")


def read(form: AnswerFormat, text: str, parallel: bool) -> tuple[str, tuple[ToolCallBlock, ...], tuple[str, ...]]:
    """A complete answer's text, its tool calls (only the first without `parallel`), and errors of malformed calls.

    Malformed calls stay in the text.
    """
    content, calls = form.read(text)
    wrong = [call for call in calls if call.error]
    blocks = [
        ToolCallBlock(tool_call_id=call_id(), tool_name=call.name, tool_kwargs=call.arguments or {})
        for call in calls
        if not call.error
    ]
    if wrong:
        content = "\n".join(part for part in (content, *(call.raw for call in wrong)) if part)
    errors = tuple(f"{call.name or 'a call'}: {call.error}" for call in wrong)
    return content, tuple(blocks if parallel else blocks[:1]), errors


def as_dict(block: ToolCallBlock) -> dict[str, Any]:
    """A call as chat templates read it, with arguments as an object.

    Raises:
        ArgumentError: the arguments are a string, but not a JSON object.
    """
    arguments: Any = block.tool_kwargs
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except ValueError:
            arguments = None
    if not isinstance(arguments, dict):
        raise ArgumentError(f"a call of the tool {block.tool_name!r} has arguments that are no JSON object")
    return template_call(block.tool_name, arguments, block.tool_call_id or call_id())


def selections(response: ChatResponse, error_if_none: bool) -> list[ToolSelection]:
    """The calls of a response for LlamaIndex's agents and programs.

    Raises:
        RagBiasError: there is none and `error_if_none`.
    """
    found = [
        ToolSelection(
            tool_id=block.tool_call_id or "",
            tool_name=block.tool_name,
            tool_kwargs=block.tool_kwargs if isinstance(block.tool_kwargs, dict) else {},
        )
        for block in response.message.blocks
        if isinstance(block, ToolCallBlock)
    ]
    if not found and error_if_none:
        malformed = "; ".join(response.additional_kwargs.get("invalid_tool_calls", ()))
        raise RagBiasError(
            "expected a tool call, but the answer has "
            + (f"only malformed ones ({malformed})" if malformed else "none")
            + "; pass tool_required=True, use a model that was trained to call tools, or for structured output "
            "pydantic_program_mode=PydanticProgramMode.LLM"
        )
    return found
