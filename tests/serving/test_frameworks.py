"""The frameworks' own OpenAI clients get the answers of ``DebiasedLM`` from the server."""

import pytest
from langchain_openai import ChatOpenAI
from llama_index.core.llms import ChatMessage
from llama_index.llms.openai_like import OpenAILike
from serving.conftest import DOCUMENTS, QUESTION

BODY = {"documents": DOCUMENTS, "ragbias": {"method": "ape"}}


@pytest.fixture
def own(tiny, conversation):
    return tiny.generate(tiny.chat_text(conversation), documents=DOCUMENTS, method="ape", max_new_tokens=8)


async def test_chat_openai(address, own, conversation):
    llm = ChatOpenAI(model="tiny", base_url=f"{address}/v1", api_key="none", max_tokens=8, extra_body=BODY)
    talk = [(each["role"], each["content"]) for each in conversation]
    response = llm.invoke(talk)
    assert response.content == own.text and response.usage_metadata["total_tokens"] == own.usage.total_tokens
    assert "".join(str(each.content) for each in llm.stream(talk)) == own.text
    assert (await llm.ainvoke(talk)).content == own.text
    assert [each.content for each in llm.batch([talk, talk])] == [own.text] * 2


def openai_like(address, **settings):
    settings |= dict(api_base=f"{address}/v1", api_key="none", max_tokens=8, temperature=0)
    return OpenAILike(model="tiny", additional_kwargs={"extra_body": BODY}, **settings)


async def test_openai_like(address, own, conversation):
    llm = openai_like(address, is_chat_model=True)
    talk = [ChatMessage(role=each["role"], content=each["content"]) for each in conversation]
    assert llm.chat(talk).message.content == own.text
    assert "".join(each.delta or "" for each in llm.stream_chat(talk)) == own.text
    assert (await llm.achat(talk)).message.content == own.text


def test_openai_like_completes_flat_prompts(address, tiny):
    prompt = "\n\n".join([*DOCUMENTS, QUESTION])
    llm = openai_like(address, is_chat_model=False)
    own = tiny.generate(prompt, documents=DOCUMENTS, method="ape", max_new_tokens=8)
    assert llm.complete(prompt).text == own.text
