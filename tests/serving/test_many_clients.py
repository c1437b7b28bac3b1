"""Many concurrent clients each get their own answer."""

import asyncio
from collections.abc import Sequence

import httpx
import openai
import pytest
from serving.conftest import DOCUMENTS

from ragbias import DebiasedLM
from ragbias.generation import Generation
from support.live_server import listening_app, local_app, serving

CASES = 20
METHODS = ["none", "pine", "ape", "canonical-order"]
SUBJECTS = ["Heron Mill", "Ember Abbey", "Falcon project", "Copper Hall"]


def case(number: int) -> tuple[str, list[dict[str, str]], list[str]]:
    """A method, a conversation and its documents."""
    documents = DOCUMENTS[number % 3 :] + DOCUMENTS[: number % 3] + [f"Note {number % 5}."]
    question = f"What is the mascot of {SUBJECTS[number % len(SUBJECTS)]}?"
    messages = [{"role": "system", "content": "\n\n".join(documents)}, {"role": "user", "content": question}]
    return METHODS[number % len(METHODS)], messages, documents


@pytest.fixture(scope="module")
def own(tiny: DebiasedLM) -> list[Generation]:
    """The answer to each case alone."""

    def alone(number: int) -> Generation:
        method, messages, documents = case(number)
        prompt = tiny.chat_text(messages)
        return tiny.generate(prompt, documents=documents, method=method, max_new_tokens=6, logprobs=True)

    return [alone(number) for number in range(CASES)]


async def ask(client: openai.AsyncOpenAI, number: int, streamed: bool) -> tuple[str, list[float] | None]:
    method, messages, documents = case(number % CASES)
    body = {"documents": documents, "ragbias": {"method": method}}
    given = {"model": "tiny", "messages": messages, "max_tokens": 6, "extra_body": body}
    if streamed:
        pieces = [each async for each in await client.chat.completions.create(stream=True, **given)]
        return "".join(each.choices[0].delta.content or "" for each in pieces), None
    response = await client.chat.completions.create(logprobs=True, **given)
    return response.choices[0].message.content, [each.logprob for each in response.choices[0].logprobs.content]


async def prompted(address: str, numbers: Sequence[int], clients: int) -> list[tuple[str, list[float] | None]]:
    waiting = asyncio.Semaphore(clients)
    limits = httpx.Limits(max_connections=clients)
    async with (
        httpx.AsyncClient(limits=limits, timeout=120) as http,
        openai.AsyncOpenAI(base_url=f"{address}/v1", api_key="none", http_client=http) as client,
    ):

        async def one(number: int) -> tuple[str, list[float] | None]:
            async with waiting:
                return await ask(client, number, streamed=number % 5 == 0)

        return await asyncio.gather(*map(one, numbers))


async def test_everybody_gets_their_own_answer(tiny, own):
    app, _, counters = local_app({"tiny": tiny})
    with listening_app(app) as address:
        responses = await prompted(address, range(CASES), clients=10)
    assert [text for text, _ in responses] == [each.text for each in own]
    count, total = (
        counters.registry.get_sample_value(f"ragbias_batch_requests_{each}", {"model": "tiny"})
        for each in ("count", "sum")
    )
    assert total == 16 and count < 14  # padded batches


async def test_strict_gives_the_same_bits_as_alone(tiny, own):
    with serving({"tiny": tiny}, max_batch=1) as address:
        responses = await prompted(address, range(8), clients=8)
    for (text, logprobs), expected in zip(responses, own[:8], strict=True):
        assert text == expected.text
        assert logprobs is None or logprobs == expected.logprobs[: len(logprobs)]


async def test_a_strict_vote_gives_the_same_bits_as_alone(tiny):
    _, messages, documents = case(0)
    vote = {"method": "permutation-vote", "max_new_tokens": 6, "logprobs": True}
    expected = tiny.generate(tiny.chat_text(messages), documents=documents, **vote)
    body = {"documents": documents, "ragbias": {"method": vote["method"]}}
    with serving({"tiny": tiny}, max_batch=1) as address:
        async with openai.AsyncOpenAI(base_url=f"{address}/v1", api_key="none") as client:
            answer = await client.chat.completions.create(
                model="tiny", messages=messages, max_tokens=6, logprobs=True, extra_body=body
            )
    assert [token.logprob for token in answer.choices[0].logprobs.content] == expected.logprobs


@pytest.mark.slow
async def test_fifty_clients_and_many_requests(tiny, own):
    with serving({"tiny": tiny}, max_waiting=500) as address:
        responses = await prompted(address, range(100), clients=50)
    assert [text for text, _ in responses] == [own[number % CASES].text for number in range(100)]
