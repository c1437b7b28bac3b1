"""The documents of a request for another server, put into the order of a method."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from ragbias.adapters.untokenised import arranged, untokenised
from ragbias.boundaries import Boundaries, locate
from ragbias.methods import Method
from ragbias.serving.documents import check_count, check_found, in_block, in_front, in_prompt, no_message_for, printed
from ragbias.serving.errors import refused
from ragbias.serving.schemas import ArrangedFields, Document, Json
from ragbias.serving.settings import ServerSettings

END = "<|im_end|>"  # stands after a message while it is looked at: what follows it is no document
ROLES = ("system", "developer", "user", "tool")  # whose messages may hold documents


@dataclass(frozen=True)
class Arranged:
    """A body to pass on, and the report."""

    body: Json
    report: Json


@dataclass(frozen=True)
class _Text:
    """A text of a body: where it is, and how it is put back."""

    text: str
    replaced: Callable[[str], Json]
    is_last_of_user: bool = False


def arrange_chat(body: Json, fields: ArrangedFields, method: Method, settings: ServerSettings) -> Arranged:
    """A chat's body: the last message that holds the documents has them arranged.

    Documents that no message holds are put in front of the last message of the user, as a local model's.

    Raises:
        ApiError: ``messages`` are none, or there is no message for the documents.
    """
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages or not all(isinstance(message, dict) for message in messages):
        raise refused("messages", "messages: expected a list of messages")
    return _arranged(list(_texts(body, messages)), body, fields, method, settings, "messages")


def arrange_prompt(body: Json, fields: ArrangedFields, method: Method, settings: ServerSettings) -> Arranged:
    """A completion's body, whose prompt is a string."""
    prompt = body.get("prompt")
    if not isinstance(prompt, str):
        raise refused("prompt", "prompt: expected a string")
    return _arranged([_Text(prompt, lambda text: {**body, "prompt": text})], body, fields, method, settings, "prompt")


def _texts(body: Json, messages: Sequence[Json]) -> Iterator[_Text]:
    """The texts that may hold documents, parts of messages too, in their order."""
    last = max((at for at, message in enumerate(messages) if message.get("role") == "user"), default=-1)

    def of_message(at: int, content: Any) -> Json:
        content = content.removesuffix(END) if isinstance(content, str) else content
        return {**body, "messages": [*messages[:at], {**messages[at], "content": content}, *messages[at + 1 :]]}

    def of_part(at: int, parts: list[Any], inner: int, text: str) -> Json:
        return of_message(at, [*parts[:inner], {**parts[inner], "text": text.removesuffix(END)}, *parts[inner + 1 :]])

    for at, message in enumerate(messages):
        content = message.get("content")
        if message.get("role") not in ROLES:
            continue
        if isinstance(content, str):
            yield _Text(content + END, partial(of_message, at), at == last)
        elif isinstance(content, list):
            for inner, part in enumerate(content):
                if isinstance(part, dict) and isinstance(part.get("text"), str):
                    yield _Text(part["text"] + END, partial(of_part, at, content, inner), at == last)


def _arranged(
    texts: Sequence[_Text], body: Json, fields: ArrangedFields, method: Method, settings: ServerSettings, param: str
) -> Arranged:
    documents = fields.documents
    check_count(documents, settings.max_documents)
    holder, found = _found(texts, documents, settings)
    if documents and holder is None:
        holder, found = _put_in_front(texts, documents, param)
    if holder is None:
        holder = texts[-1] if texts else _Text("", lambda text: body)
    request = arranged(untokenised(holder.text, found, method, settings.strip_numbering))
    check_found(request, fields.options.on_missing or settings.on_missing)
    changed = request.origin.text != holder.text or bool(documents)
    return Arranged(holder.replaced(request.origin.text) if changed else body, request.report.as_dict())


def _found(
    texts: Sequence[_Text], documents: Sequence[Document] | None, settings: ServerSettings
) -> tuple[_Text | None, Boundaries]:
    """The last text that holds the documents, and where."""
    nothing = Boundaries((), "none", 0, "no documents were given, and no text holds any that can be recognised")
    if documents is not None and not documents:
        return None, locate("", documents=[])
    for each in reversed(texts):
        if documents:
            if (found := in_prompt(each.text, documents)) is not None:
                return each, found
            continue
        found = locate(each.text, segmenter=settings.separator or None)
        if found.n_found > 1:
            return each, found
        nothing = found
    return None, nothing


def _put_in_front(texts: Sequence[_Text], documents: Sequence[Document], param: str) -> tuple[_Text, Boundaries]:
    holder = next((each for each in texts if each.is_last_of_user), None)
    if holder is None:
        raise no_message_for(param)
    shown = [printed(each) for each in documents]
    text = in_front(shown, holder.text)
    return _Text(text, holder.replaced), in_block(text, shown)
