"""The official client against a real server gets the answers of ``DebiasedLM``."""

import openai
import pytest
from serving.conftest import DOCUMENTS, QUESTION

from ragbias import DebiasedLM

METHODS = ["none", "pine", "ape", "attention-sorting", "canonical-order", "permutation-vote", "pced", "mixture"]
METHODS += ["channel-scaling"]


def local(lm: DebiasedLM, messages, method=None, **arguments):
    return lm.generate(lm.chat_text(messages), documents=DOCUMENTS, method=method, **arguments)


@pytest.mark.parametrize("method", METHODS)
def test_each_method_answers_as_it_does_locally(client, tiny, conversation, method):
    body = {"documents": DOCUMENTS, "ragbias": {"method": method}}
    response = client.chat.completions.create(model="tiny", messages=conversation, max_tokens=12, extra_body=body)
    own = local(tiny, conversation, method, max_new_tokens=12)
    assert response.choices[0].message.content == own.text
    assert response.choices[0].finish_reason == own.finish_reason
    assert response.usage.prompt_tokens == own.usage.prompt_tokens
    assert response.usage.completion_tokens == own.usage.completion_tokens
    assert response.usage.prompt_tokens_details.cached_tokens == 0
    assert response.model_extra["ragbias"] == own.report.as_dict()


@pytest.mark.parametrize("method", ["none", "pine", "permutation-vote", "mixture"])
def test_a_stream_adds_up_to_the_same_answer(client, tiny, conversation, method):
    chunks = list(
        client.chat.completions.create(
            model="tiny",
            messages=conversation,
            max_tokens=12,
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"documents": DOCUMENTS, "ragbias": {"method": method}},
        )
    )
    own = local(tiny, conversation, method, max_new_tokens=12)
    *pieces, end, counts = chunks
    assert "".join(each.choices[0].delta.content or "" for each in pieces) == own.text
    assert end.choices[0].finish_reason == own.finish_reason
    assert end.model_extra["ragbias"] == own.report.as_dict()
    assert counts.choices == [] and counts.usage.total_tokens == own.usage.total_tokens
    assert len({each.id for each in chunks}) == 1


def test_sampling_arguments_mean_what_they_mean_locally(client, tiny, conversation):
    given = {"temperature": 1.2, "top_p": 0.9, "seed": 7, "stop": ["owl"]}
    beyond_openai = {"top_k": 20, "repetition_penalty": 1e6}
    response = client.chat.completions.create(
        model="tiny",
        messages=conversation,
        max_completion_tokens=8,
        extra_body={"documents": DOCUMENTS, **beyond_openai},
        **given,
    )
    own = local(tiny, conversation, max_new_tokens=8, **beyond_openai, **given)
    assert response.choices[0].message.content == own.text


def test_logprobs_are_those_of_the_model(client, tiny, conversation):
    response = client.chat.completions.create(
        model="tiny", messages=conversation, max_tokens=6, logprobs=True, extra_body={"documents": DOCUMENTS}
    )
    own = local(tiny, conversation, max_new_tokens=6, logprobs=True)
    content = response.choices[0].logprobs.content
    assert "".join(each.token for each in content) == response.choices[0].message.content
    assert [each.logprob for each in content] == pytest.approx(own.logprobs[: len(content)], abs=1e-5)


def test_completions_take_a_flat_prompt(client, tiny, conversation):
    prompt = tiny.chat_text(conversation)
    own = tiny.generate(prompt, documents=DOCUMENTS, max_new_tokens=8, logprobs=True)
    response = client.completions.create(
        model="tiny", prompt=prompt, max_tokens=8, logprobs=0, extra_body={"documents": DOCUMENTS}
    )
    assert response.choices[0].text == own.text and response.usage.prompt_tokens == own.usage.prompt_tokens
    assert "".join(response.choices[0].logprobs.tokens) == own.text
    pieces = client.completions.create(
        model="tiny", prompt=prompt, max_tokens=8, stream=True, extra_body={"documents": DOCUMENTS}
    )
    assert "".join(each.choices[0].text for each in pieces) == own.text


def test_models_are_listed_with_their_window(client, tiny):
    (card,) = client.models.list().data
    assert card.id == "tiny" and card.model_extra["max_model_len"] == tiny.window
    assert client.models.retrieve("tiny").model_extra["ragbias"] == {"method": "pine", "chat": True, "tools": False}
    with pytest.raises(openai.NotFoundError, match="there is no model 'gpt-5'"):
        client.models.retrieve("gpt-5")


@pytest.mark.parametrize(
    "documents",
    [
        DOCUMENTS,
        [{"text": text, "title": "A note"} for text in DOCUMENTS],
        [{"id": str(at), "data": {"text": text, "source": "a.txt"}} for at, text in enumerate(DOCUMENTS)],
    ],
    ids=["strings", "titled", "data"],
)
def test_documents_in_no_message_are_put_before_the_question(client, tiny, documents):
    talk = [{"role": "user", "content": QUESTION}]
    response = client.chat.completions.create(
        model="tiny", messages=talk, max_tokens=8, extra_body={"documents": documents}
    )
    titled = isinstance(documents[0], dict) and "title" in documents[0]
    texts = [f"A note\n{text}" if titled else text for text in DOCUMENTS]
    shown = [{"role": "user", "content": "".join(f"{text}\n\n" for text in texts) + QUESTION}]
    own = tiny.generate(tiny.chat_text(shown), documents=texts, max_new_tokens=8)
    assert response.choices[0].message.content == own.text
    assert response.model_extra["ragbias"] == own.report.as_dict()


def test_documents_in_template_variables_are_the_same(client):
    talk = [{"role": "user", "content": QUESTION}]
    one = client.chat.completions.create(
        model="tiny", messages=talk, max_tokens=4, extra_body={"chat_template_kwargs": {"documents": DOCUMENTS}}
    )
    other = client.chat.completions.create(
        model="tiny", messages=talk, max_tokens=4, extra_body={"documents": DOCUMENTS}
    )
    assert one.model_extra["ragbias"] == other.model_extra["ragbias"]
    assert one.model_extra["ragbias"]["n_found"] == len(DOCUMENTS)


def test_without_documents_numbered_headers_are_found(client):
    text = "\n".join(f"Document [{at + 1}](Title: {at}) {each}" for at, each in enumerate(DOCUMENTS))
    talk = [{"role": "user", "content": f"<documents>{text}</documents>\n\nQuestion: {QUESTION}"}]
    report = client.chat.completions.create(model="tiny", messages=talk, max_tokens=2).model_extra["ragbias"]
    assert report["source"] == "headers" and report["n_found"] == len(DOCUMENTS)


def test_what_ran_stands_in_the_headers(client, conversation):
    raw = client.chat.completions.with_raw_response.create(
        model="tiny", messages=conversation, max_tokens=2, extra_body={"documents": DOCUMENTS}
    )
    found = {name: value for name, value in raw.headers.items() if name.startswith("x-ragbias")}
    assert found == {
        "x-ragbias-method": "pine",
        "x-ragbias-method-requested": "pine",
        "x-ragbias-documents": "3",
        "x-ragbias-source": "documents",
    }
