"""Convert a request body to a prompt: select the method, render the chat template, and locate the documents."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from ragbias import methods
from ragbias.boundaries import Boundaries, locate
from ragbias.boundaries.locating import NOTHING_GIVEN
from ragbias.boundaries.recognisers import document_elements
from ragbias.errors import ArgumentError
from ragbias.frameworks import chat_documents, tool_use
from ragbias.frameworks.chat_documents import ChatDocument
from ragbias.frameworks.tool_formats import parse_arguments
from ragbias.frameworks.tool_use import AnswerFormat
from ragbias.generation import Request
from ragbias.lm import DebiasedLM
from ragbias.methods import Method
from ragbias.readers import shipped_readers
from ragbias.serving.errors import METHOD, ApiError, bad_request
from ragbias.serving.schemas import ArrangedFields, ChatRequest, EarlierToolCall, Json, Message
from ragbias.serving.settings import ServerSettings

SEPARATOR = "\n\n"
"""Text after each document that server and proxy insert at the beginning of the user's last message."""
NOT_NAMED = f"{NOTHING_GIVEN}; send the field 'documents', or start the server with --separator or --segmenter"
CHARACTERS_PER_TOKEN = 16  # about three times the average
LONGEST_METHOD = 1_000  # maximum number of characters of a method with its parameters
# a method with a file path: it has a parameter for paths, or characters that occur only in paths
_NAMES_A_FILE = re.compile(r"\b(profile|reader)\s*=|[/\\~]|(?<!\d)\.(?!\d)")
_READER = re.compile(r"\breader=([\w-]+)(?=[,)])")
# template variables that clients must not set
RESERVED = (
    "tokenize", "add_generation_prompt", "return_dict", "return_tensors", "chat_template", "conversation", "tools",
    "messages",
)  # fmt: skip


def client_method(requested: str | None, default: Method, model_name: str | None = None) -> Method:
    """Return the method that a request names, or ``default``. Reject methods that name a file on the server."""
    if requested is None:
        return default
    if len(requested) > LONGEST_METHOD:
        raise bad_request(METHOD, f"{METHOD}: {len(requested):,} characters; expected at most {LONGEST_METHOD}")
    without_shipped = _READER.sub(lambda match: "" if match[1] in shipped_readers() else match[0], requested)
    if _NAMES_A_FILE.search(without_shipped):
        raise bad_request(METHOD, f"{METHOD}: a request cannot name a file; start the server with this method")
    return methods.get(requested, model_name)


def check_characters(text: str, lm: DebiasedLM, param: str) -> None:
    """Raise a 400 for a text that cannot fit the model's context window, before the text is tokenised."""
    limit = lm.window * CHARACTERS_PER_TOKEN
    if len(text) > limit:
        message = f"{param}: {len(text):,} characters; expected at most {limit:,} for the model's context window"
        raise bad_request(param, message, "context_length_exceeded")


def documents_of(body: ArrangedFields, limit: int) -> list[ChatDocument] | None:
    """Return the documents of a body, or None if no field contains them. Raise a 400 for more than ``limit``."""
    documents = body.documents
    template = getattr(body, "chat_template_kwargs", None)
    if template is not None and template.documents is not None:
        if documents is not None:
            raise bad_request("documents", "documents are given here and in chat_template_kwargs; give them once")
        documents = template.documents
    check_document_count(documents or (), limit)
    return None if documents is None else [document.in_chat for document in documents]


def check_document_count(documents: Sequence[object], limit: int) -> None:
    """Raise a 400 for more than ``limit`` documents."""
    if len(documents) > limit:
        message = f"documents: {len(documents)} documents; expected at most {limit}, the limit of this server"
        raise bad_request("documents", message, "too_many_documents")


def find_documents(text: str, documents: Sequence[ChatDocument] | None, settings: ServerSettings) -> Boundaries | None:
    """Locate ``documents`` in a text. Return None if one of them does not occur verbatim.

    ``documents=[]`` means that the text has no documents. With ``None``, the segmenter or the separator of the settings
    finds them. If the settings have neither, but the text has two or more XML elements, the elements are the documents.
    """
    if documents:
        return chat_documents.locate_all(text, documents)
    elements = document_elements if len(document_elements(text)) > 1 else None
    segmenter = settings.segmenter or settings.separator or elements
    found = locate(text, documents=None if documents is None else [], segmenter=segmenter)
    check_document_count(found.spans, settings.max_documents)
    return replace(found, reason=NOT_NAMED) if found.reason == NOTHING_GIVEN else found


def check_documents_found(request: Request, on_missing: str) -> None:
    """With ``on_missing="raise"``, raise a 400 if the method cannot run because documents are missing."""
    if on_missing == "raise" and request.why_plain:
        why = f"{request.method_requested.name} needs documents, and cannot run here: {request.report.reason}"
        raise bad_request("documents", f"{why}. ragbias.on_missing='ignore' runs the plain model", "missing_documents")


