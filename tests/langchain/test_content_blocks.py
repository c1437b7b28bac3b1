"""Content blocks that carry a document are documents, with title and text."""

from __future__ import annotations

import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage

from ragbias.errors import ArgumentError
from support.three_documents import DOCUMENTS


def text_plain(title: str, text: str) -> dict:
    return {"type": "text-plain", "mime_type": "text/plain", "title": title, "text": text}


def search_result(title: str, text: str) -> dict:
    return {"type": "search_result", "source": "x.org", "title": title, "content": [{"type": "text", "text": text}]}


def document(title: str, text: str) -> dict:
    return {"type": "document", "title": title, "source": {"type": "text", "media_type": "text/plain", "data": text}}


def document_of_parts(title: str, text: str) -> dict:
    parts = [{"type": "text", "text": f"{word}."} for word in text.split(".")]
    return {"type": "document", "title": title, "source": {"type": "content", "content": parts}}


QUESTION = {"type": "text", "text": "Which bridge is green?"}


@pytest.mark.parametrize("block", [text_plain, search_result, document, document_of_parts])
@pytest.mark.parametrize("carrier", ["user", "tool"])
def test_blocks_are_documents_in_any_order(chat, block, carrier):
    blocks = [block(f"Page {text[:10]}", text) for text in DOCUMENTS]
    answers = []
    for order in (blocks, blocks[::-1]):
        if carrier == "user":
            messages = [HumanMessage([{"type": "text", "text": "Use these:"}, *order, QUESTION])]
        else:
            call = AIMessage("", tool_calls=[{"name": "search", "args": {}, "id": "1"}])
            messages = [HumanMessage("Search."), call, ToolMessage(order, tool_call_id="1"), HumanMessage([QUESTION])]
        answers.append(chat.invoke(messages, logprobs=True).response_metadata)
    assert [each["ragbias"]["n_found"] for each in answers] == [3, 3]
    assert {each["ragbias"]["method_ran"] for each in answers} == {"pine"}
    assert answers[0]["logprobs"] == answers[1]["logprobs"]


def test_a_block_without_text_is_refused(chat):
    pdf = {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0="}}
    with pytest.raises(ArgumentError, match="content block of type 'document'; this model reads text only"):
        chat.invoke([HumanMessage([pdf, QUESTION])])
