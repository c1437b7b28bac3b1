"""Documents of a conversation: content blocks of messages, and documents that the chat template renders."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, chain
from typing import Any, NamedTuple

from ragbias.boundaries import Boundaries, locate
from ragbias.boundaries.matching import count_outside, is_block, is_long, occurrences_by_document
from ragbias.boundaries.sources import KnownText
from ragbias.display import shown
from ragbias.errors import ArgumentError
from ragbias.frameworks.tool_use import AnswerFormat, Message

BLOCKS = {  # types of content blocks in LangChain and Anthropic's API, with the field that contains the text
    "text-plain": '"text": ...',
    "search_result": '"content": [{"type": "text", "text": ...}]',
    "document": '"source": {"type": "text", "data": ...}',
}
NO_CONTENT = ("type", "id", "index", "mime_type", "media_type", "cache_control")  # fields that prompts do not show
UNSET: tuple[Any, ...] = (None, [], {}, {"enabled": False})  # values of unset fields; the last is for ``citations``


class ChatDocument(NamedTuple):
    """A document in a conversation, such as a content block of a message.

    Prompts may print ``metadata`` and ``id``. ``printed`` contains the printed metadata, if known.
    """

    title: str
    text: str
    metadata: Mapping[str, Any] = {}
    id: str | None = None
    printed: Sequence[str] = ()

    def __str__(self) -> str:
        return f"{self.title}\n{self.text}" if self.title else self.text

    @property
    def fields(self) -> dict[str, Any]:
        title = {"title": self.title} if self.title else {}
        return {**title, **self.metadata}

    @property
    def known_text(self) -> KnownText:
        printed = [(str(index), value) for index, value in enumerate(self.printed)]
        known = KnownText.of(self.text, self.fields, self.id)
        return KnownText(self.text, [*printed, *known.fields])


@dataclass(frozen=True)
class RenderedConversation:
    """The prompt of a conversation. ``blocks`` are the documents of each message, the latest message first."""

    prompt: str
    turns: list[Message] | None = None  # messages with the instruction for the answer; None without a chat template
    boundaries: Boundaries | None = None  # of documents that the template rendered
    blocks: Sequence[Sequence[str]] = ()


def block_document(block: Mapping[Any, Any]) -> ChatDocument | None:
    """Return the document in a content block, or None if the type of the block is not in ``BLOCKS``.

    Raises:
        ArgumentError: the block has no text, or contains more than title and text.
    """
    kind = block.get("type")
    title = block.get("title") or ""
    if kind not in tuple(BLOCKS):  # a tuple, because ``kind`` may be unhashable
        return None
    fields = {**block, "title": None}
    if isinstance(block.get("source"), str):  # the address of a search result
        fields["source"] = None
    content = _content(kind, fields, (kind,), ("text", "content", "source"))
    if isinstance(content, dict):
        content = _content(kind, content, ("text", "content"), ("data", "content"))
    texts = [content]
    if isinstance(content, list):
        texts = [_content(kind, part, ("text",), ("text",)) for part in content]
    if not all(isinstance(text, str) for text in (title, *texts)):
        raise _block_error(kind, "a title or text that is not a string")
    text = "\n".join(texts).strip()  # stripped, because some chat templates strip messages
    if not text:
        raise _block_error(kind, "no text")
    return ChatDocument(title.strip(), text)


def _content(kind: str, part: Any, types: Sequence[str], fields: Sequence[str]) -> Any:
    """Return the value of the block's only content field. The name of this field must be in ``fields``."""
    part_type = part.get("type") if isinstance(part, dict) else part
    if not isinstance(part, dict) or part_type not in types:
        raise _block_error(kind, f"a part of type {shown(part_type)}")
    media_type = part.get("mime_type") or part.get("media_type") or "text/plain"
    if not str(media_type).startswith("text/"):
        raise _block_error(kind, f"the media type {shown(media_type)}")
    given = content_fields(part)
    if unknown := [name for name in given if name not in fields]:
        raise _block_error(kind, f"the field {shown(unknown[0])}")
    if not given:
        raise _block_error(kind, "no text")
    if len(given) > 1:
        raise _block_error(kind, f"both {' and '.join(map(repr, given))}")
    return next(iter(given.values()))


