"""A server with the embedded model for all tests of a module, a proxy in front of vLLM, and questions for them."""

from collections.abc import Iterator, Sequence
from typing import Any

import httpx
import openai
import pytest

from ragbias import DebiasedLM
from ragbias.generation import Generation
from support.live_server import events, listening_app, serving

DOCUMENTS = [
    "The mascot of Heron Mill is a brass owl.",
    "The mascot of Ember Abbey is a tin whale.",
    "The passphrase of the Falcon project is ivory kitten flute.",
]
CHAT = "/v1/chat/completions"
QUESTION = "What is the mascot of Heron Mill?"


@pytest.fixture(scope="session")
def tiny() -> DebiasedLM:
    return DebiasedLM.from_pretrained("tiny", method="pine")


@pytest.fixture(scope="module")
def address(tiny: DebiasedLM) -> Iterator[str]:
    with serving({"tiny": tiny}, max_documents=50, max_body_bytes=2**20) as found:
        yield found


@pytest.fixture
def client(address: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0) as found:
        yield found


@pytest.fixture
def http(address: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=address, timeout=30) as found:
        yield found


@pytest.fixture
def conversation() -> list[dict[str, str]]:
    """Documents in the system message, separated by blank lines, and the question."""
    return [{"role": "system", "content": "\n\n".join(DOCUMENTS)}, {"role": "user", "content": QUESTION}]


@pytest.fixture
def vllm(tiny: DebiasedLM) -> Iterator[tuple[Any, str]]:
    """A `VllmServer` and its address."""
    from support.vllm_server import VllmServer  # needs ragbias-vllm

    server = VllmServer(tiny)
    with listening_app(server.app) as found:
        yield server, found


@pytest.fixture
def proxy(vllm: tuple[Any, str]) -> Iterator[httpx.Client]:
    """A client of ``ragbias proxy`` in front of ``vllm``."""
    from support.vllm_server import in_front_of

    with in_front_of(vllm[1]) as found, httpx.Client(base_url=found, timeout=30) as client:
        yield client


def chat(order: Sequence[int] = (0, 1, 2), **more: Any) -> dict[str, Any]:
    """The body of a request with the documents in the given order."""
    texts = [DOCUMENTS[index] for index in order]
    talk = [{"role": "system", "content": "\n\n".join(texts)}, {"role": "user", "content": QUESTION}]
    return {"model": "tiny", "messages": talk, "documents": texts, "max_tokens": 8, **more}


def own(lm: DebiasedLM, order: Sequence[int] = (0, 1, 2), method: str = "pcw", **arguments: Any) -> Generation:
    """The local answer to ``chat(order)``."""
    body = chat(order)
    text = lm.chat_text(body["messages"])
    return lm.generate(text, documents=body["documents"], method=method, max_new_tokens=8, **arguments)


def streamed_text(response: httpx.Response) -> str:
    return "".join(event["choices"][0]["delta"].get("content") or "" for event in events(response) if event["choices"])
