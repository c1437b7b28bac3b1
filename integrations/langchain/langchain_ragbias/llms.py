"""``RagBiasPipeline``, the text completion model."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any
from uuid import UUID

from langchain_core.callbacks import Callbacks
from langchain_core.language_models import BaseLLM
from langchain_core.outputs import Generation as TextGeneration
from langchain_core.outputs import GenerationChunk, LLMResult

from langchain_ragbias.arguments import Stop, TypedCalls
from langchain_ragbias.base import AsyncRunManager, RagBiasModel, RunManager
from langchain_ragbias.listener import begin_request, listener
from ragbias import Generation
from ragbias.frameworks import PreparedCall, StreamedPart
from ragbias.frameworks import asyncio_bridge as bridge
from ragbias.generation import Usage

# Arguments of the current call. LangChain's cache ignores them unless they are identifying parameters.
_arguments: ContextVar[dict[str, Any] | None] = ContextVar("langchain_ragbias_call", default=None)
PromptCallbacks = Callbacks | list[Callbacks]  # the callbacks for all prompts, or the callbacks for each prompt
RUN_ARGUMENTS = ("tags", "metadata", "run_name", "run_id")


@contextmanager
def _added_to_cache_key(arguments: dict[str, Any]) -> Iterator[None]:
    token = _arguments.set({name: value for name, value in arguments.items() if name not in RUN_ARGUMENTS})
    try:
        yield
    finally:
        _arguments.reset(token)


class RagBiasPipeline(TypedCalls[str, str], RagBiasModel, BaseLLM):  # type: ignore[misc]  # see TypedCalls
    """A local Hugging Face model that completes text without position bias over the retrieved documents.

    It replaces ``HuggingFacePipeline``. It applies no chat template, and returns only the new text. Several prompts run
    in padded batches of ``batch_size``. Calls take ``CallArguments``, except ``tools``, ``tool_choice`` and
    ``response_format``. The report is in ``generation_info["ragbias"]``.
    """

    model_config = RagBiasModel.model_config

    @property
    def _llm_type(self) -> str:
        return "ragbias"

    @property
    def _identifying_params(self) -> dict[str, Any]:
        params = super()._identifying_params
        call = _arguments.get()
        return {**params, "call": call} if call else params

    def generate(
        self, prompts: list[str], stop: Stop = None, callbacks: PromptCallbacks = None, **kwargs: Any
    ) -> LLMResult:
        with _added_to_cache_key(kwargs):
            return self._record_report(super().generate(prompts, stop, callbacks, **kwargs))

    async def agenerate(
        self, prompts: list[str], stop: Stop = None, callbacks: PromptCallbacks = None, **kwargs: Any
    ) -> LLMResult:
        with _added_to_cache_key(kwargs):
            return self._record_report(await super().agenerate(prompts, stop, callbacks, **kwargs))

    def _generate(
        self, prompts: list[str], stop: Stop = None, run_manager: RunManager = None, **kwargs: Any
    ) -> LLMResult:
        parent = begin_request(run_manager)
        return self._to_result(*self._respond(prompts, stop, parent, kwargs))

    async def _agenerate(
        self, prompts: list[str], stop: Stop = None, run_manager: AsyncRunManager = None, **kwargs: Any
    ) -> LLMResult:
        parent = begin_request(run_manager)
        return self._to_result(*await bridge.in_thread(partial(self._respond, prompts, stop, parent, kwargs)))

    def _stream(
        self, prompt: str, stop: Stop = None, run_manager: RunManager = None, **kwargs: Any
    ) -> Iterator[GenerationChunk]:
        parent = begin_request(run_manager)
        (prepared,) = self._prepare_all([prompt], stop, parent, kwargs)
        for chunk in prepared.stream(partial(_to_chunk, prepared)):
            if run_manager and chunk.text:
                run_manager.on_llm_new_token(chunk.text, chunk=chunk)
            yield chunk

    async def _astream(
        self, prompt: str, stop: Stop = None, run_manager: AsyncRunManager = None, **kwargs: Any
    ) -> AsyncIterator[GenerationChunk]:
        parent = begin_request(run_manager)
        (prepared,) = await bridge.in_thread(lambda _: self._prepare_all([prompt], stop, parent, kwargs))
        async with aclosing(prepared.astream(partial(_to_chunk, prepared))) as chunks:
            async for chunk in chunks:
                if run_manager and chunk.text:
                    await run_manager.on_llm_new_token(chunk.text, chunk=chunk)
                yield chunk

    def _prepare_all(
        self, prompts: list[str], stop: Stop, parent: UUID | None, arguments: dict[str, Any]
    ) -> list[PreparedCall]:
        call = self.merge_arguments(self._convert_arguments(arguments, stop), self.model_id, self.batch_size)
        prepared = []
        for prompt in prompts:
            if len(prompts) > 1:  # LangChain passes only the run manager of the first prompt
                parent = listener.parent_of_prompt(prompt)
            located = listener.runs.locate(parent, prompt, call.documents, self.segmenter)
            prepared.append(self.prepare_call(prompt, call, located))
        return prepared

    def _respond(
        self,
        prompts: list[str],
        stop: Stop,
        parent: UUID | None,
        arguments: dict[str, Any],
        cancelled: threading.Event | None = None,
    ) -> tuple[list[PreparedCall], list[Generation]]:
        prepared = self._prepare_all(prompts, stop, parent, arguments)
        if not prepared:
            return [], []
        requests = [call.request for call in prepared]
        return prepared, self.lm.answer(requests, prepared[0].settings, cancelled)

    def _to_result(self, prepared: list[PreparedCall], answers: list[Generation]) -> LLMResult:
        texts = [
            [TextGeneration(text=answer.text, generation_info=_generation_info(call, answer))]
            for answer, call in zip(answers, prepared, strict=True)
        ]
        usage = sum((answer.usage for answer in answers), Usage(0, 0)).as_dict()
        return LLMResult(generations=texts, llm_output={"token_usage": usage, "model_name": self.model_id})


def _to_chunk(prepared: PreparedCall, part: StreamedPart) -> GenerationChunk:
    info = None if part.generation is None else _generation_info(prepared, part.generation)
    return GenerationChunk(text=part.new, generation_info=info)


def _generation_info(prepared: PreparedCall, generation: Generation) -> dict[str, Any]:
    return {**prepared.finish(generation), "usage": generation.usage.as_dict()}
