"""``ChatRagBias``, the chat model."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any, TypeVar, cast
from uuid import UUID

from langchain_core.callbacks import Callbacks
from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.messages.ai import UsageMetadata
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult, LLMResult
from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.runnables.config import get_config_list
from pydantic import BaseModel, model_validator

from langchain_ragbias.arguments import FORMAT, Config, Stop, TypedCalls
from langchain_ragbias.base import AsyncRunManager, RagBiasModel, RunManager
from langchain_ragbias.batching import arun_batched, current_slot, raise_first_error, run_batched
from langchain_ragbias.listener import artifact_texts, begin_request, listener, parent_run, reports
from langchain_ragbias.llms import RagBiasPipeline
from langchain_ragbias.messages import (
    Schema,
    ToolLike,
    answer_message,
    last_chunk,
    parse_answers,
    response_format,
    template_messages,
    tool_schemas,
)
from ragbias import Generation
from ragbias.errors import ArgumentError, ChatTemplateError, WrongTypeError
from ragbias.frameworks import PreparedCall, StreamedPart, ToolCall, answer_format, join_parts, render_conversation
from ragbias.frameworks import asyncio_bridge as bridge

T = TypeVar("T")
Configs = Config | list[RunnableConfig]


class ChatRagBias(TypedCalls[AIMessage, AIMessageChunk], RagBiasModel, BaseChatModel):  # type: ignore[misc]  # see TypedCalls
    """A local Hugging Face chat model that answers without position bias over the retrieved documents.

    .. code-block:: python

        from langchain_ragbias import ChatRagBias

        llm = ChatRagBias(model_id="Qwen/Qwen2.5-7B-Instruct", method="pine")
        chain = create_retrieval_chain(retriever, create_stuff_documents_chain(llm, prompt))
        chain.invoke({"input": question})

    The retrieved documents are located in the prompt automatically. To choose them yourself, pass ``documents=`` to the
    call or to ``llm.bind``. ``message.response_metadata["ragbias"]`` and ``llm.last_report`` report the method and the
    documents.

    In addition to LangChain's arguments, calls take those of ``CallArguments``.

    ``batch``, ``abatch`` and ``generate`` run conversations in padded batches of ``batch_size``.

    ``ChatRagBias(base_url="http://127.0.0.1:8000")`` uses a model behind a server of ``ragbias serve``. The client
    locates the documents, and the server runs the method. ``timeout``, ``max_retries`` and ``api_key`` are for servers.
    """

    model_config = RagBiasModel.model_config

    streaming: bool = False
    """Whether ``invoke`` streams the answer, so that callbacks receive its tokens."""

    @model_validator(mode="before")
    @classmethod
    def _accept_llm(cls, values: Any) -> Any:
        """Take the model and settings from ``llm``, as ``ChatHuggingFace(llm=...)`` does."""
        if not isinstance(values, dict) or "llm" not in values:
            return values
        values = dict(values)
        llm = values.pop("llm")
        if not isinstance(llm, RagBiasPipeline):
            raise WrongTypeError(f"llm={type(llm).__name__}; expected a RagBiasPipeline, or give model_id")
        shared = {name: getattr(llm, name) for name in RagBiasModel.model_fields if name in llm.model_fields_set}
        return {**shared, "model_id": llm.model_id, "lm": llm.lm, **values}

    @property
    def _llm_type(self) -> str:
        return "ragbias-chat"

    def batch(
        self,
        inputs: list[LanguageModelInput],
        config: Configs = None,
        *,
        return_exceptions: bool = False,
        **kwargs: Any,
    ) -> list[AIMessage]:
        if len(inputs) < 2:
            return super().batch(inputs, config, return_exceptions=return_exceptions, **kwargs)
        runs, size = self._make_runs(partial(self.invoke, **kwargs), inputs, config)
        return self._finish_batch(run_batched(self, runs, size, self.lm.answer), return_exceptions)

    async def abatch(
        self,
        inputs: list[LanguageModelInput],
        config: Configs = None,
        *,
        return_exceptions: bool = False,
        **kwargs: Any,
    ) -> list[AIMessage]:
        if len(inputs) < 2:
            return await super().abatch(inputs, config, return_exceptions=return_exceptions, **kwargs)
        runs, size = self._make_runs(partial(self.ainvoke, **kwargs), inputs, config)
        return self._finish_batch(await arun_batched(self, runs, size, self.lm.answer), return_exceptions)

    def generate(
        self,
        messages: list[list[BaseMessage]],
        stop: Stop = None,
        callbacks: Callbacks = None,
        *,
        run_id: UUID | None = None,
        **kwargs: Any,
    ) -> LLMResult:
        if len(messages) < 2:
            return self._record_report(super().generate(messages, stop, callbacks, run_id=run_id, **kwargs))
        one = partial(super().generate, stop=stop, callbacks=callbacks, **kwargs)
        runs = [partial(one, [chat], run_id=id) for chat, id in _with_ids(messages, run_id)]
        return self._merge_results(run_batched(self, runs, self.batch_size, self.lm.answer))

    async def agenerate(
        self,
        messages: list[list[BaseMessage]],
        stop: Stop = None,
        callbacks: Callbacks = None,
        *,
        run_id: UUID | None = None,
        **kwargs: Any,
    ) -> LLMResult:
        if getattr(callbacks, "parent_run_id", None) is None:
            reports.forget()  # here, because changes in the contexts of LangChain's tasks are lost
        if len(messages) < 2:
            return self._record_report(await super().agenerate(messages, stop, callbacks, run_id=run_id, **kwargs))
        one = partial(super().agenerate, stop=stop, callbacks=callbacks, **kwargs)
        runs = [partial(one, [chat], run_id=id) for chat, id in _with_ids(messages, run_id)]
        return self._merge_results(await arun_batched(self, runs, self.batch_size, self.lm.answer))

    def get_num_tokens_from_messages(self, messages: list[BaseMessage], tools: Sequence[ToolLike] | None = None) -> int:
        """Count the tokens of the rendered prompt.

        If the template rejects the messages, e.g. because they are only part of a conversation, the tokens of each
        message and its role are counted. For a model behind a server, the number is approximate, because only the
        server has the template.
        """
        try:
            text = ""
            if messages:
                text = self.lm.chat_text(join_parts(template_messages(messages)), tool_schemas(tools))
            return len(self.get_token_ids(text))
        except (ArgumentError, ChatTemplateError):
            return super().get_num_tokens_from_messages(messages)

    def _make_runs(
        self, invoke: Callable[..., T], inputs: Sequence[LanguageModelInput], config: Configs
    ) -> tuple[list[Callable[[], T]], int]:
        """Return the runs and the batch size. A run is a function that invokes the model with one input."""
        configs = get_config_list(config, len(inputs))
        runs: list[Callable[[], T]] = [partial(invoke, *pair) for pair in zip(inputs, configs, strict=True)]
        limit = configs[0].get("max_concurrency") or self.batch_size
        return runs, max(1, min(self.batch_size, limit))

    def _finish_batch(self, results: list[AIMessage | BaseException], return_exceptions: bool) -> list[AIMessage]:
        self._record_report(results[-1])
        if return_exceptions:
            return cast(list[AIMessage], results)
        return raise_first_error(results)

    def _merge_results(self, outcomes: Sequence[LLMResult | BaseException]) -> LLMResult:
        results = raise_first_error(outcomes)
        return self._record_report(
            LLMResult(
                generations=[generations for result in results for generations in result.generations],
                llm_output=self._combine_llm_outputs([result.llm_output for result in results]),
                run=[run for result in results for run in result.run or []],
            )
        )

    # LangChain's hooks

    def _generate(
        self, messages: list[BaseMessage], stop: Stop = None, run_manager: RunManager = None, **kwargs: Any
    ) -> ChatResult:
        parent = begin_request(run_manager)
        return self._to_result(*self._respond(messages, stop, parent, kwargs))

    async def _agenerate(
        self, messages: list[BaseMessage], stop: Stop = None, run_manager: AsyncRunManager = None, **kwargs: Any
    ) -> ChatResult:
        parent = parent_run(run_manager)  # ``agenerate`` deletes the earlier reports
        return self._to_result(*await bridge.in_thread(partial(self._respond, messages, stop, parent, kwargs)))

    def _stream(
        self, messages: list[BaseMessage], stop: Stop = None, run_manager: RunManager = None, **kwargs: Any
    ) -> Iterator[ChatGenerationChunk]:
        parent = begin_request(run_manager)
        prepared = self._prepare(messages, stop, parent, kwargs)
        yield from prepared.stream(partial(self._to_chunk, prepared))

    async def _astream(
        self, messages: list[BaseMessage], stop: Stop = None, run_manager: AsyncRunManager = None, **kwargs: Any
    ) -> AsyncIterator[ChatGenerationChunk]:
        parent = begin_request(run_manager)
        prepared = await bridge.in_thread(lambda _: self._prepare(messages, stop, parent, kwargs))
        async with aclosing(prepared.astream(partial(self._to_chunk, prepared))) as chunks:
            async for chunk in chunks:
                yield chunk

    def bind_tools(
        self, tools: Sequence[ToolLike], *, tool_choice: str | bool | dict[str, Any] | None = None, **kwargs: Any
    ) -> Runnable[LanguageModelInput, AIMessage]:
        """Offer tools to the model through its chat template.

        Args:
            tools: functions, LangChain tools, pydantic classes, TypedDicts or JSON schemas.
            tool_choice: ``"auto"``, ``"none"``, ``"any"`` (also ``"required"`` or ``True``), or the name of a tool.
                ``"any"`` or a name forces the answer to begin like a tool call, but the call may be malformed.
            kwargs: other arguments for each call of the model.

        Raises:
            UnsupportedToolsError: the chat template does not support tools, or its format for required calls is
                unknown.
            ArgumentError: ``tool_choice`` names an unknown tool, or a tool has no schema.
        """
        schemas = tool_schemas(tools)
        answer_format(self.lm, schemas, tool_choice)
        if tool_choice is not None:
            kwargs["tool_choice"] = tool_choice
        return self.bind(tools=schemas, **kwargs)

    def with_structured_output(
        self, schema: Schema, *, include_raw: bool = False, method: str = "function_calling", **kwargs: Any
    ) -> Runnable[LanguageModelInput, dict[str, Any] | BaseModel]:
        """Return a runnable whose answers are objects of a schema.

        Args:
            schema: a pydantic class, a TypedDict or a JSON schema.
            include_raw: whether to return dicts of ``raw``, ``parsed`` and ``parsing_error`` instead of raising errors.
            method: ``"function_calling"`` requires a tool call. ``"json_schema"`` adds the schema to the prompt.
                ``"json_mode"`` requires JSON, and expects that the prompt names the fields.
            kwargs: LangChain's ``strict``, which has no effect.

        Raises:
            UnsupportedToolsError: the method is ``function_calling``, and the chat template does not support tools.
            ArgumentError: the method is unknown.
        """
        if method == "function_calling":
            return super().with_structured_output(schema, include_raw=include_raw, **kwargs)
        if method not in ("json_schema", "json_mode"):
            raise ArgumentError(f"method={method!r}; expected 'function_calling', 'json_schema' or 'json_mode'")
        llm = self.bind(
            response_format=response_format(schema, method),
            ls_structured_output_format={"kwargs": {"method": method}, "schema": schema},
        )
        return parse_answers(llm, schema, include_raw)

    def _respond(
        self,
        messages: list[BaseMessage],
        stop: Stop,
        parent: UUID | None,
        arguments: dict[str, Any],
        cancelled: threading.Event | None = None,
    ) -> tuple[PreparedCall, Generation]:
        prepared = self._prepare(messages, stop, parent, arguments)
        slot = current_slot.get()
        batch = slot.take(self) if slot else None
        if batch:
            return prepared, batch.submit(prepared.request, prepared.settings).result()
        return prepared, prepared.run(cancelled)

    def _prepare(
        self, messages: list[BaseMessage], stop: Stop, parent: UUID | None, arguments: dict[str, Any]
    ) -> PreparedCall:
        given = {name: value for name, value in arguments.items() if name not in FORMAT}
        call = self.merge_arguments(self._convert_arguments(given, stop), self.model_id, self.batch_size)
        tools = tool_schemas(arguments.get("tools"))
        form = answer_format(self.lm, tools, arguments.get("tool_choice"), arguments.get("response_format"))
        chat = render_conversation(self.lm.chat_text, template_messages(messages), form, call.documents)
        artifacts = [*chat.blocks, *artifact_texts(messages)]
        located = listener.runs.locate(parent, chat.prompt, call.documents, self.segmenter, artifacts, chat.boundaries)
        return self.prepare_call(chat.prompt, call, located, form, chat.turns)

    def _to_result(self, prepared: PreparedCall, generation: Generation) -> ChatResult:
        content, calls = prepared.form.read(generation.text)
        answer = answer_message(content, calls, **self._metadata(prepared, generation, calls))
        return ChatResult(generations=[ChatGeneration(message=answer)])

    def _to_chunk(self, prepared: PreparedCall, part: StreamedPart) -> ChatGenerationChunk:
        if part.generation is None:
            return ChatGenerationChunk(message=AIMessageChunk(content=part.new))
        content, calls = prepared.form.read(part.generation.text)
        metadata = self._metadata(prepared, part.generation, calls)
        return ChatGenerationChunk(message=last_chunk(content[len(part.shown) :], calls, **metadata))

    def _metadata(self, prepared: PreparedCall, generation: Generation, calls: Sequence[ToolCall]) -> dict[str, Any]:
        metadata = {"model_name": self.model_id, **prepared.finish(generation)}
        if calls:
            metadata["finish_reason"] = "tool_calls"
        return {"usage_metadata": _usage(generation), "response_metadata": metadata}


def _usage(generation: Generation) -> UsageMetadata:
    usage = generation.usage
    return UsageMetadata(
        input_tokens=usage.prompt_tokens,
        output_tokens=usage.completion_tokens,
        total_tokens=usage.total_tokens,
        input_token_details={"cache_read": usage.cached_tokens},
    )


def _with_ids(messages: Sequence[T], run_id: UUID | None) -> Iterator[tuple[T, UUID | None]]:
    """Pair each conversation with a run id. ``run_id`` belongs to the first conversation."""
    return zip(messages, [run_id, *[None] * (len(messages) - 1)], strict=True)
