"""Convert LlamaIndex's messages and tools to the format of chat templates, and answers to LlamaIndex's responses."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from llama_index.core.base.llms.types import (
    CachePoint,
    ChatMessage,
    ChatResponse,
    CitableBlock,
    CompletionResponse,
    DocumentBlock,
    LogProb,
    MessageRole,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
)
from llama_index.core.llms.llm import ToolSelection
from llama_index.core.tools.types import BaseTool

from ragbias import Generation
from ragbias.errors import ArgumentError, RagBiasError
from ragbias.frameworks import (
    ChatDocument,
    PreparedCall,
    StreamedPart,
    call_id,
    parse_arguments,
    parse_tool_choice,
    template_call,
    template_message,
)

_ROLES = {
    MessageRole.DEVELOPER: "system",
    MessageRole.CHATBOT: "assistant",
    MessageRole.MODEL: "assistant",
    MessageRole.FUNCTION: "tool",
}
_NO_TEXT = (CachePoint, ThinkingBlock, ToolCallBlock)  # blocks without text for the prompt
_DOCUMENTS = (CitableBlock, DocumentBlock)


def with_system_prompt(messages: Sequence[ChatMessage], system_prompt: str | None) -> list[ChatMessage]:
    """Put the system prompt before the messages, unless a system message already contains it."""
    system_texts = [message.content or "" for message in messages if message.role == MessageRole.SYSTEM]
    if not system_prompt or any(system_prompt in text for text in system_texts):
        return list(messages)
    return [ChatMessage(role=MessageRole.SYSTEM, content=system_prompt), *messages]


def to_dicts(messages: Sequence[ChatMessage]) -> list[dict[str, Any]]:
    """Convert messages to dicts for chat templates. Each content is a list of texts and documents."""
    return [_turn(message) for message in messages]


def join_lines(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Join the parts of each message with line breaks.

    System messages at the beginning become one message, because templates support only one.
    """
    turns = [{**message, "content": "\n".join(map(str, message["content"]))} for message in messages]
    n_system = next((index for index, turn in enumerate(turns) if turn["role"] != "system"), len(turns))
    system = "\n\n".join(turn["content"] for turn in turns[:n_system] if turn["content"])
    head = [{"role": "system", "content": system}] if system else []
    return head + turns[n_system:]


def _turn(message: ChatMessage) -> dict[str, Any]:
    parts = [part for block in message.blocks for part in _parts(block, message.role)]
    role = _ROLES.get(message.role, message.role.value)
    calls = [call_to_dict(block) for block in message.blocks if isinstance(block, ToolCallBlock)]
    result = message.additional_kwargs if role == "tool" else {}
    return template_message(role, parts, calls, result.get("tool_call_id"), result.get("name"))


def _parts(block: Any, role: MessageRole) -> list[str | ChatDocument]:
    if isinstance(block, TextBlock):
        return [block.text]
    if isinstance(block, _DOCUMENTS):
        return [_document(block, role)]
    if isinstance(block, _NO_TEXT):
        return []
    kind = getattr(block, "block_type", type(block).__name__)
    raise RagBiasError(f"RagBiasLLM reads text, but a {role.value} message contains a {kind} block; leave it out")


def _document(block: CitableBlock | DocumentBlock, role: MessageRole) -> ChatDocument:
    """Return the title and text of a block as a document."""
    if isinstance(block, CitableBlock):
        parts = [str(part) for inner in block.content for part in _parts(inner, role)]
        return ChatDocument(block.title, "\n".join(parts))
    title = "" if block.title in (None, "input_document") else str(block.title)
    with suppress(UnicodeDecodeError):
        if not block.url and (block.document_mimetype or "text/").startswith("text/"):
            return ChatDocument(title, block.resolve_document().read().decode())
    kind = "a URL" if block.url else block.document_mimetype or "an unknown type"
    raise RagBiasError(
        f"RagBiasLLM reads text, but a {role.value} message has a document of {kind}; pass its text in a CitableBlock"
    )


def last_documents(messages: Sequence[ChatMessage]) -> list[str]:
    """Return the texts of the document blocks in the last message that has any."""
    for message in reversed(messages):
        blocks = [block for block in message.blocks if isinstance(block, _DOCUMENTS)]
        if blocks:
            return [str(_document(block, message.role)) for block in blocks]
    return []


# tools


def offer_tools(tools: Sequence[BaseTool], choice: str | dict[str, Any] | None) -> tuple[list[dict[str, Any]], bool]:
    """Return the tools for the prompt, and whether a call is required. If ``choice`` names a tool, return no others."""
    specs = [tool.metadata.to_openai_tool(skip_length_check=True) for tool in tools]
    chosen = parse_tool_choice(choice, specs)
    if not chosen.offered:
        return [], chosen.required
    if chosen.name is not None:
        specs = [spec for spec in specs if spec["function"]["name"] == chosen.name]
    return specs, chosen.required


