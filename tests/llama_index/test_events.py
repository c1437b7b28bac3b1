"""LlamaIndex's instrumentation events and callbacks contain tokens, usage and the report."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from llama_index.core.callbacks import CallbackManager, CBEventType, LlamaDebugHandler
from llama_index.core.instrumentation import get_dispatcher
from llama_index.core.instrumentation.event_handlers import BaseEventHandler
from llama_index.core.instrumentation.events import BaseEvent
from llama_index.core.instrumentation.events.exception import ExceptionEvent
from llama_index.core.instrumentation.events.llm import (
    LLMChatEndEvent,
    LLMChatInProgressEvent,
    LLMChatStartEvent,
    LLMCompletionEndEvent,
    LLMCompletionInProgressEvent,
    LLMCompletionStartEvent,
)
from llama_index.core.llms import ChatMessage
from llama_index.llms.ragbias import RagBiasLLM
from pydantic import PrivateAttr

from ragbias.methods import Pine

DOCUMENTS = ["The Falcon Station gate is red.", "The Ivory Bridge gate is blue."]
PROMPT = "\n\n".join(DOCUMENTS) + "\n\nQuestion: Which gate is blue?\nAnswer:"
MESSAGES = [ChatMessage(content=PROMPT)]


class Recorder(BaseEventHandler):
    _events: list[Any] = PrivateAttr(default_factory=list)

    def handle(self, event: BaseEvent, **kwargs: Any) -> None:
        self._events.append(event)

    def of(self, kind: type[BaseEvent]) -> list[Any]:
        return [event for event in self._events if isinstance(event, kind)]


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    root, recorder = get_dispatcher(), Recorder()
    before = root.event_handlers
    root.event_handlers = [*before, recorder]
    yield recorder
    root.event_handlers = before


async def ask(llm: RagBiasLLM, form: str, **settings: Any) -> None:
    answer = getattr(llm, form)(PROMPT if "complete" in form else MESSAGES, **settings)
    if form.startswith("a"):
        answer = await answer
    if form.startswith("astream"):
        async for _ in answer:
            pass
    elif form.startswith("stream"):
        list(answer)


@pytest.mark.parametrize("form", ["complete", "stream_complete", "acomplete", "astream_complete"])
async def test_events_of_completions_carry_tokens_and_report(llm, recorder, form):
    await ask(llm, form, documents=DOCUMENTS)
    (start,), (end,) = recorder.of(LLMCompletionStartEvent), recorder.of(LLMCompletionEndEvent)
    assert start.model_dict["method"] == str(Pine())
    assert end.response.additional_kwargs["ragbias"]["n_found"] == 2
    assert end.response.raw["usage"]["completion_tokens"] > 0
    pieces = [event.response.delta for event in recorder.of(LLMCompletionInProgressEvent)]
    assert "".join(pieces) == ("" if "stream" not in form else end.response.text)


@pytest.mark.parametrize("form", ["chat", "stream_chat", "achat", "astream_chat"])
async def test_events_of_chats_carry_tokens_and_report(llm, recorder, form):
    await ask(llm, form, documents=DOCUMENTS)
    (_start,), (end,) = recorder.of(LLMChatStartEvent), recorder.of(LLMChatEndEvent)
    assert end.response.additional_kwargs["ragbias"]["method_ran"] == "pine"
    assert end.response.raw["usage"]["completion_tokens"] > 0
    pieces = [event.response.delta for event in recorder.of(LLMChatInProgressEvent)]
    assert "".join(pieces) == ("" if "stream" not in form else end.response.message.content)


@pytest.mark.parametrize("form", ["complete", "stream_complete", "achat", "astream_chat"])
async def test_callbacks_see_the_report(make_llm, form):
    handler = LlamaDebugHandler(print_trace_on_end=False)
    await ask(make_llm(callback_manager=CallbackManager([handler])), form, documents=DOCUMENTS)
    ((_start, end),) = handler.get_event_pairs(CBEventType.LLM)
    response = end.payload["completion" if "complete" in form else "response"]
    assert response.additional_kwargs["ragbias"]["n_found"] == 2
    assert response.additional_kwargs["total_tokens"] > 0


def test_events_of_a_query_carry_the_report(llm, index, recorder):
    index.as_query_engine(llm=llm, similarity_top_k=4).query("What is the passphrase?")
    (end,) = recorder.of(LLMChatEndEvent)
    assert end.response.additional_kwargs["ragbias"]["n_found"] == 4


def failing_at(step: int, failed: list[float]) -> Callable[[int], None]:
    def action(current: int) -> None:
        if current == step:
            failed.append(time.perf_counter())
            raise RuntimeError("the GPU fell off")

    return action


@pytest.mark.parametrize(
    ("form", "step"),
    [("stream_complete", 1), ("stream_complete", 3), ("stream_chat", 1), ("astream_complete", 3), ("achat", 3)],
)
async def test_errors_reach_reader_and_observers_within_a_second(llm, on_forward, recorder, form, step):
    failed: list[float] = []
    with on_forward(failing_at(step, failed)), pytest.raises(RuntimeError, match="fell off"):
        await ask(llm, form, min_new_tokens=8)
    assert time.perf_counter() - failed[0] < 1
    assert recorder.of(ExceptionEvent) or form == "achat"  # for which LlamaIndex emits none
