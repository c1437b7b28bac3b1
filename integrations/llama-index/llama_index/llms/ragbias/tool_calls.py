"""Tools in a prompt and in an answer: what the chat template is given, and what the model's text asks to be called."""

from __future__ import annotations

import json
import sys
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from llama_index.core.base.llms.types import ChatResponse, ToolCallBlock
from llama_index.core.llms.llm import ToolSelection

from ragbias.errors import RagBiasError
from ragbias.lm import DebiasedLM
from ragbias.tools import MARKERS, forced_beginning, parse_tool_calls, visible_length

if TYPE_CHECKING:
    from llama_index.core.tools.types import BaseTool

_ANY = ("auto", "any", "required")


@dataclass(frozen=True)
class ToolUse:
    """How an answer that may call tools is made and read.

    Attributes:
        most: number of calls that are taken from it.
        beginning: what stands behind the prompt already and belongs to the answer, so that it becomes a call.
    """

    most: int
    beginning: str = ""

    @property
    def settings(self) -> dict[str, Any]:
        """For `DebiasedLM`: the special tokens that calls begin with stay in the text."""
        return {"keep_special": MARKERS}


@dataclass(frozen=True)
class Calls:
    """What an answer holds besides calls, its well-formed calls, and what is wrong with the others."""

    text: str
    blocks: tuple[ToolCallBlock, ...]
    errors: tuple[str, ...]


def template_knows(lm: DebiasedLM) -> bool:
    """Whether the tokenizer's chat template prints the tools that it is given."""
    if not lm.tokenizer.chat_template:
        return False
    name = "ragbias_probe"
    parameters = {"type": "object", "properties": {"query": {"type": "string", "description": "What to look up."}}}
    function = {"name": name, "description": "Looks something up.", "parameters": parameters}
    try:
        return name in lm.chat_text(
            [{"role": "user", "content": "Hello"}], [{"type": "function", "function": function}]
        )
    except Exception:  # a template is a program of its author's and may fail in any way
        return False


def specs(tools: Sequence[BaseTool], choice: str | dict[str, Any] | None) -> list[dict[str, Any]]:
    """The tools as chat templates read them.

    Args:
        choice: None, "auto", "any" or "required": all tools; "none": no tools; a tool's name, or OpenAI's
            `{"type": "function", "function": {"name": ...}}`: only that one.

    Raises:
        RagBiasError: no tool has the chosen name.
    """
    all_specs = [tool.metadata.to_openai_tool(skip_length_check=True) for tool in tools]
    if isinstance(choice, dict):
        choice = choice.get("function", choice).get("name", "auto")
    if choice is None or choice in _ANY:
        return all_specs
    chosen = [spec for spec in all_specs if spec["function"]["name"] == choice]
    if not chosen and choice != "none":
        names = ", ".join(spec["function"]["name"] for spec in all_specs)
        raise RagBiasError(
            f"tool_choice={choice!r} is none of the tools ({names}), and not auto, any, required or none"
        )
    return chosen


def use(lm: DebiasedLM, tools: Sequence[dict[str, Any]], parallel: bool, required: bool) -> ToolUse | None:
    """How to read an answer to a prompt with these tools; None without tools.

    A call that is required is begun, if the template shows a format that is known. The name is begun with it if there
    is one tool.
    """
    if not tools:
        return None
    name = tools[0]["function"]["name"] if len(tools) == 1 else None
    beginning = forced_beginning(str(lm.tokenizer.chat_template), name) if required else None
    return ToolUse(sys.maxsize if parallel else 1, beginning or "")


def is_required(choice: str | dict[str, Any] | None) -> bool:
    """Whether a `tool_choice` leaves the model no answer without a call."""
    return choice is not None and choice not in ("auto", "none")


def read(text: str, most: int) -> Calls:
    """The first tool calls in a complete answer, `most` at most.

    Malformed ones stay in the text, where a reader or the model sees them.
    """
    rest, calls = parse_tool_calls(text)
    wrong = [call for call in calls if call.error or call.arguments is None]
    blocks = [
        ToolCallBlock(tool_call_id=_new_id(), tool_name=call.name, tool_kwargs=call.arguments or {})
        for call in calls
        if call not in wrong
    ]
    if not calls:
        return Calls(text, (), ())
    kept = "\n".join(part for part in (rest, *(call.raw for call in wrong)) if part)
    return Calls(kept, tuple(blocks[:most]), tuple(f"{call.name or 'a call'}: {call.error}" for call in wrong))


def before_calls(text: str) -> str:
    """The part of a growing answer that cannot belong to a call."""
    return text[: visible_length(text)]


def _new_id() -> str:
    return uuid.uuid4().hex[:9]  # Mistral's templates take nine letters and digits, the others anything


def as_dict(block: ToolCallBlock) -> dict[str, Any]:
    """A call as chat templates read it; its arguments are an object, not a string."""
    arguments = block.tool_kwargs
    if isinstance(arguments, str):
        arguments = json.loads(arguments or "{}")
    function = {"name": block.tool_name, "arguments": arguments}
    return {"id": block.tool_call_id or _new_id(), "type": "function", "function": function}


def selections(response: ChatResponse, error_if_none: bool) -> list[ToolSelection]:
    """The calls of a response, as LlamaIndex's agents and programs take them.

    Raises:
        RagBiasError: there is none and `error_if_none`.
    """
    found = [
        ToolSelection(tool_id=block.tool_call_id or "", tool_name=block.tool_name, tool_kwargs=block.tool_kwargs)  # type: ignore[arg-type]
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