def call_to_dict(block: ToolCallBlock) -> dict[str, Any]:
    """Convert a tool call to the format of chat templates, with its arguments as a dict."""
    given: Any = block.tool_kwargs
    arguments = parse_arguments(given) if isinstance(given, str) else given
    if not isinstance(arguments, dict):
        raise ArgumentError(f"a call of the tool {block.tool_name!r} has arguments that are not a JSON object")
    return template_call(block.tool_name, arguments, block.tool_call_id or call_id())


def tool_selections(response: ChatResponse, error_if_none: bool) -> list[ToolSelection]:
    """Convert the tool calls of a response for LlamaIndex's agents and programs."""
    calls = [
        ToolSelection(
            tool_id=block.tool_call_id or "",
            tool_name=block.tool_name,
            tool_kwargs=block.tool_kwargs if isinstance(block.tool_kwargs, dict) else {},
        )
        for block in response.message.blocks
        if isinstance(block, ToolCallBlock)
    ]
    if not calls and error_if_none:
        malformed = "; ".join(response.additional_kwargs.get("invalid_tool_calls", ()))
        raise RagBiasError(
            "expected a tool call, but the answer has "
            + (f"only malformed ones ({malformed})" if malformed else "none")
            + "; pass tool_required=True, use a model that was trained to call tools, or for structured output "
            "pydantic_program_mode=PydanticProgramMode.LLM"
        )
    return calls


# responses


@dataclass(frozen=True)
class Reply:
    """A complete answer, or the part of an answer that was streamed so far."""

    text: str
    delta: str | None = None  # the piece that was streamed last
    # unset until the answer is complete
    details: dict[str, Any] | None = None  # usage, finish reason, report and, if requested, log-probabilities
    calls: tuple[ToolCallBlock, ...] = ()
    errors: tuple[str, ...] = ()  # one per malformed tool call

    @classmethod
    def of(cls, prepared: PreparedCall, generation: Generation, shown: str | None = None) -> Reply:
        """Return a complete answer, and store its report. ``shown`` is the part that was streamed, if any."""
        text, valid, malformed = prepared.form.read_valid(generation.text)
        calls = tuple(
            ToolCallBlock(tool_call_id=call.id, tool_name=call.name, tool_kwargs=call.arguments or {}) for call in valid
        )
        errors = tuple(f"{call.name or 'a call'}: {call.error}" for call in malformed)
        details = {"usage": generation.usage.as_dict(), **prepared.finish(generation)}
        delta = None if shown is None else text[len(shown) :]
        return cls(text, delta, details, calls, errors)

    @classmethod
    def of_part(cls, prepared: PreparedCall, part: StreamedPart) -> Reply:
        """Return a part of a streamed answer."""
        if part.generation is None:
            return cls(part.shown, part.new)
        return cls.of(prepared, part.generation, part.shown)

    def completion(self) -> CompletionResponse:
        """Return the response to a completion request."""
        return CompletionResponse(text=self.text, delta=self.delta, **self._fields())

    def chat(self) -> ChatResponse:
        """Return the response to a chat request.

        The report is not in the message, because LlamaIndex's memories would add it to later prompts. Tool calls are in
        blocks and, for LlamaIndex's streaming programs, in ``additional_kwargs``.
        """
        message = ChatMessage(role=MessageRole.ASSISTANT, content=self.text)
        fields = self._fields()
        if self.calls:
            text = [TextBlock(text=self.text)] if self.text else []
            calls = {"tool_calls": [call_to_dict(block) for block in self.calls]}
            message = ChatMessage(role=MessageRole.ASSISTANT, blocks=[*text, *self.calls], additional_kwargs=calls)
        if self.errors:
            fields["additional_kwargs"]["invalid_tool_calls"] = list(self.errors)
        return ChatResponse(message=message, delta=self.delta, **fields)

    def _fields(self) -> dict[str, Any]:
        if self.details is None:
            return {"additional_kwargs": {}, "raw": None}
        tokens = None
        if logprobs := self.details.get("logprobs"):
            tokens = [
                [LogProb(token=each["token"], logprob=each["logprob"], bytes=each["bytes"])]
                for each in logprobs["content"]
            ]
        usage = {**self.details["usage"], "ragbias": self.details["ragbias"]}
        return {"additional_kwargs": usage, "raw": self.details, "logprobs": tokens}
