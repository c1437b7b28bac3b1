"""``RagBiasLLM``, the replacement for LlamaIndex's ``HuggingFaceLLM``."""

from __future__ import annotations

import threading
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, TypeVar

from llama_index.core.base.llms.generic_utils import messages_to_prompt as generic_messages_to_prompt
from llama_index.core.base.llms.types import (
    ChatMessage,
    ChatResponse,
    ChatResponseAsyncGen,
    ChatResponseGen,
    CompletionResponse,
    CompletionResponseAsyncGen,
    CompletionResponseGen,
    LLMMetadata,
    MessageRole,
)
from llama_index.core.bridge.pydantic import Field, PrivateAttr, field_validator, model_validator
from llama_index.core.llms.callbacks import llm_chat_callback, llm_completion_callback
from llama_index.core.llms.function_calling import FunctionCallingLLM
from llama_index.core.llms.llm import ToolSelection, default_completion_to_prompt
from llama_index.core.prompts import PromptTemplate
from llama_index.core.tools.types import BaseTool
from llama_index.llms.ragbias import listener
from llama_index.llms.ragbias import messages as conversation
from llama_index.llms.ragbias.arguments import (
    ChatArguments,
    CompletionArguments,
    RagBiasLLMOptions,
    context_window,
    convert_arguments,
)
from llama_index.llms.ragbias.messages import Reply
from typing_extensions import Unpack

from ragbias import Generation
from ragbias.boundaries import Source, current_documents
from ragbias.call_site import WarnedLines
from ragbias.checks import check_text
from ragbias.errors import ArgumentError, UnsupportedToolsError
from ragbias.frameworks import (
    AnswerFormat,
    FrameworkModel,
    LastReports,
    MergedArguments,
    PreparedCall,
    RenderedConversation,
    StopStrings,
    answer_format,
    rename_arguments,
    render_conversation,
    supports_tools,
)
from ragbias.frameworks import asyncio_bridge as bridge

_DICTS = ("model_kwargs", "generate_kwargs", "tokenizer_kwargs")
_LISTS = ("stop", "stopping_ids", "tokenizer_outputs_to_remove")
NONE_IS_EMPTY = _DICTS + _LISTS
OTHER_NAMES = {"model": "model_name", "model_id": "model_name", "max_tokens": "max_new_tokens"}
Response = TypeVar("Response")
Convert = Callable[[Reply], Response]