def check_copies(documents: Sequence[ChatDocument], contents: Iterable[str]) -> None:
    """Raise a 400 if messages contain only some of the documents.

    Otherwise, the order of these documents would affect the answer. A message whose whole text equals a document is
    ignored, because it may be the user's question.
    """
    texts = [document.text for document in documents]
    contents = list(contents)
    if chat_documents.find_copies(texts, contents):
        absent = next(iter(chat_documents.name_absent(texts, "\n".join(contents))), "together")
        message = f"documents: the messages contain some, but not {absent}; leave all of them out of the messages"
        raise bad_request("documents", f"{message}, or send each verbatim as in a message", "invalid_documents")


def render_chat(
    chat_text: Callable[..., str],
    messages: list[Json],
    documents: Sequence[ChatDocument] | None,
    form: AnswerFormat,
    settings: ServerSettings,
) -> tuple[str, Boundaries]:
    """Render a conversation with its documents as one prompt, and locate the documents.

    If the messages contain all ``documents``, the documents stay in place. If the messages contain none, the chat
    template renders the documents. If the template does not support documents, they are inserted at the beginning of
    the user's last message.

    ``documents=None`` selects the documents of the last message with documents. The chat template renders them. If it
    does not support documents, they stay in place.

    Raises:
        ApiError: the messages contain only some of the documents, or there is no user message.
    """
    if documents is not None:
        messages = chat_documents.join_parts(messages)  # documents in messages are then ordinary text
    for latest in chat_documents.message_documents(messages)[:1]:
        check_document_count(latest, settings.max_documents)
    chat = chat_documents.render_conversation(chat_text, messages, form, documents)
    if chat.boundaries is not None:
        return chat.prompt, chat.boundaries
    if documents or not chat.blocks:
        boundaries = find_documents(chat.prompt, documents, settings)
        if boundaries is not None:
            return chat.prompt, boundaries
        assert documents is not None
        check_copies(documents, (message["content"] for message in messages if message["role"] != "assistant"))
        users = [index for index, message in enumerate(messages) if message["role"] == "user"]
        if not users:
            raise missing_documents("messages", chat.prompt, documents)
        inserted = [ChatDocument("", str(document).lstrip()) for document in documents]
        last = messages[users[-1]]
        messages[users[-1]] = {**last, "content": [*inserted, last["content"]]}

    def render(texts: Sequence[str]) -> str:
        replaced = chat_documents.replace_documents(messages, [ChatDocument("", text) for text in texts])
        turns = form.with_instruction(chat_documents.join_parts(replaced))
        return chat_text(turns, form.tools) + form.beginning

    return locate_inserted(render, [str(document) for document in chat_documents.message_documents(messages)[0]])


def locate_inserted(render: Callable[[Sequence[str]], str], texts: Sequence[str]) -> tuple[str, Boundaries]:
    """Render a prompt with documents, and locate them. Raise a 400 if the chat template changes their texts."""
    rendered = chat_documents.locate_printed(render, texts)
    if rendered is None:
        message = "the model's chat template changes the documents; put them into the messages as text"
        raise bad_request("documents", message, "invalid_documents")
    return rendered


def missing_documents(param: str, text: str, documents: Sequence[ChatDocument]) -> ApiError:
    """Return a 400 response that names the documents missing from ``text``, the value of the field ``param``."""
    names = ", ".join(chat_documents.name_absent([document.text for document in documents], text)) or "the documents"
    message = f"{param}: {names} not found; add each document verbatim to one text, or add a user message"
    return bad_request("documents", message, "invalid_documents")


def template_messages(body: ChatRequest) -> list[Json]:
    """Convert messages to dicts for chat templates. Each content is a list of texts and documents."""
    return [_template_message(message, f"messages[{index}]") for index, message in enumerate(body.messages)]


def _template_message(message: Message, param: str) -> Json:
    role = "system" if message.role == "developer" else message.role
    calls = [
        tool_use.template_call(call.function.name, _arguments(call, f"{param}.tool_calls[{index}]"), call.id)
        for index, call in enumerate(message.tool_calls or ())
    ]
    result = (message.tool_call_id or "", message.name) if role == "tool" else ()
    return tool_use.template_message(role, message.parts, calls, *result)


def _arguments(call: EarlierToolCall, param: str) -> Json:
    arguments = parse_arguments(call.function.arguments)
    if arguments is None:
        param = f"{param}.function.arguments"
        raise bad_request(param, f"{param}: expected a JSON object, as text")
    return arguments


def chat_renderer(lm: DebiasedLM, body: ChatRequest) -> Callable[..., str]:
    """Return ``lm.chat_text`` with the template variables of a request. Errors of the chat template become a 400."""
    variables = dict(body.chat_template_kwargs.__pydantic_extra__ or {}) if body.chat_template_kwargs else {}
    if reserved := sorted(variables.keys() & set(RESERVED)):
        param = f"chat_template_kwargs.{reserved[0]}"
        raise bad_request(param, f"{param} is set by the server; leave it out", "unsupported_parameter")

    def chat_text(turns: Sequence[Json], tools: Sequence[Json] = (), **more: Any) -> str:
        try:
            text = lm.chat_text(turns, tools, **{**variables, **more})
        except ArgumentError as error:
            raise bad_request("messages", str(error), "no_chat_template") from error
        except Exception as error:  # templates raise errors of any class
            message = f"the model's chat template rejects this conversation: {error.__cause__ or error!s:.300}"
            raise bad_request("messages", message) from error
        check_characters(text, lm, "messages")
        return text

    return chat_text
