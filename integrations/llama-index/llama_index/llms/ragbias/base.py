"""The LLM class: LlamaIndex on the outside, `ragbias.DebiasedLM` on the inside."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from contextlib import aclosing, closing
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeVar, cast

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
)
from llama_index.core.bridge.pydantic import ConfigDict, Field, PrivateAttr, field_validator
from llama_index.core.llms.callbacks import llm_chat_callback, llm_completion_callback
from llama_index.core.llms.llm import LLM, default_completion_to_prompt
from llama_index.core.prompts import PromptTemplate
from llama_index.llms.ragbias import arguments, asynchrony, documents, loading
from llama_index.llms.ragbias import messages as chat_messages
from llama_index.llms.ragbias.documents import OnMissing
from llama_index.llms.ragbias.responses import Answer

from ragbias import methods
from ragbias.boundaries import Boundaries
from ragbias.decoding import Stream

_Response = TypeVar("_Response")

# One report per LLM in each context: threads and tasks see their own.
_reports: ContextVar[Mapping[object, dict[str, Any]]] = ContextVar("ragbias_llama_index_reports")


@dataclass(frozen=True)
class _Request:
    text: str
    found: Boundaries
    arguments: dict[str, Any]


class RagBiasLLM(LLM):
    """A local Hugging Face model whose answers do not depend on where in the prompt a document stands.

    It takes the place of `HuggingFaceLLM`; retriever, prompts and synthesizers stay as they are. The retrieved
    documents are found in the final prompt: from `documents=` on the call or `ragbias.documents(...)`, else from the
    nodes of the synthesis that makes the call, else among the texts that LlamaIndex retrieved lately.

    A call takes `documents`, `debias`, `max_tokens` (or `max_new_tokens`), `temperature`, `top_p`, `top_k`, `stop`,
    `seed` and any setting of transformers' `GenerationConfig`. Each response says in `additional_kwargs["ragbias"]`
    what ran on which documents, and has the token usage in `additional_kwargs` and `raw["usage"]`; of a stream, the
    last chunk does.

    Example:
        >>> llm = RagBiasLLM(model_name="Qwen/Qwen2.5-7B-Instruct", debias="pine")
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

    debias: Any = Field(default="pine", description="Method against position bias: its name or an instance.")
    on_missing: OnMissing = Field(
        default="warn", description="If documents are expected and do not stand in the prompt."
    )

    context_window: int | None = Field(
        default=None, gt=0, description="Tokens of prompt and answer; None: the model's."
    )
    is_chat_model: bool | None = Field(default=None, description="None: whether the tokenizer has a chat template.")
    max_new_tokens: int = Field(default=256, gt=0, description="Most tokens of an answer.")
    temperature: float | None = Field(default=None, ge=0, description="0: greedy; None: as the model is configured.")
    stop: list[str] = Field(default_factory=list, description="An answer ends before any of these strings.")
    stopping_ids: list[int] = Field(default_factory=list, description="An answer ends at any of these tokens.")
    seed: int | None = Field(default=None, description="Makes sampling repeatable.")
    generate_kwargs: dict[str, Any] = Field(default_factory=dict, description="More settings of generation.")

    _key: object = PrivateAttr(default_factory=object)
    _warned: set[str] = PrivateAttr(default_factory=set)

    @field_validator("query_wrapper_prompt", mode="before")
    @classmethod
    def _as_template(cls, value: Any) -> Any:
        return PromptTemplate(value) if isinstance(value, str) else value

    def model_post_init(self, context: Any, /) -> None:
        """Load the model, and ask it for what was not said."""
        super().model_post_init(context)
        methods.get(self.debias, self.model_name)
        loads = self.lm is None and self.model is None
        if self.lm is None:
            self.lm = loading.load(
                self.model_name,
                self.tokenizer_name,
                self.model,
                self.tokenizer,
                {"device_map": self.device_map, **self.model_kwargs},
                self.tokenizer_kwargs,
                self.debias,
            )
        if self.stopping_ids:
            loading.add_end_tokens(self.lm, self.stopping_ids, loads)
        self.context_window = loading.context_window(self.lm.window, self.context_window)
        if self.is_chat_model is None:
            self.is_chat_model = bool(self.lm.tokenizer.chat_template)

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
            model_name=self.model_name,
        )

    def to_payload(self) -> dict[str, Any]:
        """What observers may see; the method is part of the LLM's identity."""
        return {**super().to_payload(), "debias": str(self.debias)}

    @property
    def last_report(self) -> dict[str, Any] | None:
        """The report of this LLM's last answer in the current thread or task."""
        return _reports.get({}).get(self._key)

    # The work

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

    def _chat_prompt(self, messages: Sequence[ChatMessage]) -> str:
        messages = chat_messages.with_system_prompt(messages, self.system_prompt)
        assert self.messages_to_prompt is not None
        if self.messages_to_prompt is generic_messages_to_prompt and self.lm.tokenizer.chat_template:
            return str(self.lm.chat_text(chat_messages.to_dicts(messages)))
        return self.messages_to_prompt(messages)

    def _request(self, text: str, call: dict[str, Any]) -> _Request:
        """Find the documents now: a generator that is consumed later runs outside of its synthesis."""
        given = arguments.merge(self._defaults(), call)
        method = methods.get(given.pop("debias"), self.model_name)
        found = documents.find(text, given.pop("documents", None))
        documents.enforce(found, method, self.on_missing, self._warned)
        return _Request(text, found, {"method": method, **given})

    def _completion(self, prompt: str, formatted: bool, call: dict[str, Any]) -> _Request:
        return self._request(self._completion_prompt(prompt, formatted), call)

    def _chat(self, messages: Sequence[ChatMessage], call: dict[str, Any]) -> _Request:
        return self._request(self._chat_prompt(messages), call)

    def _defaults(self) -> dict[str, Any]:
        return {
            "debias": self.debias,
            "max_new_tokens": self.max_new_tokens,
            "temperature": self.temperature,
            "stop": self.stop,
            "seed": self.seed,
            **self.generate_kwargs,
        }

    def _generate(self, request: _Request) -> Answer:
        generation = self.lm.generate(request.text, boundaries=request.found, **request.arguments)
        return self._remember(Answer(generation.text, generation=generation))

    def _open(self, request: _Request) -> Stream:
        return cast("Stream", self.lm.stream(request.text, boundaries=request.found, **request.arguments))

    def _remember(self, answer: Answer) -> Answer:
        if answer.report is not None:
            _reports.set({**_reports.get({}), self._key: answer.report})
        return answer

    def _stream(self, stream: Stream, respond: Callable[[Answer], _Response]) -> Generator[_Response, None, None]:
        text = ""
        with closing(stream):
            for delta in stream:
                text += delta
                yield respond(Answer(text, delta))
        yield respond(self._remember(Answer(text, "", stream.generation)))

    async def _astream(self, stream: Stream, respond: Callable[[Answer], _Response]) -> AsyncGenerator[_Response, None]:
        text = ""
        async with aclosing(asynchrony.pieces(stream)) as pieces:
            async for delta in pieces:
                text += delta
                yield respond(Answer(text, delta))
        yield respond(self._remember(Answer(text, "", stream.generation)))

    async def _agenerate(self, request: Callable[[], _Request]) -> Answer:
        """By a stream, so that the computation stops when the awaiting task is cancelled."""
        stream = await asynchrony.call(lambda: self._open(request()))
        async with aclosing(asynchrony.pieces(stream)) as pieces:
            async for _ in pieces:
                pass
        return self._remember(Answer(stream.generation.text, generation=stream.generation))

    # LlamaIndex's eight ways to ask

    @llm_completion_callback()
    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        """Answer a prompt; `formatted` says that templates were applied already."""
        return self._generate(self._completion(prompt, formatted, kwargs)).completion()

    @llm_chat_callback()
    def chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        """Answer chat messages."""
        return self._generate(self._chat(messages, kwargs)).chat()

    @llm_completion_callback()
    def stream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponseGen:
        """Answer a prompt piece by piece; closing or dropping the generator stops the computation."""
        return self._stream(self._open(self._completion(prompt, formatted, kwargs)), Answer.completion)

    @llm_chat_callback()
    def stream_chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponseGen:
        """Answer chat messages piece by piece; closing or dropping the generator stops the computation."""
        return self._stream(self._open(self._chat(messages, kwargs)), Answer.chat)

    @llm_completion_callback()
    async def acomplete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        """As `complete`, with the event loop free."""
        return (await self._agenerate(lambda: self._completion(prompt, formatted, kwargs))).completion()

    @llm_chat_callback()
    async def achat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        """As `chat`, with the event loop free."""
        return (await self._agenerate(lambda: self._chat(messages, kwargs))).chat()

    @llm_completion_callback()
    async def astream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponseAsyncGen:
        """As `stream_complete`, with the event loop free."""
        stream = await asynchrony.call(lambda: self._open(self._completion(prompt, formatted, kwargs)))
        return self._astream(stream, Answer.completion)

    @llm_chat_callback()
    async def astream_chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponseAsyncGen:
        """As `stream_chat`, with the event loop free."""
        stream = await asynchrony.call(lambda: self._open(self._chat(messages, kwargs)))
        return self._astream(stream, Answer.chat)
