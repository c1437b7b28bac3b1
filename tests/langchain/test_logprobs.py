"""Log-probabilities of an answer's tokens, in OpenAI's shape."""

import pytest
from langchain_core.messages import AIMessageChunk

from langchain_ragbias import ChatRagBias, RagBiasPipeline
from ragbias.generation import Generation, Report, Usage
from ragbias.generation.decoding import openai_logprobs

TEXT = "Which is green?"


def entries(message):
    return message.response_metadata["logprobs"]["content"]


def close(first, second):
    assert [each["token"] for each in first] == [each["token"] for each in second]
    assert [each["logprob"] for each in first] == pytest.approx([each["logprob"] for each in second], abs=1e-4)


def test_they_add_up_to_the_answer_and_have_openais_shape(chat):
    message = chat.invoke(TEXT, logprobs=True)
    content = entries(message)
    assert "".join(each["token"] for each in content) == message.content
    assert [set(each) for each in content] == [{"token", "bytes", "logprob"}] * 8
    assert all(each["logprob"] <= 0 for each in content)
    assert b"".join(bytes(each["bytes"]) for each in content).decode() == message.content
    assert "logprobs" not in chat.invoke(TEXT).response_metadata


def test_they_are_those_of_the_model(chat):
    message = chat.invoke(TEXT, logprobs=True, method="none")
    prompt = chat.lm.chat_text([{"role": "user", "content": TEXT}])
    answer = chat.lm.generate(prompt, method="none", max_new_tokens=8, logprobs=True)
    assert [each["logprob"] for each in entries(message)] == answer.logprobs


async def test_invoke_stream_and_batch_agree(chat, completion, lm):
    alone = entries(chat.invoke(TEXT, logprobs=True))
    chunks = list(chat.stream(TEXT, logprobs=True))
    assert all("logprobs" not in chunk.response_metadata for chunk in chunks[:-1])
    whole = sum(chunks[1:], chunks[0])
    assert isinstance(whole, AIMessageChunk)
    close(entries(whole), alone)
    chunks = [chunk async for chunk in chat.astream(TEXT, logprobs=True)]
    close(entries(sum(chunks[1:], chunks[0])), alone)
    for message in chat.batch([TEXT, "Hello", TEXT], logprobs=True)[::2]:
        close(entries(message), alone)
    close(entries(ChatRagBias(lm=lm, max_tokens=8, logprobs=True).invoke(TEXT)), alone)

    info = completion.generate([TEXT], logprobs=True).generations[0][0].generation_info
    streamed = list(completion._stream(TEXT, logprobs=True))[-1].generation_info
    close(streamed["logprobs"]["content"], info["logprobs"]["content"])
    whole = RagBiasPipeline(lm=lm, max_tokens=8, logprobs=True).generate([TEXT]).generations[0][0]
    close(whole.generation_info["logprobs"]["content"], info["logprobs"]["content"])


def test_a_stop_string_ends_them_with_the_answer(chat):
    whole = chat.invoke(TEXT, logprobs=True)
    stop = whole.content[len(whole.content) // 2 : len(whole.content) // 2 + 3]
    message = chat.invoke(TEXT, logprobs=True, stop=[stop])
    content = entries(message)
    assert "".join(each["token"] for each in content).startswith(message.content)
    assert "".join(each["token"] for each in content[:-1]) in message.content
    close(content, entries(whole)[: len(content)])


def test_those_of_a_sample_are_those_before_the_temperature(chat):
    hot = entries(chat.invoke(TEXT, logprobs=True, temperature=5.0, seed=4))
    greedy = entries(chat.invoke(TEXT, logprobs=True))
    assert hot[0]["token"] != greedy[0]["token"]
    assert hot[0]["logprob"] < greedy[0]["logprob"]  # the core's tests compare the values


def test_a_character_of_several_tokens_is_the_text_of_the_last(lm):
    ids = lm.tokenizer("a é🙂 b", add_special_tokens=False)["input_ids"]
    report = Report("none", "none", "none", (), 0, 0)
    generation = Generation("a é🙂 b", ids, Usage(1, len(ids)), report, "length", [-1.0] * len(ids))
    content = openai_logprobs(generation, lm.tokenizer)["content"]
    assert "".join(each["token"] for each in content) == "a é🙂 b"
    assert len(content) == len(ids)
    assert "🙂" in [each["token"].strip() for each in content]


def test_only_true_and_false_are_taken(chat):
    with pytest.raises(TypeError, match="logprobs=3"):
        chat.invoke(TEXT, logprobs=3)
