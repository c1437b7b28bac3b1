"""Where the documents of a request are in its prompt, or are put."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ragbias.boundaries import KnownText
from ragbias.boundaries.locate import Boundaries, locate
from ragbias.generation.request import Request, reason_to_run_plain
from ragbias.serving.errors import ApiError, refused
from ragbias.serving.schemas import ChatRequest, CompletionRequest, Document

SEPARATOR = "\n\n"
"""Stands after each document that is put in front of the last message of the user."""

Messages = list[dict[str, Any]]


def given_documents(body: ChatRequest | CompletionRequest, most: int) -> list[Document] | None:
    """The documents of a body, of either field; ``None`` if it names none.

    Raises:
        ApiError: both fields have some, or there are too many.
    """
    param, found = "documents", body.documents
    options = body.chat_template_kwargs if isinstance(body, ChatRequest) else None
    if options is not None and options.documents is not None:
        if found is not None:
            raise refused("documents", "documents are given twice, here and in chat_template_kwargs; give them once")
        param, found = "chat_template_kwargs.documents", options.documents
    check_count(found, most, param)
    return found


def check_count(documents: Sequence[Document] | None, most: int, param: str = "documents") -> None:
    """Raise a 400 for more documents than the server takes."""
    if documents is not None and len(documents) > most:
        reason = f"{param}: {len(documents)} documents; this server takes at most {most}"
        raise refused(param, reason, "too_many_documents")


def check_found(request: Request, on_missing: str) -> None:
    """Raise a 400 where a method has to run without the documents it needs, and ``on_missing`` is ``"raise"``."""
    wanted, origin = request.origin.wanted, request.origin
    if on_missing != "raise" or not wanted.needs_documents:
        return
    if origin.reason or reason_to_run_plain(origin.tokens, wanted.fewest_documents):
        why = f"{wanted.name} needs documents, and cannot run here: {request.report.reason}"
        raise refused("documents", f"{why}; send documents, or ragbias.on_missing='ignore'", "missing_documents")


def known_text(document: Document) -> KnownText:
    """A document's text, which knows what its title and metadata look like in print."""
    fields = {**({"title": document.title} if document.title else {}), **document.metadata}
    known = KnownText.of(document.text, fields, document.id)
    return KnownText(document.text, [*((str(at), each) for at, each in enumerate(document.printed)), *known.fields])


def printed(document: Document) -> str:
    """A document as it is put into a message: its title on a line of its own, and its text."""
    return f"{document.title}\n{document.text}" if document.title else document.text


def in_prompt(text: str, documents: Sequence[Document]) -> Boundaries | None:
    """Where all documents stand in a prompt as they are; ``None`` if not all do."""
    texts = [known_text(each) for each in documents]
    found = locate(text, documents=texts)
    return found if found.source == "documents" and found.n_found == len(texts) else None


def prompt_with(
    documents: Sequence[Document], messages: Messages, render: Callable[[Messages, dict[str, Any]], str]
) -> tuple[str, Boundaries]:
    """The prompt with its documents, and where they are.

    They are where the messages have them, if all do; else where the chat template puts them, if it knows documents;
    else in front of the last message of the user, each followed by a blank line.

    Args:
        render: the flat prompt of messages, with more variables for the template.

    Raises:
        ApiError: there is no message of the user, or the template changes the documents.
    """
    text = render(messages, {})
    if (found := in_prompt(text, documents)) is not None:
        return text, found
    shown = render(messages, {"documents": [_for_template(each) for each in documents]})
    if shown != text and (found := in_prompt(shown, documents)) is not None:
        return shown, found
    last = max((index for index, message in enumerate(messages) if message["role"] == "user"), default=None)
    if last is None:
        raise no_message_for("messages")
    texts = [printed(each) for each in documents]
    content = in_front(texts, messages[last]["content"])
    text = render([*messages[:last], {**messages[last], "content": content}, *messages[last + 1 :]], {})
    found = in_block(text, texts)
    if found.n_found < len(texts):
        why = "the model's chat template changes the documents, so they cannot be told apart"
        raise refused("documents", f"{why} ({found.n_found} of {len(texts)} found)", "invalid_documents")
    return text, found


def in_front(texts: Sequence[str], content: str) -> str:
    """A message with documents in front of its content."""
    return "".join(text + SEPARATOR for text in texts) + content


def no_message_for(param: str) -> ApiError:
    """A 400 for documents that are not in the prompt, and for which no message of the user is there.

    Args:
        param: the field of the body that holds the prompt.
    """
    message = "message of the user" if param == "messages" else "message"
    return refused(
        "documents",
        f"the documents are not in the {param} as they are, and there is no {message} to put them in front of",
        "invalid_documents",
    )


def in_block(text: str, texts: Sequence[str]) -> Boundaries:
    """Where documents are that were put there, each with a separator after it.

    Some cannot be told from the messages by their words alone, such as one that begins like another; they are where
    they were put.
    """
    found = locate(text, documents=texts)
    block = SEPARATOR.join(texts)
    if found.n_found == len(texts) or text.count(block) != 1:
        return found
    begin, spans = text.index(block), []
    for each in texts:
        spans.append((begin, begin + len(each)))
        begin += len(each) + len(SEPARATOR)
    return Boundaries(tuple(spans), "documents", len(texts), "", texts=tuple(spans))


def _for_template(document: Document) -> dict[str, Any]:
    """As chat templates that know documents read one."""
    return {"title": document.title or "", "text": document.text, "content": document.text, **document.metadata}
