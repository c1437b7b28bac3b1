"""Document content blocks are read, or refused instead of dropped."""

import pytest

from ragbias.errors import ArgumentError
from ragbias.frameworks.chat_documents import ChatDocument, block_document

TEXT = {"type": "text", "text": "Owls sleep."}
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBO"}}
PDF = {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0="}


def document(source, **more):
    return {"type": "document", "source": source, **more}


def search_result(*content, **more):
    return {"type": "search_result", "source": "x.org", "content": list(content), **more}


@pytest.mark.parametrize(
    "block",
    [
        {"type": "text-plain", "text": "Owls sleep.", "mime_type": "text/plain", "id": "lc_1", "extras": {}},
        search_result(TEXT, citations={"enabled": False}, cache_control={"type": "ephemeral"}),
        search_result({**TEXT, "citations": None}),
        document({"type": "text", "media_type": "text/plain", "data": "\n Owls sleep.\n"}, context=None),
        document({"type": "content", "content": [TEXT]}),
        document({"type": "content", "content": "Owls sleep."}),
    ],
)
def test_title_and_text_of_a_block_are_read(block):
    assert block_document({**block, "title": "Owls"}) == ChatDocument("Owls", "Owls sleep.")
    assert block_document(block) == ChatDocument("", "Owls sleep.")


@pytest.mark.parametrize(
    ("block", "reason"),
    [
        (document(PDF), "a part of type 'base64'"),
        (document({"type": "url", "url": "http://localhost/a.pdf"}), "a part of type 'url'"),
        (document({"type": "content", "content": [TEXT, IMAGE]}), "a part of type 'image'"),
        (document({"type": "text", "data": "x", "title": "Owls"}), "the field 'title'"),
        (
            document({"type": "text", "data": "x", "media_type": "text/plain"}, context="Of owls."),
            "the field 'context'",
        ),
        (document({"type": "text", "data": "x"}, citations={"enabled": True}), "the field 'citations'"),
        (document({"type": "text", "data": "x"}, text="y"), "both 'source' and 'text'"),
        (document({"type": "text", "data": "x"}, title=3), "a title or text that is not a string"),
        (document({"type": "text", "data": " "}), "no text"),
        (document(None), "no text"),
        (search_result(TEXT, IMAGE), "a part of type 'image'"),
        (search_result(TEXT, "Owls"), "a part of type 'Owls'"),
        (search_result({**TEXT, "image": "x"}), "the field 'image'"),
        (search_result({"type": "text"}), "no text"),
        (search_result({"type": "text", "text": 1}), "a title or text that is not a string"),
        (search_result(), "no text"),
        ({"type": "text-plain", "text": "x", "base64": "eA=="}, "the field 'base64'"),
        ({"type": "text-plain", "text": "x", "mime_type": "application/pdf"}, "the media type 'application/pdf'"),
    ],
)
def test_content_that_is_no_text_is_refused_with_a_remedy(block, reason):
    with pytest.raises(ArgumentError) as raised:
        block_document(block)
    message = str(raised.value)
    assert message.startswith(f"a part of type {block['type']!r} has {reason}; expected text only: {{")
    assert message.endswith("; send its text, or leave it out")


@pytest.mark.parametrize("kind", [None, "text", "image_url", ["document"]])
def test_other_blocks_are_no_documents(kind):
    assert block_document({"type": kind, "text": "x"}) is None
