"""`RagBiasLLM`, the LLM class that takes the place of LlamaIndex's `HuggingFaceLLM`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

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
from llama_index.llms.ragbias import arguments, documents, listener, loading, tool_calls
from llama_index.llms.ragbias import messages as chat_messages
from llama_index.llms.ragbias.arguments import ChatArguments, CompletionArguments
from llama_index.llms.ragbias.requests import PreparedCall, aanswer, astream, reports
from llama_index.llms.ragbias.responses import AnswerSoFar
from typing_extensions import Unpack

from ragbias import methods
from ragbias.adapters.constructor_arguments import renamed
from ragbias.adapters.last_report import Owner
from ragbias.adapters.missing_documents import MissingDocuments, OnMissing
from ragbias.adapters.remote import RemoteLM
from ragbias.adapters.settled_fields import check_model_only_at_server, settle
from ragbias.adapters.tool_use import knows_tools
from ragbias.boundaries.sources.segmenter import check as check_segmenter
from ragbias.errors import ArgumentError
from ragbias.lm import DebiasedLM

OTHER_NAMES = {"model": "model_name", "model_id": "model_name", "max_tokens": "max_new_tokens"}


class RagBiasLLM(FunctionCallingLLM):
    """A local Hugging Face model whose answers do not depend on where in the prompt a document is.

    It takes the place of `HuggingFaceLLM`; retriever, prompts and synthesizers stay as they are. The retrieved
    documents are found in the final prompt: from `documents=` on the call or `ragbias.documents(...)`, else from the
    nodes of the synthesis that makes the call, else among the texts that LlamaIndex retrieved lately.

    A call takes `documents`, `method`, `max_tokens` (or `max_new_tokens`), `temperature`, `top_p`, `top_k`, `stop`,
    `seed` and any setting of transformers' `GenerationConfig`. If the tokenizer's chat template knows tools, agents and
    structured outputs call them through it. Each response says in `additional_kwargs["ragbias"]`
    what ran on which documents, and has the token usage in `additional_kwargs` and `raw["usage"]`; of a stream, the
    last chunk does.

    Example:
        >>> llm = RagBiasLLM(model_name="Qwen/Qwen2.5-7B-Instruct", method="pine")
        >>> index.as_query_engine(llm=llm, similarity_top_k=20).query("When was the bridge built?")

    Raises:
        RagBiasError: a method, model, argument or prompt does not fit; the subclass and its text say which and why.
    """

    model_config = ConfigDict(extra="forbid", arbitrary_types_allowed=True)

    model_name: str = Field(default="tiny", description="Name on the hub, path, or 'tiny' for the embedded model.")
    tokenizer_name: str | None = Field(default=None, description="Name or path of the tokenizer; None: the model's.")
    lm: Any = Field(default=None, exclude=True, repr=False, description="A DebiasedLM to use instead of loading one.")
    model: Any = Field(default=None, exclude=True, repr=False, description="A transformers model, loaded already.")
    tokenizer: Any = Field(default=None, exclude=True, repr=False, description="The tokenizer of `model`.")
    device_map: Any = Field(default="auto", description="Where the model's layers go.")
    model_kwargs: dict[str, Any] = Field(default_factory=dict, description="Arguments for loading the model.")
    tokenizer_kwargs: dict[str, Any] = Field(default_factory=dict, description="Arguments for loading the tokenizer.")

    method: Any = Field(
        default=methods.DEFAULT_METHOD, description="Method against position bias: its name or an instance."
    )
    on_missing: OnMissing = Field(
        default="warn", description="What to do if documents are expected and missing from the prompt."
    )
    segmenter: Any = Field(
        default=None,
        description="Finds documents that nothing retrieved: a separator, an re.Pattern, or a function of the prompt.",
    )
    include_headers: bool = Field(
        default=False,
        description="Whether spans found in the text begin with headers; they belong to their documents in any case.",
    )
    strip_numbering: bool = Field(default=False, description="Take the numbers out of the documents' headers.")
    backend: str = Field(
        default="auto", description="What computes the method's attention: auto, torch, triton or flash."
    )
    document_cache: Any = Field(
        default=None,
        exclude=True,
        repr=False,
        description="A DocumentCache for what the model makes of documents.",
    )

    base_url: str | None = Field(
        default=None, description="Address of a server of `ragbias serve`, which has the model; None: it is here."
    )
    api_key: str | None = Field(
        default=None, exclude=True, repr=False, description="Of the server; None: what RAGBIAS_API_KEY holds."
    )
    timeout: float | None = Field(default=600.0, description="Seconds without an answer of the server.")
    max_retries: int = Field(default=2, ge=0, description="How often a request to the server is sent again.")

    context_window: int | None = Field(
        default=None, gt=0, description="Tokens of prompt and answer; None: the model's."
    )
    is_chat_model: bool | None = Field(default=None, description="None: whether the tokenizer has a chat template.")
    max_new_tokens: int = Field(default=256, gt=0, description="Most tokens of an answer.")
    temperature: float | None = Field(default=None, ge=0, description="Sampling temperature; 0 or None: greedy.")
    stop: list[str] = Field(default_factory=list, description="An answer ends before any of these strings.")
    stopping_ids: list[int] = Field(default_factory=list, description="An answer ends at any of these tokens.")
    seed: int | None = Field(default=None, description="Makes sampling repeatable.")
    generate_kwargs: dict[str, Any] = Field(default_factory=dict, description="More settings of generation.")
    tokenizer_outputs_to_remove: list[str] = Field(
        default_factory=list,
        description="As in HuggingFaceLLM; the model is never given more than input_ids and attention_mask.",
    )

    _owner: Owner = PrivateAttr(default_factory=Owner)
    _missing: MissingDocuments = PrivateAttr(default_factory=documents.missing)
    _template_knows_tools: bool = PrivateAttr(default=False)

    @model_validator(mode="before")
    @classmethod
    def _other_names(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        given = renamed(values, OTHER_NAMES, cls.model_fields, ArgumentError)
        on_device = "device" in (given.get("model_kwargs") or {})
        return {**given, "device_map": None} if on_device else given

    @field_validator("query_wrapper_prompt", mode="before")
    @classmethod
    def _as_template(cls, value: Any) -> Any:
        return PromptTemplate(value) if isinstance(value, str) else value

    @field_validator("generate_kwargs", "model_kwargs", "tokenizer_kwargs", mode="before")
    @classmethod
    def _none_is_no_settings(cls, value: Any) -> Any:
        return {} if value is None else value

    @field_validator("stop", "stopping_ids", "tokenizer_outputs_to_remove", mode="before")
    @classmethod
    def _as_list(cls, value: Any) -> Any:
        return [] if value is None else [value] if isinstance(value, str) else value

    def model_post_init(self, context: Any, /) -> None:
        """Load the model, and ask it for what was not said."""
        super().model_post_init(context)
        if self.segmenter is not None:
            check_segmenter(self.segmenter)
        arguments.merge(self._defaults(), {})
        loading.check_outputs_to_remove(self.tokenizer_outputs_to_remove)
        loads = self.lm is None and self.model is None and self.base_url is None
        if self.base_url is not None:
            self.lm = self._remote(self.base_url)
            settle(self, self.lm, ArgumentError)
        elif self.lm is None:
            self.lm = loading.load(
                self.model_name,
                self.tokenizer_name,
                self.model,
                self.tokenizer,
                {"device_map": self.device_map, **self.model_kwargs},
                self.tokenizer_kwargs,
                {
                    "method": self.method,
                    "strip_numbering": self.strip_numbering,
                    "backend": self.backend,
                    "cache": self.document_cache,
                },
            )
        elif isinstance(self.lm, DebiasedLM):
            settle(self, self.lm, ArgumentError)
        else:
            raise ArgumentError(f"lm={type(self.lm).__name__}; expected a ragbias.DebiasedLM")
        if not loads and "model_name" not in self.model_fields_set:
            self.model_name = self.lm.name or type(self.lm.model).__name__
        methods.get(self.method, self.lm.name)
        self.context_window = loading.context_window(self.lm.window, self.context_window)
        if self.is_chat_model is None:
            self.is_chat_model = bool(self.lm.tokenizer.chat_template)
        self._template_knows_tools = knows_tools(self.lm)

    def _remote(self, base_url: str) -> RemoteLM:
        """The model behind a server."""
        check_model_only_at_server(self, ArgumentError)
        name = self.model_name if "model_name" in self.model_fields_set else None
        key = self.api_key if self.api_key is not None else os.environ.get("RAGBIAS_API_KEY", "")
        return RemoteLM(base_url, name, self.method, key, self.timeout, self.max_retries)

    @classmethod
    def class_name(cls) -> str:
        """Name in serialised components."""
        return "RagBiasLLM"

    @property
    def metadata(self) -> LLMMetadata:
        """What LlamaIndex needs to know to pack chunks and choose prompts."""
        assert self.context_window is not None
        assert self.is_chat_model is not None
        return LLMMetadata(
            context_window=self.context_window,
            num_output=self.max_new_tokens,
            is_chat_model=self.is_chat_model,
            is_function_calling_model=self.is_chat_model and self._template_knows_tools and self._uses_chat_template,
            model_name=self.model_name,
        )

    def token_ids(self, text: str) -> list[int]:
        """The ids of a text's tokens by the model's own tokenizer, without special ones.

        LlamaIndex counts by a tokenizer of its own unless it is given one: `Settings.tokenizer = llm.token_ids`,
        `ChatMemoryBuffer.from_defaults(tokenizer_fn=llm.token_ids)`, `TokenCountingHandler(tokenizer=llm.token_ids)`.
        """
        ids: list[int] = self.lm.tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids

    def to_payload(self) -> dict[str, Any]:
        """What observers may see; the method is part of the LLM's identity."""
        return {**super().to_payload(), "method": str(self.method)}

    @property
    def last_report(self) -> dict[str, Any] | None:
        """The report of this LLM's last answer in the current thread or task."""
        return reports.last(self._owner)

    @llm_completion_callback()
    def complete(
        self, prompt: str, formatted: bool = False, **kwargs: Unpack[CompletionArguments]
    ) -> CompletionResponse:
        """Answer a prompt; `formatted` says that templates were applied already."""
        return self._completion(prompt, formatted, kwargs).answer(AnswerSoFar.completion)

    @llm_chat_callback()
    def chat(self, messages: Sequence[ChatMessage], **kwargs: Unpack[ChatArguments]) -> ChatResponse:
        """Answer chat messages."""
        return self._chat(messages, kwargs).answer(AnswerSoFar.chat)

    @llm_completion_callback()
    def stream_complete(
        self, prompt: str, formatted: bool = False, **kwargs: Unpack[CompletionArguments]
    ) -> CompletionResponseGen:
        """Answer a prompt piece by piece; closing or dropping the generator stops the computation."""
        return self._completion(prompt, formatted, kwargs).stream(AnswerSoFar.completion)

    @llm_chat_callback()
    def stream_chat(self, messages: Sequence[ChatMessage], **kwargs: Unpack[ChatArguments]) -> ChatResponseGen:
        """Answer chat messages piece by piece; closing or dropping the generator stops the computation."""
        return self._chat(messages, kwargs).stream(AnswerSoFar.chat)

    @llm_completion_callback()
    async def acomplete(
        self, prompt: str, formatted: bool = False, **kwargs: Unpack[CompletionArguments]
    ) -> CompletionResponse:
        """As `complete`, with the event loop free."""
        return await aanswer(lambda: self._completion(prompt, formatted, kwargs), AnswerSoFar.completion)

    @llm_chat_callback()
    async def achat(self, messages: Sequence[ChatMessage], **kwargs: Unpack[ChatArguments]) -> ChatResponse:
        """As `chat`, with the event loop free."""
        return await aanswer(lambda: self._chat(messages, kwargs), AnswerSoFar.chat)

    @llm_completion_callback()
    async def astream_complete(
        self, prompt: str, formatted: bool = False, **kwargs: Unpack[CompletionArguments]
    ) -> CompletionResponseAsyncGen:
        """As `stream_complete`, with the event loop free."""
        return await astream(lambda: self._completion(prompt, formatted, kwargs), AnswerSoFar.completion)

    @llm_chat_callback()
    async def astream_chat(
        self, messages: Sequence[ChatMessage], **kwargs: Unpack[ChatArguments]
    ) -> ChatResponseAsyncGen:
        """As `stream_chat`, with the event loop free."""
        return await astream(lambda: self._chat(messages, kwargs), AnswerSoFar.chat)

    # tools

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
        """The arguments of `chat`; see `tool_calls.offered` and `tool_calls.answer_format`."""
        if isinstance(user_msg, str):
            user_msg = ChatMessage(role=MessageRole.USER, content=user_msg)
        shown, required = tool_calls.offered(tools, tool_choice)
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
        """The tool calls of a response.

        Raises:
            RagBiasError: there is none, and `error_on_no_tool_call`.
        """
        return tool_calls.selections(response, error_on_no_tool_call)

    # from a call to a prepared request

    def _completion_prompt(self, prompt: str, formatted: bool) -> str:
        if formatted:
            return prompt
        own_format = self.query_wrapper_prompt or self.completion_to_prompt is not default_completion_to_prompt
        if self.is_chat_model and not own_format:
            return self._chat_prompt([ChatMessage(content=prompt)])
        if self.query_wrapper_prompt:
            prompt = self.query_wrapper_prompt.format(query_str=prompt)
        if self.system_prompt:
            prompt = f"{self.system_prompt}\n\n{prompt}"
        assert self.completion_to_prompt is not None
        return self.completion_to_prompt(prompt)

    @property
    def _uses_chat_template(self) -> bool:
        return self.messages_to_prompt is generic_messages_to_prompt and bool(self.lm.tokenizer.chat_template)

    def _chat_prompt(self, messages: Sequence[ChatMessage], tools: Sequence[dict[str, Any]] = ()) -> str:
        messages = chat_messages.with_system_prompt(messages, self.system_prompt)
        assert self.messages_to_prompt is not None
        if tools and not (self._template_knows_tools and self._uses_chat_template):
            raise ArgumentError(
                f"the chat template of {self.model_name!r} does not print tools; use a model that was trained to call "
                "them, leave messages_to_prompt alone, or use a ReActAgent, which needs no template"
            )
        if self._uses_chat_template:
            text: str = self.lm.chat_text(chat_messages.to_dicts(messages), tools or None)
            return text
        return self.messages_to_prompt(messages)

    def _prepare(self, text: str, call: Mapping[str, Any], system: Sequence[str] = ()) -> PreparedCall:
        """Find the documents now: a generator that is consumed later runs outside of its synthesis."""
        given = arguments.merge(self._defaults(), call)
        method = methods.get(given.pop("method"), self.lm.name)
        named = given.pop("documents", None)
        found = documents.find(text, named, self.segmenter, self.include_headers, [*system, self.system_prompt or ""])
        request = self.lm.prepare(text, boundaries=found, method=method)
        if method.needs_documents:
            self._missing.check(
                request, self.on_missing, documents=named, segmenter=self.segmenter, at_end=listener.at_end()
            )
        return PreparedCall(self._owner, self.lm, request, {**given, "stop_token_ids": self.stopping_ids})

    def _completion(self, prompt: str, formatted: bool, call: Mapping[str, Any]) -> PreparedCall:
        return self._prepare(self._completion_prompt(prompt, formatted), call)

    def _chat(self, messages: Sequence[ChatMessage], call: Mapping[str, Any]) -> PreparedCall:
        call = dict(call)
        tools = call.pop("tools", None) or ()
        parallel, required = call.pop("parallel_tool_calls", True), call.pop("tool_required", False)
        form = tool_calls.answer_format(self.lm, tools, required)
        system = [message.content or "" for message in messages if message.role == MessageRole.SYSTEM]
        text = self._chat_prompt(messages, tools)
        if form.beginning:  # of a model behind a server it is empty, and the text has to stay the conversation it is
            text += form.beginning
        prepared = self._prepare(text, call, system)
        return replace(prepared, form=form, parallel=parallel, arguments={**prepared.arguments, **form.settings})

    def _defaults(self) -> dict[str, Any]:
        return {
            "method": self.method,
            "max_new_tokens": self.max_new_tokens,
            "temperature": self.temperature,
            "stop": self.stop,
            "seed": self.seed,
            **self.generate_kwargs,
        }
