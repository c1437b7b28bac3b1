"""A server with the embedded model for all tests of a module, and questions for it."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import openai
import pytest

from ragbias import DebiasedLM
from support.live_server import serving

DOCUMENTS = [
    "The mascot of Heron Mill is a brass owl.",
    "The mascot of Ember Abbey is a tin whale.",
    "The passphrase of the Falcon project is ivory kitten flute.",
]
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
