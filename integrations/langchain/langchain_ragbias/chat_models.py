"""The chat model."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from typing import Any

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun, Callbacks
from langchain_core.language_models import BaseChatModel, LangSmithParams
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.messages.ai import UsageMetadata
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult, LLMResult
from langchain_core.runnables import run_in_executor

from langchain_ragbias import reports
from langchain_ragbias.base import RagBiasModel, parent_run
from langchain_ragbias.collecting import artifact_texts
from langchain_ragbias.messages import template_messages
from langchain_ragbias.pump import pieces
from ragbias.decoding import Stream
from ragbias.lm import Generation


class ChatRagBias(RagBiasModel, BaseChatModel):
    """A local Hugging Face chat model that answers without position bias over the retrieved documents.

    .. code-block:: python

        from langchain_ragbias import ChatRagBias

        llm = ChatRagBias(model_id="Qwen/Qwen2.5-7B-Instruct", debias="pine")
        chain = create_retrieval_chain(retriever, create_stuff_documents_chain(llm, prompt))
        chain.invoke({"input": question})

    The documents are found in the templated prompt: those given on the call or by ``llm.bind(documents=docs)``, else
    those that the chain retrieved. ``message.response_metadata["ragbias"]`` and ``llm.last_report`` say what was found
    and what ran.

    Args of each call, besides LangChain's own: ``documents`` (``Document`` objects or strings), ``debias``,
    ``max_tokens``, ``temperature``, ``top_p``, ``top_k``, ``seed``, ``stop``.
    """

    model_config = RagBiasModel.model_config

    @property
    def _llm_type(self) -> str:
        return "ragbias-chat"

    def _get_ls_params(self, stop: list[str] | None = None, **kwargs: Any) -> LangSmithParams:
        params = super()._get_ls_params(stop=stop, **kwargs)
        return LangSmithParams(**{**params, "ls_provider": "ragbias", "ls_model_name": self.model_id})

    async def agenerate(
        self,
        messages: list[list[BaseMessage]],
        stop: list[str] | None = None,
        callbacks: Callbacks = None,
        **kwargs: Any,
    ) -> LLMResult:
        if getattr(callbacks, "parent_run_id", None) is None:
            reports.begin()  # here, as LangChain answers each conversation in a task, whose context is lost
        return await super().agenerate(messages, stop, callbacks, **kwargs)

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        if parent_run(run_manager) is None:
            reports.begin()
        return self._result(self._answer(messages, stop, run_manager, kwargs))

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        manager = run_manager.get_sync() if run_manager else None
        return self._result(await run_in_executor(None, self._answer, messages, stop, manager, kwargs))

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        if parent_run(run_manager) is None:
            reports.begin()
        with self._open_stream(messages, stop, run_manager, kwargs) as stream:
            for piece in stream:
                yield ChatGenerationChunk(message=AIMessageChunk(content=piece))
            yield self._last_chunk(stream.generation)

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        manager = run_manager.get_sync() if run_manager else None
        if parent_run(manager) is None:
            reports.begin()
        async with aclosing(pieces(lambda: self._open_stream(messages, stop, manager, kwargs))) as events:
            async for piece in events:
                if isinstance(piece, Generation):
                    yield self._last_chunk(piece)
                else:
                    yield ChatGenerationChunk(message=AIMessageChunk(content=piece))

    # one request

    def _request(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None,
        run_manager: CallbackManagerForLLMRun | None,
        given: dict[str, Any],
    ) -> dict[str, Any]:
        """The arguments of ``DebiasedLM.generate`` for a conversation."""
        call = self._call_arguments(stop, given)
        text = self.lm.chat_text(template_messages(messages))
        boundaries = self._boundaries(text, call, parent_run(run_manager), artifact_texts(messages))
        return {"prompt": text, "boundaries": boundaries, "method": call.method, **call.settings}

    def _answer(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None,
        run_manager: CallbackManagerForLLMRun | None,
        given: dict[str, Any],
    ) -> Generation:
        answer: Generation = self.lm.generate(**self._request(messages, stop, run_manager, given))
        return answer

    def _open_stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None,
        run_manager: CallbackManagerForLLMRun | None,
        given: dict[str, Any],
    ) -> Stream:
        stream: Stream = self.lm.stream(**self._request(messages, stop, run_manager, given))
        return stream

    # one answer

    def _result(self, generation: Generation) -> ChatResult:
        message = AIMessage(
            generation.text, usage_metadata=_usage(generation), response_metadata=self._about(generation)
        )
        return ChatResult(generations=[ChatGeneration(message=message)])

    def _last_chunk(self, generation: Generation) -> ChatGenerationChunk:
        message = AIMessageChunk(
            content="",
            usage_metadata=_usage(generation),
            response_metadata=self._about(generation),
            chunk_position="last",
        )
        return ChatGenerationChunk(message=message)

    def _about(self, generation: Generation) -> dict[str, Any]:
        return {
            "model_name": self.model_id,
            "finish_reason": generation.finish_reason,
            "ragbias": self._note(generation),
        }


def _usage(generation: Generation) -> UsageMetadata:
    usage = generation.usage
    return UsageMetadata(
        input_tokens=usage.prompt_tokens, output_tokens=usage.completion_tokens, total_tokens=usage.total_tokens
    )
