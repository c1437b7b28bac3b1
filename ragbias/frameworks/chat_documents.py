"""Documents of a conversation, as content blocks of messages or rendered by the chat template."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate, chain
from typing import Any, NamedTuple

from ragbias.boundaries import Boundaries, KnownText, locate

BLOCKS = ("text-plain", "search_result", "document")  # types of content blocks of LangChain and Anthropic


Message = dict[str, Any]
"""A message for chat templates. Its content is a text, or a list of texts and ``ChatDocument``."""


class ChatDocument(NamedTuple):
    """A document in a conversation, such as a content block of a message."""

    title: str
    text: str

    def __str__(self) -> str:
        return f"{self.title}\n{self.text}" if self.title else self.text

    @property
    def fields(self) -> dict[str, str]:
        return {"title": self.title} if self.title else {}

    @property
    def known_text(self) -> KnownText:
        return KnownText(self.text, self.fields.items())


def block_document(block: Mapping[Any, Any]) -> ChatDocument | None:
    """Return the document in a content block of one of the types ``BLOCKS``, or None if it has no text."""
    content, source, title = block.get("text") or block.get("content"), block.get("source"), block.get("title")
    if block.get("type") not in BLOCKS:
        return None
    if isinstance(source, dict) and source.get("type") in ("text", "content"):  # Anthropic's document
        content = source.get("data") or source.get("content")
    if isinstance(content, list):
        texts = (part.get("text") for part in content if isinstance(part, dict) and part.get("type") == "text")
        content = "\n".join(text for text in texts if isinstance(text, str))
    if not isinstance(content, str) or not content.strip():
        return None
    return ChatDocument(title if isinstance(title, str) else "", content)


def join_parts(messages: Iterable[Message]) -> list[Message]:
    """Join the parts of each message's content. A blank line separates a document from other parts."""
    return [{**message, "content": _content_text(message["content"])} for message in messages]


def _content_text(parts: str | Sequence[str | ChatDocument]) -> str:
    content = ""
    for part in parts:
        is_document = isinstance(part, ChatDocument)
        blank = "\n\n" if is_document and content and not content.endswith("\n") else ""
        content += f"{blank}{part}" + ("\n\n" if is_document else "")
    return content


def message_documents(messages: Sequence[Message]) -> list[list[ChatDocument]]:
    """Return the documents of each message that has documents, the latest message first."""
    found = ([part for part in each["content"] if isinstance(part, ChatDocument)] for each in reversed(messages))
    return [documents for documents in found if documents]


def replace_documents(messages: Sequence[Message], documents: Iterable[ChatDocument] = ()) -> list[Message]:
    """Replace the documents of the last message with documents. Remove documents without a replacement."""
    given, replaced = iter(documents), list(messages)
    for index in reversed(range(len(messages))):
        content = messages[index]["content"]
        if any(isinstance(part, ChatDocument) for part in content):
            parts = [next(given, "") if isinstance(part, ChatDocument) else part for part in content]
            replaced[index] = {**messages[index], "content": parts}
            break
    return replaced


def in_prompt(prompt: str, texts: Sequence[str]) -> Boundaries | None:
    """Locate documents in a prompt. Return ``None`` if one does not occur verbatim."""
    located = locate(prompt, documents=texts)
    return located if located.source == "documents" and located.n_found == len(texts) else None


def by_template(chat_text: Callable[..., str], documents: Sequence[ChatDocument]) -> tuple[str, Boundaries] | None:
    """Render the documents with the chat template. Return the prompt and their spans.

    Return ``None`` if the conversation already contains the documents, or the template does not render them.
    """
    texts = [document.known_text for document in documents]
    if not documents or in_prompt(plain := chat_text(), texts) is not None:
        return None
    return render_documents(plain, lambda more: chat_text(**more), [document.fields for document in documents], texts)


def render_documents(
    plain: str, render: Callable[[dict[str, Any]], str], fields: Sequence[Mapping[str, Any]], texts: Sequence[str]
) -> tuple[str, Boundaries] | None:
    """Render documents with a chat template that supports them, such as Granite's. Return the prompt and their spans.

    Args:
        plain: the prompt without documents.
        render: a function that renders the conversation with additional template variables.
        fields: the title and other metadata of each document.
        texts: the documents' texts.

    Return ``None`` if the template ignores documents, or changes their texts.
    """
    for key in ("text", "content"):  # one key at a time, because some templates print all keys

        def rendered(texts: Sequence[str], key: str = key) -> str:
            return render({"documents": [{**own, key: str(text)} for own, text in zip(fields, texts, strict=True)]})

        prompt = rendered(texts)
        if prompt != plain:
            found, exact = in_prompt(prompt, texts), locate_printed(rendered, texts)
            if exact is not None and (found is None or found.texts != exact.texts):  # one document may contain another
                found = exact
            if found is not None:
                return prompt, found
    return None


def locate_printed(render: Callable[[Sequence[str]], str], texts: Sequence[str]) -> Boundaries | None:
    """Locate texts in the output of ``render``. Return ``None`` unless each occurs once, unchanged, in this order."""
    marks = [uuid.uuid4().hex for _ in texts]
    marked = render(marks)
    parts = re.split("|".join(marks), marked)
    if re.findall("|".join(marks), marked) != marks:
        return None
    if render(texts) != "".join(chain(*zip(parts, [*texts, ""], strict=True))):
        return None
    ends = accumulate(len(part + text) for part, text in zip(parts, texts, strict=False))
    spans = tuple((end - len(text), end) for end, text in zip(ends, texts, strict=True))
    return Boundaries(spans, "documents", len(texts), "", texts=spans)