def content_fields(part: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return those fields of a content block that prompts may show."""
    return {name: value for name, value in part.items() if name not in NO_CONTENT and value not in UNSET}


def _block_error(kind: str, what: str) -> ArgumentError:
    expected = f'expected text only: {{"type": "{kind}", "title": ..., {BLOCKS[kind]}}}'
    return ArgumentError(f"a part of type {kind!r} has {what}; {expected}; send its text, or leave it out")


def join_parts(messages: Iterable[Message]) -> list[Message]:
    """Join the parts of each message into one text, with blank lines around documents."""
    return [{**message, "content": _content_text(message["content"])} for message in messages]


def _content_text(parts: str | Sequence[str | ChatDocument]) -> str:
    if isinstance(parts, str):
        return parts
    content = ""
    for part in parts:
        is_document = isinstance(part, ChatDocument)
        blank = "\n\n" if is_document and content and not content.endswith("\n") else ""
        content += f"{blank}{part}" + ("\n\n" if is_document else "")
    return content


def message_documents(messages: Sequence[Message]) -> list[list[ChatDocument]]:
    """Return the documents of each message that has documents, the latest message first."""
    found = [_documents_in(message) for message in reversed(messages)]
    return [documents for documents in found if documents]


def _documents_in(message: Message) -> list[ChatDocument]:
    content = message["content"]
    return [] if isinstance(content, str) else [part for part in content if isinstance(part, ChatDocument)]


def replace_documents(messages: Sequence[Message], documents: Iterable[ChatDocument] = ()) -> list[Message]:
    """Replace the documents of the last message that contains documents. Remove documents that have no replacement."""
    given = iter(documents)
    replaced = list(messages)
    for index in reversed(range(len(messages))):
        message = messages[index]
        if _documents_in(message):
            parts = [next(given, None) if isinstance(part, ChatDocument) else part for part in message["content"]]
            replaced[index] = {**message, "content": [part for part in parts if part is not None]}
            break
    return replaced


def locate_all(prompt: str, documents: Sequence[ChatDocument]) -> Boundaries | None:
    """Locate documents in a prompt. Return ``None`` if a document's text does not occur verbatim."""
    located = locate(prompt, documents=[document.known_text for document in documents])
    return located if located.source == "documents" and located.n_found == len(documents) else None


def find_copies(texts: Sequence[str], contents: Iterable[str]) -> list[str]:
    """Return the texts that also occur as blocks of longer messages, where methods would not debias them."""
    stripped = [text.strip() for text in texts]
    messages_text = "\n".join(content for content in contents if content.strip() not in stripped)
    found = occurrences_by_document(messages_text, stripped)
    blocks = [text for text in found if any(is_block(messages_text, *occurrence.span) for occurrence in found[text])]
    return blocks if len(blocks) > 1 or any(map(is_long, blocks)) else []  # a short text may be a question


def name_absent(texts: Sequence[str], content: str) -> list[str]:
    """Return names such as ``documents[2]`` of the documents whose texts do not occur in ``content``."""
    found = occurrences_by_document(content, [text.strip() for text in texts])
    return [f"documents[{index}]" for index, text in enumerate(texts) if text.strip() not in found]


def render_conversation(
    chat_text: Callable[..., str],
    messages: Sequence[Message],
    form: AnswerFormat,
    documents: Sequence[str | ChatDocument] | None,
    join: Callable[[Sequence[Message]], list[Message]] = join_parts,
) -> RenderedConversation:
    """Render a conversation with the chat template. Documents that no message contains are passed to the template.

    Args:
        chat_text: a function such as ``DebiasedLM.chat_text``.
        documents: documents of the call. ``None`` selects the documents of the last message that contains documents.
        join: a function that joins the parts of each message into one text.
    """
    turns = join(messages)
    blocks = message_documents(messages)
    if documents is None:
        given = next(iter(blocks), [])
        shown = join(replace_documents(messages))
        searched = []
    else:
        given = [ChatDocument("", each) if isinstance(each, str) else each for each in documents]
        shown = searched = turns
    rendered = render_documents(partial(chat_text, form.with_instruction(shown), form.tools), given, searched)
    turns = form.with_instruction(turns)
    text, boundaries = rendered or (chat_text(turns, form.tools), None)
    prompt = text + form.beginning  # an f-string would lose the marks of control-token strings
    return RenderedConversation(prompt, turns, boundaries, [list(map(str, found)) for found in blocks])


def render_documents(
    chat_text: Callable[..., str], documents: Sequence[ChatDocument], messages: Iterable[Message]
) -> tuple[str, Boundaries] | None:
    """Render documents with a chat template that supports them, such as Granite's, and locate them.

    Return ``None`` if the template ignores documents or changes their texts. Also return ``None`` if the conversation
    contains all documents already, or if its ``messages`` contain some of them as separate blocks.
    """
    texts = [document.text for document in documents]
    contents = [turn["content"] for turn in messages if turn["role"] != "assistant"]
    if all(any(text in content for content in contents) for text in texts) or find_copies(texts, contents):
        return None
    plain = chat_text()
    if locate_all(plain, documents) is not None:
        return None
    for key in ("text", "content"):  # templates read different keys, and some print all keys

        def render(texts: Sequence[str], key: str = key) -> str:
            return chat_text(documents=[{**doc.fields, key: text} for doc, text in zip(documents, texts, strict=True)])

        prompt = render(texts)
        if prompt != plain:
            found = locate_all(prompt, documents)
            marked = locate_printed(render, texts)
            # if one document contains another, only the marks show which is which
            if marked is not None and (found is None or found.texts != marked[1].texts):
                return marked
            if found is not None:
                return prompt, found
    return None


def locate_printed(render: Callable[[Sequence[str]], str], texts: Sequence[str]) -> tuple[str, Boundaries] | None:
    """Render texts, and locate them by rendering a unique mark instead of each text.

    Return ``None`` if a mark is missing, repeated or out of order, or if the text around the marks changes.
    """
    marks = [uuid.uuid4().hex for _ in texts]
    marked = render(marks)
    parts = re.split("|".join(marks), marked)
    if re.findall("|".join(marks), marked) != marks:
        return None
    text = render(texts)
    if text != "".join(chain(*zip(parts, [*texts, ""], strict=True))):
        return None
    ends = accumulate(len(part + text) for part, text in zip(parts, texts, strict=False))
    spans = tuple((end - len(text), end) for end, text in zip(ends, texts, strict=True))
    n_left_plain = count_outside(text, occurrences_by_document(text, texts), spans)
    return text, Boundaries(spans, "documents", len(texts), "", n_left_plain, texts=spans)
