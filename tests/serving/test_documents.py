"""Documents that are prepended to a message are found there."""

from itertools import permutations

import httpx
import pytest
from serving.conftest import DOCUMENTS, QUESTION

from ragbias.frameworks import AnswerFormat
from ragbias.frameworks.chat_documents import ChatDocument
from ragbias.serving.errors import ApiError
from ragbias.serving.prompts import SEPARATOR, render_chat
from ragbias.serving.settings import ServerSettings
from support.live_server import serving


def render(talk, tools=(), **_):
    return "".join(f"<|im_start|>{turn['role']}\n{turn['content']}<|im_end|>\n" for turn in talk)


def rendered(documents, talk, chat_text=render):
    """Render a conversation with documents as the server does. Return the prompt and the boundaries."""
    documents = [ChatDocument("", text) for text in documents]
    return render_chat(chat_text, talk, documents, AnswerFormat(), ServerSettings())


@pytest.mark.parametrize(
    "texts",
    [
        ["The mascot", "The mascot of Heron"],  # one begins like the other, and like the question's
        ["Same.", "Same."],
        ["a", "b", "a b"],
        ["What is", "What is the mascot"],
        ["one\n\ntwo", "two"],
        ["\U0001f600 \u2028", "e\u0301\u200b"],
        ["user"],
        ["user", "assistant", "im_start"],
        ["t", "t\n\nu\n\ns", "u\n\ns\n\nt"],  # whose joined text contains them at other places
    ],
)
def test_each_document_is_found_where_it_was_put(texts):
    talk = [{"role": "user", "content": "What is the mascot of Heron Mill?"}]
    text, found = rendered(texts, talk)
    assert found.n_found == len(texts) and found.source == "documents"
    assert [text[begin:end].strip("\n") for begin, end in found.texts or found.spans] == texts
    begin, end = found.spans[0][0], found.spans[-1][1]
    assert text[begin:end].rstrip("\n") == SEPARATOR.join(texts)


def test_overlapping_documents_are_order_invariant(tiny):
    s, t, u = "The mascot of Heron Mill is an owl.", "The mascot of Ember Abbey is a whale.", "The gate is red."
    documents = [t, "\n\n".join([t, u, s]), "\n\n".join([u, s, t])]
    body = {
        "model": "tiny",
        "messages": [{"role": "user", "content": "What is it?"}],
        "max_tokens": 1,
        "logprobs": True,
    }
    with serving({"tiny": tiny}) as address:
        logprobs = set()
        for order in permutations(documents):
            answer = httpx.post(f"{address}/v1/chat/completions", json={**body, "documents": order}).json()
            assert answer["ragbias"]["n_found"] == 3 and answer["ragbias"]["method_ran"] == "pine"
            logprobs.add(answer["choices"][0]["logprobs"]["content"][0]["logprob"])
    assert len(logprobs) == 1


def test_a_template_that_changes_inserted_documents_is_refused():
    talk = [{"role": "user", "content": "Which?"}]
    with pytest.raises(ApiError, match="chat template changes the documents"):
        rendered(["a", "b"], talk, lambda talk, tools, **_: render(talk).upper())


def test_overlapping_documents_are_known_if_the_template_prints():
    texts = ["t", "t\n\nu\n\ns", "u\n\ns\n\nt"]

    def with_documents(talk, tools, documents=()):
        return "".join(f"<doc>{doc['text']}</doc>\n" for doc in documents) + render(talk)

    for order in permutations(texts):
        text, found = rendered(order, [{"role": "user", "content": "Q"}], with_documents)
        assert [text[begin:end] for begin, end in found.texts] == list(order) and text.startswith("<doc>")


MILL, ABBEY, FALCON = DOCUMENTS


@pytest.mark.parametrize(
    ("contents", "named"),
    [
        ([f"{MILL}\n\n{ABBEY}\n\n{FALCON[:-1]}!\n\n{QUESTION}"], r"not documents\[2\]"),
        ([f"Context: {ABBEY}\nQuestion: {QUESTION}"], r"not documents\[0\]"),
        ([f"- {MILL}\n- {ABBEY}", f"{FALCON}\n{QUESTION}"], "not together"),
    ],
)
def test_messages_with_some_of_the_documents_are_refused(contents, named):
    talk = [{"role": "user", "content": content} for content in contents]
    with pytest.raises(ApiError, match=f"the messages contain some, but {named}; leave all of them out"):
        rendered(DOCUMENTS, talk)


@pytest.mark.parametrize(
    ("role", "content", "n_left_plain"),
    [("user", f"Is it true that {MILL}", 1), ("user", MILL, 1), ("assistant", f"{MILL}\n\n{ABBEY}", 2)],
)
def test_quotations_of_documents_are_reported(role, content, n_left_plain):
    talk = [{"role": role, "content": content}, {"role": "user", "content": QUESTION}]
    found = rendered(DOCUMENTS, talk)[1]
    assert (found.n_found, found.n_left_plain) == (3, n_left_plain)
