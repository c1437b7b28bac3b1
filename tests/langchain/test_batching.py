"""A padded batch of conversations keeps runs, documents, cache entries and errors separate."""

import asyncio
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from langchain_core.caches import InMemoryCache
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.documents import Document
from langchain_core.messages import HumanMessage
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnablePassthrough

from langchain_ragbias import ChatRagBias, RagBiasPipeline
from langchain_ragbias.batching import PaddedBatch
from ragbias.errors import CancelledError, PromptTooLongError
from support.concurrency import cancel_after_passes

QUESTIONS = [f"Question {number}: what is {'very ' * number}green?" for number in range(8)]
TOO_LONG = "book " * 17000


class Runs(BaseCallbackHandler):
    """Count the events of each run."""

    def __init__(self) -> None:
        self.started, self.ended, self.failed = [], [], []

    def on_chat_model_start(self, *_, run_id, tags=None, **__):
        self.started.append((run_id, tags))

    def on_llm_end(self, *_, run_id, **__):
        self.ended.append(run_id)

    def on_llm_error(self, *_, run_id, **__):
        self.failed.append(run_id)


def contents(messages):
    return [message.content for message in messages]


def test_a_batch_gives_the_same_answers_in_fewer_passes(chat, forwards):
    alone = [chat.invoke(question) for question in QUESTIONS]
    single = len(forwards)
    forwards.clear()
    together = chat.batch(QUESTIONS)
    assert contents(together) == contents(alone)
    assert [m.usage_metadata for m in together] == [m.usage_metadata for m in alone]
    assert len(forwards) == single / 8
    assert set(forwards) == {8}


async def test_an_async_batch_is_one_padded_batch_too(chat, forwards):
    alone = [chat.invoke(question) for question in QUESTIONS]
    forwards.clear()
    assert contents(await chat.abatch(QUESTIONS)) == contents(alone)
    assert set(forwards) == {8}


async def test_generate_of_several_conversations_is_one_padded_batch(chat, forwards):
    conversations = [[HumanMessage(question)] for question in QUESTIONS]
    alone = [chat.invoke(question).content for question in QUESTIONS]
    forwards.clear()
    for result in (chat.generate(conversations), await chat.agenerate(conversations)):
        assert [generations[0].text for generations in result.generations] == alone
        assert len({info.run_id for info in result.run}) == 8
    assert set(forwards) == {8}


def test_batch_size_and_max_concurrency_bound_a_padded_batch(lm, forwards):
    llm = ChatRagBias(lm=lm, max_tokens=2, batch_size=3)
    llm.batch(QUESTIONS)
    assert set(forwards) == {3, 2}
    forwards.clear()
    llm.batch(QUESTIONS, {"max_concurrency": 2})
    assert set(forwards) == {2}
    forwards.clear()
    RagBiasPipeline(lm=lm, max_tokens=2, batch_size=3).batch(QUESTIONS)
    assert set(forwards) == {3, 2}


def test_each_input_has_a_run_of_its_own(chat):
    runs = Runs()
    chat.batch(QUESTIONS, {"callbacks": [runs], "tags": ["mine"]})
    assert len({run for run, _ in runs.started}) == 8
    assert {run for run, _ in runs.started} == set(runs.ended)
    assert all("mine" in tags for _, tags in runs.started)
    own = [Runs() for _ in QUESTIONS]
    chat.batch(QUESTIONS, [{"callbacks": [each]} for each in own])
    assert [len(each.ended) for each in own] == [1] * 8


async def test_an_input_that_fails_leaves_the_others_alone(chat):
    inputs = [QUESTIONS[0], TOO_LONG, QUESTIONS[1]]
    alone = contents(chat.batch([QUESTIONS[0], QUESTIONS[1]]))
    runs = Runs()
    for outputs in (
        chat.batch(inputs, {"callbacks": [runs]}, return_exceptions=True),
        await chat.abatch(inputs, {"callbacks": [runs]}, return_exceptions=True),
    ):
        assert isinstance(outputs[1], PromptTooLongError)
        assert contents([outputs[0], outputs[2]]) == alone
    assert (len(runs.started), len(runs.ended), len(runs.failed)) == (6, 4, 2)
    with pytest.raises(PromptTooLongError, match="too many for an answer .* window of 16384"):
        chat.batch(inputs)
    with pytest.raises(PromptTooLongError, match="too many for an answer .* window of 16384"):
        await chat.abatch(inputs)
    with pytest.raises(PromptTooLongError, match="too many for an answer .* window of 16384"):
        chat.generate([[HumanMessage(text)] for text in inputs])


async def test_an_error_of_the_model_reaches_every_input(chat, lm):
    def boom(*_):
        raise FloatingPointError("boom")

    hook = lm.model.register_forward_pre_hook(boom)
    try:
        assert [type(each) for each in chat.batch(QUESTIONS[:3], return_exceptions=True)] == [FloatingPointError] * 3
        with pytest.raises(FloatingPointError):
            await chat.abatch(QUESTIONS[:3])
    finally:
        hook.remove()


def test_only_the_failing_request_of_a_batch_fails(chat, lm):
    def refuse(module, arguments, options):
        if len(arguments[0]) > 1:
            raise FloatingPointError("boom")

    alone = [chat.invoke(question).content for question in QUESTIONS[:3]]
    hook = lm.model.get_input_embeddings().register_forward_pre_hook(refuse, with_kwargs=True)
    try:
        assert contents(chat.batch(QUESTIONS[:3], return_exceptions=True)) == alone
    finally:
        hook.remove()