class RagBiasLLM(FrameworkModel, FunctionCallingLLM):
    """A local Hugging Face model that answers without position bias over the retrieved documents.

    It replaces ``HuggingFaceLLM``. The retriever, prompts and synthesizers do not change. The retrieved documents are
    located in the final prompt. By default, they are the nodes of the current synthesis or of recent retrievals. To
    choose the documents yourself, pass ``documents=`` to the call, or use ``ragbias.documents(...)``.

    Calls take ``CompletionArguments`` or ``ChatArguments``, and any setting of transformers' ``GenerationConfig``.
    Agents and structured outputs can use tools if the tokenizer's chat template supports tools. The report of an answer
    is in ``additional_kwargs["ragbias"]`` of the response or of the last chunk of a stream. The token usage is in
    ``additional_kwargs`` and ``raw["usage"]``.

    Example:
        >>> llm = RagBiasLLM(model_name="Qwen/Qwen2.5-7B-Instruct", method="pine")
        >>> index.as_query_engine(llm=llm, similarity_top_k=20).query("When was the bridge built?")

    Raises:
        RagBiasError: a method, model, argument or prompt is invalid. See the subclass and the message.
    """

    model_name: str = ""
    """A hub name, a path, ``"tiny"`` for the embedded model, or the model's name at ``base_url``."""
    max_new_tokens: int = 256
    """Maximum number of tokens in an answer. ``max_tokens`` is an alias."""
    stop: StopStrings = Field(default_factory=list)
    """Strings that end the answer and are not part of it."""
    context_window: int | None = Field(default=None, gt=0)
    """Maximum number of tokens in prompt and answer. ``None`` uses the model's."""
    is_chat_model: bool | None = None
    """Whether the model answers chats. By default, true if the model has a chat template."""
    options: RagBiasLLMOptions = Field(default_factory=RagBiasLLMOptions)
    """Rarely needed settings. Each is also a keyword argument of the constructor, e.g. ``top_p=0.9``."""

    reports: ClassVar[LastReports] = listener.reports
    missing_remedy: ClassVar[str] = (
        "If LlamaIndex passes the documents to several calls, use response_mode='compact' or a larger "
        "context_window; if a node parser splits a Document that joins nodes, index the nodes; if a template "
        "rewrites nodes, or your code retrieves them, pass documents=... or use `with ragbias.documents(...)`"
    )
    complete_sources: ClassVar[frozenset[Source]] = frozenset({"run"})  # a synthesis needs all its nodes
    _template_supports_tools: bool = PrivateAttr(default=False)
    _unforced_calls: WarnedLines = PrivateAttr(default_factory=WarnedLines)

    @model_validator(mode="before")
    @classmethod
    def _accept_stock_arguments(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        fields = {name: value for name, value in values.items() if value is not None or name not in NONE_IS_EMPTY}
        fields = rename_arguments(fields, OTHER_NAMES, {**cls.model_fields, **RagBiasLLMOptions.model_fields})
        kwargs = fields.get("model_kwargs")
        if isinstance(kwargs, dict) and "device" in kwargs:
            fields["device_map"] = None
        return fields

    @field_validator("query_wrapper_prompt", mode="before")
    @classmethod
    def _as_template(cls, value: Any) -> Any:
        return PromptTemplate(value) if isinstance(value, str) else value

    def model_post_init(self, context: Any, /) -> None:
        """Load the model, and fill in unset fields from it."""
        super().model_post_init(context)
        self.open_model("model_name", self.lm, {"device_map": self.options.device_map, **self.model_kwargs})
        self.context_window = context_window(self.lm.window, self.context_window)
        if self.is_chat_model is None:
            self.is_chat_model = bool(self.lm.chat_template)
        self._template_supports_tools = supports_tools(self.lm)

    @classmethod
    def class_name(cls) -> str:
        """Return the name of this class, for serialisation."""
        return "RagBiasLLM"

    def __repr_args__(self) -> Iterable[tuple[str | None, Any]]:
        return [("model_name", self.model_name), ("method", self.method)]

    @property
    def metadata(self) -> LLMMetadata:
        """The context window and the model's capabilities. LlamaIndex uses them to choose chunk sizes and prompts."""
        assert self.context_window is not None
        assert self.is_chat_model is not None
        return LLMMetadata(
            context_window=self.context_window,
            num_output=self.max_new_tokens,
            is_chat_model=self.is_chat_model,
            is_function_calling_model=self.is_chat_model and self._template_supports_tools and self._uses_chat_template,
            model_name=self.model_name,
        )

    def token_ids(self, text: str) -> list[int]:
        """Return the token ids of a text, without special tokens.

        LlamaIndex counts with another tokenizer by default. To count with this one, set ``Settings.tokenizer =
        llm.token_ids``, ``ChatMemoryBuffer.from_defaults(tokenizer_fn=llm.token_ids)`` and
        ``TokenCountingHandler(tokenizer=llm.token_ids)``.
        """
        return self.lm.token_ids(text)

    def to_payload(self) -> dict[str, Any]:
        """Return the fields that LlamaIndex's events report, and the method."""
        return {**super().to_payload(), "method": str(self.method)}

    @llm_completion_callback()
    def complete(
        self, prompt: str, formatted: bool = False, **kwargs: Unpack[CompletionArguments]
    ) -> CompletionResponse:
        """Answer a prompt. With ``formatted``, no templates are applied to it. See also ``CompletionArguments``."""
        return _respond(self._prepare_completion(prompt, formatted, kwargs), Reply.completion)

    @llm_chat_callback()
    def chat(self, messages: Sequence[ChatMessage], **kwargs: Unpack[ChatArguments]) -> ChatResponse:
        """Answer a conversation. For the keyword arguments, see ``ChatArguments``."""
        return _respond(self._prepare_chat(messages, kwargs), Reply.chat)

    @llm_completion_callback()
    def stream_complete(
        self, prompt: str, formatted: bool = False, **kwargs: Unpack[CompletionArguments]
    ) -> CompletionResponseGen:
        """Stream the answer to a prompt. Closing or deleting the generator stops the computation."""
        return _stream(self._prepare_completion(prompt, formatted, kwargs), Reply.completion)

    @llm_chat_callback()
    def stream_chat(self, messages: Sequence[ChatMessage], **kwargs: Unpack[ChatArguments]) -> ChatResponseGen:
        """Stream the answer to a conversation. Closing or deleting the generator stops the computation."""
        return _stream(self._prepare_chat(messages, kwargs), Reply.chat)

    @llm_completion_callback()
    async def acomplete(
        self, prompt: str, formatted: bool = False, **kwargs: Unpack[CompletionArguments]
    ) -> CompletionResponse:
        """Like ``complete``, without blocking the event loop."""
        return await _arespond(lambda: self._prepare_completion(prompt, formatted, kwargs), Reply.completion)

    @llm_chat_callback()
    async def achat(self, messages: Sequence[ChatMessage], **kwargs: Unpack[ChatArguments]) -> ChatResponse:
        """Like ``chat``, without blocking the event loop."""
        return await _arespond(lambda: self._prepare_chat(messages, kwargs), Reply.chat)

    @llm_completion_callback()
    async def astream_complete(
        self, prompt: str, formatted: bool = False, **kwargs: Unpack[CompletionArguments]
    ) -> CompletionResponseAsyncGen:
        """Like ``stream_complete``, without blocking the event loop."""
        return await _astream(lambda: self._prepare_completion(prompt, formatted, kwargs), Reply.completion)

    @llm_chat_callback()
    async def astream_chat(
        self, messages: Sequence[ChatMessage], **kwargs: Unpack[ChatArguments]
    ) -> ChatResponseAsyncGen:
        """Like ``stream_chat``, without blocking the event loop."""
        return await _astream(lambda: self._prepare_chat(messages, kwargs), Reply.chat)

    def _prepare_chat_with_tools(
        self,
        tools: Sequence[BaseTool],
        user_msg: str | ChatMessage | None = None,
        chat_history: list[ChatMessage] | None = None,
        verbose: bool = False,
        allow_parallel_tool_calls: bool = False,
        tool_required: bool = False,
        tool_choice: str | dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """Return the arguments with which LlamaIndex calls ``chat`` to offer tools."""
        if isinstance(user_msg, str):
            user_msg = ChatMessage(role=MessageRole.USER, content=user_msg)
        shown, required = conversation.offer_tools(tools, tool_choice)
        return {
            "messages": [*(chat_history or ()), *([user_msg] if user_msg else ())],
            "tools": shown,
            "parallel_tool_calls": allow_parallel_tool_calls,
            "tool_required": tool_required or required,
            **kwargs,
        }

    def get_tool_calls_from_response(
        self, response: ChatResponse, error_on_no_tool_call: bool = True, **kwargs: Any
    ) -> list[ToolSelection]:
        """Return the tool calls. Raise ``RagBiasError`` if there are none and ``error_on_no_tool_call`` is true."""
        return conversation.tool_selections(response, error_on_no_tool_call)

    @property
    def _completes_by_chat(self) -> bool:
        custom = self.query_wrapper_prompt or self.completion_to_prompt is not default_completion_to_prompt
        return bool(self.is_chat_model and not custom)

    def _completion_prompt(self, prompt: str, formatted: bool) -> str:
        if formatted:
            return prompt
        if self.query_wrapper_prompt:
            prompt = self.query_wrapper_prompt.format(query_str=prompt)
        if self.system_prompt:
            prompt = f"{self.system_prompt}\n\n{prompt}"
        assert self.completion_to_prompt is not None
        return self.completion_to_prompt(prompt)

    @property
    def _uses_chat_template(self) -> bool:
        return self.messages_to_prompt is generic_messages_to_prompt and bool(self.lm.chat_template)

    def _chat_prompt(self, messages: Sequence[ChatMessage]) -> str:
        messages = conversation.with_system_prompt(messages, self.system_prompt)
        assert self.messages_to_prompt is not None
        if self._uses_chat_template:
            return self.lm.chat_text(conversation.join_lines(conversation.to_dicts(messages)))
        return self.messages_to_prompt(messages)

    def _prepare_completion(self, prompt: str, formatted: bool, arguments: Mapping[str, Any]) -> PreparedCall:
        check_text("the prompt", prompt)
        call = self.merge_arguments(self._convert_arguments(arguments), self.lm.name)
        if not formatted and self._completes_by_chat:
            return self._prepare_messages([ChatMessage(content=prompt)], call, AnswerFormat())
        prompt = self._completion_prompt(prompt, formatted)
        return self.prepare_call(prompt, call, listener.locate_documents(prompt, call.documents, self.segmenter))

    def _convert_arguments(self, arguments: Mapping[str, Any], has_blocks: bool = False) -> dict[str, Any]:
        """Convert the arguments of a call.

        The LLM's default documents are ignored if the messages contain documents (``has_blocks``), or if the call is
        inside ``with ragbias.documents(...)``.
        """
        converted = convert_arguments(arguments)
        if has_blocks or current_documents() is not None:
            return {"documents": None, **converted}
        return converted

    def _prepare_chat(self, messages: Sequence[ChatMessage], arguments: Mapping[str, Any]) -> PreparedCall:
        arguments = dict(arguments)
        tools = arguments.pop("tools", None) or ()
        parallel = arguments.pop("parallel_tool_calls", True)
        required = arguments.pop("tool_required", False)
        if tools and not (self._template_supports_tools and self._uses_chat_template):
            raise ArgumentError(
                f"the chat template of {self.model_name!r} does not print tools; use a model that was trained to call "
                "tools, do not set messages_to_prompt, or use a ReActAgent, which needs no template"
            )
        form = self._tool_format(tools, required)
        has_blocks = bool(conversation.last_documents(messages))
        call = self.merge_arguments(self._convert_arguments(arguments, has_blocks), self.lm.name)
        return self._prepare_messages(messages, call, replace(form, parallel=parallel))

    def _tool_format(self, tools: Sequence[dict[str, Any]], required: bool) -> AnswerFormat:
        """Return the format of an answer with tools.

        If a call is required but cannot be forced, warn instead of raising an error, because LlamaIndex requires a call
        for every structured output, and the model may write one.
        """
        if not (tools and required):
            return answer_format(self.lm, tools)
        try:
            return answer_format(self.lm, tools, "required")
        except UnsupportedToolsError:
            form = answer_format(self.lm, tools)
            self._unforced_calls.warn(
                f"a tool call is required, but cannot be forced, because the chat template of {self.model_name!r} "
                "writes tool calls in an unknown format; the answer may have no call. Use another model, or for "
                "structured output pydantic_program_mode=PydanticProgramMode.LLM",
                UserWarning,
            )
            return form

    def _prepare_messages(
        self, messages: Sequence[ChatMessage], call: MergedArguments, form: AnswerFormat
    ) -> PreparedCall:
        """Render a conversation and locate its documents.

        Streams call this before they are read, because retrievals may be gone later.
        """
        if self._uses_chat_template:
            turns = conversation.to_dicts(conversation.with_system_prompt(messages, self.system_prompt))
            chat = render_conversation(self.lm.chat_text, turns, form, call.documents, conversation.join_lines)
        else:
            chat = RenderedConversation(self._chat_prompt(messages), blocks=[conversation.last_documents(messages)])
        if call.documents is None and chat.blocks and chat.blocks[0]:
            call = replace(call, documents=tuple(chat.blocks[0]))
        located = listener.locate_documents(chat.prompt, call.documents, self.segmenter, chat.boundaries)
        return self.prepare_call(chat.prompt, call, located, form, chat.turns)

    def _call_defaults(self) -> dict[str, Any]:
        defaults = convert_arguments(super()._call_defaults()) | convert_arguments(self.options.generate_kwargs)
        return {**defaults, "stop_token_ids": self.options.stopping_ids}


def _respond(prepared: PreparedCall, convert: Convert[Response]) -> Response:
    return convert(Reply.of(prepared, prepared.run()))


async def _arespond(prepare: Callable[[], PreparedCall], convert: Convert[Response]) -> Response:
    """Prepare a call and answer it, both outside the event loop."""

    def work(cancelled: threading.Event) -> tuple[PreparedCall, Generation]:
        prepared = prepare()
        return prepared, prepared.run(cancelled)

    return convert(Reply.of(*await bridge.in_thread(work)))


def _stream(prepared: PreparedCall, convert: Convert[Response]) -> Generator[Response, None, None]:
    """Stream the answer. Errors of the request are raised here, before the first piece is read."""
    return prepared.stream(lambda part: convert(Reply.of_part(prepared, part)))


async def _astream(prepare: Callable[[], PreparedCall], convert: Convert[Response]) -> AsyncGenerator[Response, None]:
    """Prepare a call and stream the answer, both outside the event loop."""
    prepared = await bridge.in_thread(lambda _: prepare())
    return prepared.astream(lambda part: convert(Reply.of_part(prepared, part)))
