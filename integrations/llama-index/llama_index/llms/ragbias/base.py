"""``RagBiasLLM``, the replacement for LlamaIndex's ``HuggingFaceLLM``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast

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
from llama_index.core.bridge.pydantic import ConfigDict, Field, PrivateAttr, field_validator, model_validator
from llama_index.core.llms.callbacks import llm_chat_callback, llm_completion_callback
from llama_index.core.llms.function_calling import FunctionCallingLLM
from llama_index.core.llms.llm import ToolSelection, default_completion_to_prompt
from llama_index.core.prompts import PromptTemplate
from llama_index.core.tools.types import BaseTool
from llama_index.llms.ragbias import arguments, listener
from llama_index.llms.ragbias import messages as conversation
from llama_index.llms.ragbias.arguments import ChatArguments, CompletionArguments, RagBiasLLMOptions, context_window
from llama_index.llms.ragbias.listener import reports
from llama_index.llms.ragbias.requests import PreparedCall, Reply, aanswer, astream
from pydantic import SkipValidation
from typing_extensions import Unpack

from ragbias import DocumentCache, methods
from ragbias.boundaries import Boundaries, Segmenter
from ragbias.boundaries.recognisers import check_segmenter
from ragbias.errors import ArgumentError
from ragbias.frameworks import (
    AnswerFormat,
    ChatDocument,
    LanguageModel,
    MissingDocuments,
    OnMissing,
    Owner,
    StopStrings,
    Tool,
    UnsupportedToolsError,
    answer_format,
    open_model,
    rename_arguments,
    render_if_absent,
    report_errors,
    supports_tools,
    with_messages,
    with_options,
)
from ragbias.generation.arguments import SAMPLING
from ragbias.methods import Method

_DICTS = ("model_kwargs", "generate_kwargs", "tokenizer_kwargs")
_LISTS = ("stop", "stopping_ids", "tokenizer_outputs_to_remove")
NONE_IS_EMPTY = _DICTS + _LISTS
OTHER_NAMES = {"model": "model_name", "model_id": "model_name", "max_tokens": "max_new_tokens"}


class RagBiasLLM(FunctionCallingLLM):
    """A local Hugging Face model that answers without position bias over the retrieved documents.

    It replaces ``HuggingFaceLLM``. The retriever, prompts and synthesizers do not change. The retrieved documents are
    located in the final prompt. By default, they are the nodes of the current synthesis or of recent retrievals. To
    choose the documents yourself, pass ``documents=`` to the call, or use ``ragbias.documents(...)``.

    Calls take ``documents``, ``method``, ``max_tokens`` (or ``max_new_tokens``), ``temperature``, ``top_p``,
    ``top_k``, ``stop``, ``seed``, ``logprobs`` and any setting of transformers' ``GenerationConfig``. Agents and
    structured outputs can use tools if the tokenizer's chat template supports tools. The report of an answer is in
    ``additional_kwargs["ragbias"]`` of the response or of the last chunk of a stream. The token usage is in
    ``additional_kwargs`` and ``raw["usage"]``.

    Example:
        >>> llm = RagBiasLLM(model_name="Qwen/Qwen2.5-7B-Instruct", method="pine")
        >>> index.as_query_engine(llm=llm, similarity_top_k=20).query("When was the bridge built?")

    Raises:
        RagBiasError: a method, model, argument or prompt is invalid. See the subclass and the message.
    """

    model_config = ConfigDict(extra="forbid", arbitrary_types_allowed=True, protected_namespaces=())

    model_name: str = Field(
        default="", description="Hub name, path, 'tiny' for the embedded model, or the model's name at `base_url`."
    )
    method: str | Method | None = Field(
        default=None, description="Method: a name or an instance. None: the server's or the best measured method."
    )
    max_new_tokens: int = Field(default=256, description="Maximum number of tokens in an answer.")
    temperature: float | None = Field(default=None, description="Sampling temperature; 0 or None is greedy.")
    stop: StopStrings = Field(default_factory=list, description="Strings that end an answer.")
    logprobs: bool = Field(
        default=False, description="Whether to return each token's log-probability, in `logprobs` and in `raw`."
    )
    model_kwargs: dict[str, Any] = Field(default_factory=dict, description="Arguments for loading the model.")
    on_missing: OnMissing = Field(
        default="warn", description="Reaction if expected documents are missing from the prompt."
    )
    segmenter: SkipValidation[Segmenter | None] = Field(
        default=None,
        description="Segmenter that finds documents: a separator, an re.Pattern, or a function of the prompt.",
    )
    document_cache: DocumentCache | None = Field(
        default=None, exclude=True, repr=False, description="Cache for computed documents."
    )
    context_window: int | None = Field(
        default=None, gt=0, description="Maximum number of tokens in prompt and answer; None uses the model's."
    )
    is_chat_model: bool | None = Field(default=None, description="Default: true if the model has a chat template.")
    lm: LanguageModel = Field(default=cast(Any, None), exclude=True, repr=False, description="The loaded model.")
    base_url: str | None = Field(
        default=None,
        description="Address of a server of `ragbias serve`; needs `pip install 'llama-index-llms-ragbias[remote]'`.",
    )
    options: RagBiasLLMOptions = Field(
        default_factory=RagBiasLLMOptions,
        description="Rarely needed settings. Each is also a keyword argument of the constructor, e.g. `top_p=0.9`.",
    )

    _owner: Owner = PrivateAttr(default_factory=Owner)
    _missing: MissingDocuments = PrivateAttr(
        default_factory=lambda: MissingDocuments(
            "If LlamaIndex passes the documents to several calls, use response_mode='compact' or a larger "
            "context_window; if a node parser splits a Document that joins nodes, index the nodes; if a template "
            "rewrites nodes, or your code retrieves them, pass documents=... or use `with ragbias.documents(...)`",
            complete=frozenset({"run"}),  # the prompt of a synthesis contains all its nodes
        )
    )
    _template_supports_tools: bool = PrivateAttr(default=False)

    @model_validator(mode="before")
    @classmethod
    def _accept_stock_arguments(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        given = {name: value for name, value in values.items() if value is not None or name not in NONE_IS_EMPTY}
        given = rename_arguments(given, OTHER_NAMES, {**cls.model_fields, **RagBiasLLMOptions.model_fields})
        kwargs = given.get("model_kwargs")
        if isinstance(kwargs, dict) and "device" in kwargs:
            given["device_map"] = None
        return with_options(given, RagBiasLLMOptions)

    _report_errors = model_validator(mode="wrap")(report_errors)

    @field_validator("query_wrapper_prompt", mode="before")
    @classmethod
    def _as_template(cls, value: Any) -> Any:
        return PromptTemplate(value) if isinstance(value, str) else value

    def model_post_init(self, context: Any, /) -> None:
        """Load the model, and set unset fields from it."""
        super().model_post_init(context)
        if self.segmenter is not None:
            check_segmenter(self.segmenter)
        arguments.merge_arguments(self._defaults(), {}, self.options.stopping_ids)
        loading = {"device_map": self.options.device_map, **self.model_kwargs}
        self.lm, self.options = open_model(self, "model_name", self.options, self.lm, loading)
        if not self.model_name:
            self.model_name = self.lm.name or type(getattr(self.lm, "model", None)).__name__
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

    @property
    def last_report(self) -> dict[str, Any] | None:
        """The report of the last answer in the current thread or task."""
        return reports.last_report(self._owner)

    @llm_completion_callback()
    def complete(
        self, prompt: str, formatted: bool = False, **kwargs: Unpack[CompletionArguments]
    ) -> CompletionResponse:
        """Answer a prompt. With ``formatted``, no templates are applied to it."""
        return self._prepare_completion(prompt, formatted, kwargs).answer(Reply.completion)

    @llm_chat_callback()
    def chat(self, messages: Sequence[ChatMessage], **kwargs: Unpack[ChatArguments]) -> ChatResponse:
        """Answer chat messages."""
        return self._prepare_chat(messages, kwargs).answer(Reply.chat)

    @llm_completion_callback()
    def stream_complete(
        self, prompt: str, formatted: bool = False, **kwargs: Unpack[CompletionArguments]
    ) -> CompletionResponseGen:
        """Stream the answer to a prompt. Closing or deleting the generator stops the computation."""
        return self._prepare_completion(prompt, formatted, kwargs).stream(Reply.completion)

    @llm_chat_callback()
    def stream_chat(self, messages: Sequence[ChatMessage], **kwargs: Unpack[ChatArguments]) -> ChatResponseGen:
        """Stream the answer to chat messages. Closing or deleting the generator stops the computation."""
        return self._prepare_chat(messages, kwargs).stream(Reply.chat)

    @llm_completion_callback()
    async def acomplete(
        self, prompt: str, formatted: bool = False, **kwargs: Unpack[CompletionArguments]
    ) -> CompletionResponse:
        """Like ``complete``, without blocking the event loop."""
        return await aanswer(lambda: self._prepare_completion(prompt, formatted, kwargs), Reply.completion)

    @llm_chat_callback()
    async def achat(self, messages: Sequence[ChatMessage], **kwargs: Unpack[ChatArguments]) -> ChatResponse:
        """Like ``chat``, without blocking the event loop."""
        return await aanswer(lambda: self._prepare_chat(messages, kwargs), Reply.chat)

    @llm_completion_callback()
    async def astream_complete(
        self, prompt: str, formatted: bool = False, **kwargs: Unpack[CompletionArguments]
    ) -> CompletionResponseAsyncGen:
        """Like ``stream_complete``, without blocking the event loop."""
        return await astream(lambda: self._prepare_completion(prompt, formatted, kwargs), Reply.completion)

    @llm_chat_callback()
    async def astream_chat(
        self, messages: Sequence[ChatMessage], **kwargs: Unpack[ChatArguments]
    ) -> ChatResponseAsyncGen:
        """Like ``stream_chat``, without blocking the event loop."""
        return await astream(lambda: self._prepare_chat(messages, kwargs), Reply.chat)

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
        """Return the arguments of ``chat``."""
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

    def _chat_prompt(self, messages: Sequence[ChatMessage], tools: Sequence[Tool] = ()) -> str:
        messages = conversation.with_system_prompt(messages, self.system_prompt)
        assert self.messages_to_prompt is not None
        if self._uses_chat_template:
            return self.lm.chat_text(conversation.to_dicts(messages), tools or None)
        return self.messages_to_prompt(messages)

    def _prepare_prompt(self, text: str, call: Mapping[str, Any], found: Boundaries | None = None) -> PreparedCall:
        """Prepare a call. Its documents are located now, because the synthesis may end before the stream is read."""
        given = arguments.merge_arguments(self._defaults(), call, self.options.stopping_ids)
        method = methods.get(given.method, self.lm.name)
        found = found or listener.locate_documents(text, given.documents, self.segmenter)
        request = self.lm.prepare(text, boundaries=found, method=method)
        if method.needs_documents and not listener.is_extracting():
            self._missing.check(
                request,
                self.on_missing,
                documents=given.documents,
                segmenter=self.segmenter,
                at_end=listener.end_of_run_registrar(),
            )
        return PreparedCall(self._owner, self.lm, request, given.settings)

    def _prepare_completion(self, prompt: str, formatted: bool, call: Mapping[str, Any]) -> PreparedCall:
        if not formatted and self._completes_by_chat:
            return self._prepare_conversation([ChatMessage(content=prompt)], call, AnswerFormat())
        return self._prepare_prompt(self._completion_prompt(prompt, formatted), call)

    def _prepare_chat(self, messages: Sequence[ChatMessage], call: Mapping[str, Any]) -> PreparedCall:
        call = dict(call)
        tools = call.pop("tools", None) or ()
        parallel, required = call.pop("parallel_tool_calls", True), call.pop("tool_required", False)
        if tools and not (self._template_supports_tools and self._uses_chat_template):
            raise ArgumentError(
                f"the chat template of {self.model_name!r} does not print tools; use a model that was trained to call "
                "tools, do not set messages_to_prompt, or use a ReActAgent, which needs no template"
            )
        try:
            form = answer_format(self.lm, tools, "required" if tools and required else None)
        except UnsupportedToolsError:  # the call cannot be forced, but the model may write it
            form = answer_format(self.lm, tools)
        return replace(self._prepare_conversation(messages, call, form), parallel=parallel)

    def _prepare_conversation(
        self, messages: Sequence[ChatMessage], call: Mapping[str, Any], form: AnswerFormat
    ) -> PreparedCall:
        messages = conversation.with_system_prompt(messages, self.system_prompt)
        text, call, found = self._render_documents(messages, call, form.tools)
        prepared = self._prepare_prompt(text + form.beginning, call, found)
        request = prepared.request
        if self._uses_chat_template:
            request = with_messages(request, conversation.to_dicts(messages), form)
        settings = replace(prepared.settings, keep_special=form.keep_special)
        return replace(prepared, request=request, form=form, settings=settings)

    def _render_documents(
        self, messages: Sequence[ChatMessage], call: Mapping[str, Any], tools: Sequence[Tool]
    ) -> tuple[str, Mapping[str, Any], Boundaries | None]:
        """Return the prompt, the call, and the boundaries of the documents if the chat template renders them.

        If the call has no documents, the returned call has the documents in content blocks.
        """
        given = call.get("documents")
        if given is None:
            bare, documents = conversation.split_off_documents(messages)
            call = {**call, "documents": [str(document) for document in documents] or None}
        else:
            bare, documents = list(messages), [ChatDocument("", text) for text in listener.texts_for_prompts(given)]
        turns = conversation.to_dicts(bare)
        chat_text = partial(self.lm.chat_text, turns, tools or None)
        rendered = render_if_absent(chat_text, documents, turns if given else ()) if self._uses_chat_template else None
        text, found = rendered or (self._chat_prompt(messages, tools), None)
        return text, call, found

    def _defaults(self) -> dict[str, Any]:
        fields = {name: getattr(self, name) for name in ("method", "max_new_tokens", "temperature", "stop", "logprobs")}
        options = {name: getattr(self.options, name) for name in SAMPLING if name not in fields}
        return {**fields, **options, **self.options.generate_kwargs}