def test_cached_answers_are_not_computed_again(lm, forwards):
    llm = ChatRagBias(lm=lm, max_tokens=4, cache=InMemoryCache())
    first = contents(llm.batch(QUESTIONS[:4]))
    forwards.clear()
    assert contents(llm.batch(QUESTIONS[:6]))[:4] == first
    assert set(forwards) == {2}
    forwards.clear()
    assert contents(llm.batch(QUESTIONS[:4])) == first
    assert forwards == []


async def test_each_input_of_a_chain_runs_on_its_own_documents(chat, forwards):
    corpus = {
        question: [Document(f"Document {number} of {question}") for number in range(2 + index % 3)]
        for index, question in enumerate(QUESTIONS)
    }
    prompt = ChatPromptTemplate.from_messages([("system", "Context: {context}"), ("human", "{input}")])
    joined = lambda question: "\n\n".join(document.page_content for document in corpus[question])  # noqa: E731
    chain = RunnablePassthrough.assign(context=lambda value: joined(value["input"])) | prompt | chat
    inputs = [{"input": question, "documents": corpus[question]} for question in QUESTIONS]
    for messages in (chain.batch(inputs), await chain.abatch(inputs)):
        for question, message in zip(QUESTIONS, messages, strict=True):
            report = message.response_metadata["ragbias"]
            assert (report["method_ran"], report["source"]) == ("pine", "run")
            assert report["n_found"] == len(corpus[question])
    assert set(forwards) == {8}
    alone = [chain.invoke(each).content for each in inputs]
    assert contents(messages) == alone


@pytest.mark.filterwarnings("ignore::langchain_ragbias.MissingDocumentsWarning")
def test_the_last_report_is_that_of_the_last_input(chat):
    documents = ["The Heron Bridge is green.", "The Otter Library lends books."]
    with_documents = "Context: " + "\n\n".join(documents) + "\n\nWhich?"
    chat.batch(["Hello.", with_documents], documents=documents)
    assert chat.last_report["n_found"] == 2


def test_arguments_of_the_call_hold_for_every_input(chat):
    outputs = chat.batch(QUESTIONS[:3], max_tokens=2, method="none")
    assert [message.usage_metadata["output_tokens"] for message in outputs] == [2, 2, 2]
    assert chat.last_report["method_requested"] == "none"


def test_streaming_models_in_a_batch_do_not_wait_for_each_other(lm):
    llm = ChatRagBias(lm=lm, max_tokens=4, streaming=True)
    assert contents(llm.batch(QUESTIONS[:3])) == contents([llm.invoke(question) for question in QUESTIONS[:3]])


async def test_a_cancelled_async_batch_stops_computing(chat, forwards):
    await cancel_after_passes(chat.abatch(QUESTIONS, max_tokens=4000), forwards)
    await until_idle(forwards)


async def test_a_cancelled_async_call_stops_computing(chat, completion, forwards):
    for llm in (chat, completion):
        forwards.clear()
        await cancel_after_passes(llm.ainvoke("hello", max_tokens=4000), forwards)
        await until_idle(forwards)


async def until_idle(forwards):
    for _ in range(100):
        before = len(forwards)
        await asyncio.sleep(0.1)
        if len(forwards) == before:
            return
    raise AssertionError("the model goes on computing")


def test_nobody_waits_for_a_run_without_a_request():
    answered = threading.Event()
    batch = PaddedBatch(2, lambda requests, settings, cancelled: answered.set() or requests)
    future = batch.submit("request", {})
    assert not answered.wait(0.05)
    batch.skip()
    assert future.result(5) == "request"


def test_a_cancelled_batch_raises_the_librarys_error():
    batch = PaddedBatch(2, lambda requests, settings, cancelled: requests)
    waiting = batch.submit("request", {})
    batch.cancel()
    with pytest.raises(CancelledError, match="the batch of this request was cancelled"):
        waiting.result(5)
    with pytest.raises(CancelledError, match="the batch of this request was cancelled"):
        batch.submit("late request", {})


def test_requests_of_a_batch_keep_their_settings():
    batch = PaddedBatch(3, lambda requests, settings, cancelled: [(each, settings) for each in requests])
    given = [("a", {"seed": 1}), ("b", {"seed": 1}), ("c", {"seed": 2})]
    assert [future.result(5) for future in [batch.submit(*each) for each in given]] == given


def interrupts(times: int, seed: int) -> int:
    """Send Ctrl-C to a program that answers batches and return its exit code. Each interrupt has a time limit."""
    program = Path(__file__).parents[1] / "support" / "interrupted_batches.py"
    rng = random.Random(seed)
    process = subprocess.Popen([sys.executable, program, str(times)], stdout=subprocess.PIPE, text=True)
    stuck = threading.Timer(120, process.kill)
    stuck.start()
    try:
        assert process.stdout is not None
        for number in range(times):
            assert process.stdout.readline() == "ready\n"
            stuck.cancel()
            time.sleep(rng.uniform(0, 0.08))
            process.send_signal(signal.SIGINT)
            stuck = threading.Timer(15, process.kill)
            stuck.start()
            assert process.stdout.readline() == f"interrupted {number}\n"
        return process.wait(15)
    finally:
        stuck.cancel()
        process.kill()
        process.wait()


@pytest.mark.skipif(os.name != "posix", reason="sends SIGINT")
def test_ctrl_c_ends_a_batch_wherever_it_comes():
    assert interrupts(60, seed=1) == 0
