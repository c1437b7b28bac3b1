"""The method and the documents of a request, and where the documents are in its prompt."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from ragbias import methods
from ragbias.boundaries import KnownText
from ragbias.boundaries.locate import Boundaries, locate
from ragbias.generation.request import Request, reason_to_run_plain
from ragbias.methods import Method
from ragbias.serving.errors import METHOD, ApiError, refused
from ragbias.serving.schemas import ArrangedFields, Document, Json

SEPARATOR = "\n\n"
"""Follows each document that the server inserts before the user's last message."""
# in a method: the parameter that is a file, and what only paths hold
_NAMES_A_FILE = re.compile(r"\bprofile\s*=|[/\\~]|(?<!\d)\.(?!\d)")


def client_method(typed: str | None, default: Method, model_name: str | None = None) -> Method:
    """The method that a request names.

    Raises:
        ApiError: the text names a file of the server.
        UnknownMethodError, MethodError: see ``ragbias.methods.get``.
    """
    if typed is None:
        return default
    if _NAMES_A_FILE.search(typed):
        message = f"{METHOD}: a request cannot name a file; start the server with this method"
        raise refused(METHOD, message)
    return methods.get(typed, model_name)


def given_documents(body: ArrangedFields, most: int) -> list[Document] | None:
    """The documents of a body; None if it names none.

    Raises:
        ApiError: there are too many, or two fields hold documents.
    """
    found, template = body.documents, getattr(body, "chat_template_kwargs", None)
    if template is not None and template.documents is not None:
        if found is not None:
            raise refused("documents", "documents are given twice, here and in chat_template_kwargs; give them once")
        found = template.documents
    if found is not None and len(found) > most:
        message = f"documents: {len(found)} documents; expected at most {most}, the limit of this server"
        raise refused("documents", message, "too_many_documents")
    return found


def check_found(request: Request, on_missing: str) -> None:
    """Raise a 400 if ``on_missing`` is ``"raise"`` and the method runs plain for lack of documents."""
    origin = request.origin
    if on_missing != "raise" or not origin.wanted.needs_documents:
        return
    if origin.reason or reason_to_run_plain(origin.tokens, origin.wanted.fewest_documents):
        why = f"{origin.wanted.name} needs documents, and cannot run here: {request.report.reason}"
        raise refused("documents", f"{why}; send documents, or ragbias.on_missing='ignore'", "missing_documents")


def known_text(document: Document) -> KnownText:
    """A document's text with the printed forms of its title and metadata."""
    fields = {**({"title": document.title} if document.title else {}), **document.metadata}
    known = KnownText.of(document.text, fields, document.id)
    return KnownText(document.text, [*((str(at), each) for at, each in enumerate(document.printed)), *known.fields])


def in_prompt(text: str, documents: Sequence[Document]) -> Boundaries | None:
    """The spans of the documents in a prompt; None unless all occur verbatim."""
    found = locate(text, documents=[known_text(each) for each in documents])
    return found if found.source == "documents" and found.n_found == len(documents) else None


def prompt_with(
    documents: Sequence[Document], messages: list[Json], render: Callable[[list[Json], Json], str]
) -> tuple[str, Boundaries]:
    """The prompt with its documents, and their spans.

    The documents are left where the messages hold them, if all occur there. Else the chat template renders them, if it
    knows documents. Else they are inserted before the user's last message, with a blank line after each.

    Args:
        render: gives the flat prompt of messages, with more variables for the template.

    Raises:
        ApiError: there is no user message, or the template changes the documents.
    """
    text = render(messages, {})
    if (found := in_prompt(text, documents)) is not None:
        return text, found
    rendered = render(messages, {"documents": [_for_template(each) for each in documents]})
    if rendered != text and (found := in_prompt(rendered, documents)) is not None:
        return rendered, found
    last = max((index for index, message in enumerate(messages) if message["role"] == "user"), default=None)
    if last is None:
        raise nowhere_to_put("messages")
    inserted, texts = with_documents(documents, messages[last]["content"])
    text = render([*messages[:last], {**messages[last], "content": inserted}, *messages[last + 1 :]], {})
    found = in_block(text, texts)
    if found.n_found < len(texts):
        why = f"the model's chat template changes the documents ({found.n_found} of {len(texts)} found)"
        raise refused("documents", f"{why}; put them into the messages", "invalid_documents")
    return text, found


def with_documents(documents: Sequence[Document], content: str) -> tuple[str, list[str]]:
    """A message with documents before its content, and their texts as inserted, each after its title."""
    texts = [f"{each.title}\n{each.text}" if each.title else each.text for each in documents]
    return "".join(text + SEPARATOR for text in texts) + content, texts


def nowhere_to_put(param: str) -> ApiError:
    """A 400 for documents that are not in the prompt and cannot be inserted.

    Args:
        param: field of the body that holds the prompt.
    """
    message = f"{param}: the documents do not occur there verbatim, and there is no user message to insert them into"
    return refused("documents", message, "invalid_documents")


def in_block(text: str, texts: Sequence[str]) -> Boundaries:
    """The spans of inserted documents.

    Their position is known, so documents that contain each other are not searched for one by one.
    """
    block = SEPARATOR.join(texts)
    if text.count(block) != 1:
        return locate(text, documents=texts)
    begin, spans = text.index(block), []
    for each in texts:
        spans.append((begin, begin + len(each)))
        begin += len(each) + len(SEPARATOR)
    return Boundaries(tuple(spans), "documents", len(texts), "", texts=tuple(spans))


def _for_template(document: Document) -> Json:
    """A document as chat templates read it."""
    return {"title": document.title or "", "text": document.text, "content": document.text, **document.metadata}
