"""Request bodies: OpenAI's fields, and the fields ``documents`` and ``ragbias``."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    WithJsonSchema,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from ragbias import limits
from ragbias.display import json_type, shown
from ragbias.errors import ArgumentError
from ragbias.frameworks.chat_documents import BLOCKS, ChatDocument, block_document, content_fields

Json = dict[str, Any]
TEXT_KEYS = ("text", "content", "snippet")  # the first of these keys in a document's data has the text


def accept_only(*neutral: Any) -> AfterValidator:
    """Return a validator for an unsupported OpenAI field. It accepts only None and ``neutral`` values."""

    def check(value: Any) -> Any:
        if value is not None and value not in neutral:
            message = "not supported; leave it out, or send {expected}"
            raise PydanticCustomError("unsupported_parameter", message, {"expected": " or ".join(map(repr, neutral))})
        return value

    return AfterValidator(check)


class _Fields(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, protected_namespaces=())


class Document(_Fields):
    """A retrieved document: a string, ``{"title", "text"}``, or ``{"id", "data": {...}}``."""

    text: str
    title: str | None = None
    id: str | None = None
    metadata: dict[str, JsonValue] = {}
    printed: list[str] = Field(default=[], description="Metadata values as they occur in the messages.")

    @model_validator(mode="before")
    @classmethod
    def _from_any_form(cls, value: Any) -> Any:
        if isinstance(value, str):
            return {"text": value}
        if not isinstance(value, dict):
            raise ValueError(f'expected a string, {{"title", "text"}} or {{"id", "data": ...}}, not {json_type(value)}')
        if "data" not in value:
            return value
        data = value["data"]
        if isinstance(data, str):
            return {"id": value.get("id"), "text": data}
        fields = data if isinstance(data, dict) else {}
        key = next((key for key in TEXT_KEYS if isinstance(fields.get(key), str)), None)
        if key is None:
            raise ValueError(f"data has no text; expected one of {', '.join(TEXT_KEYS)}")
        metadata = {name: field for name, field in fields.items() if name not in (key, "title")}
        return {"id": value.get("id"), "text": fields[key], "title": fields.get("title"), "metadata": metadata}

    @field_validator("text")
    @classmethod
    def _not_empty(cls, text: str) -> str:
        if not text.strip():
            raise ValueError("the document has no text; leave it out")
        return text

    @property
    def in_chat(self) -> ChatDocument:
        return ChatDocument(self.title or "", self.text, self.metadata, self.id, self.printed)


_STRING = {"type": "string"}
_TEXT = {"type": "object", "properties": {"text": _STRING, "title": _STRING, "id": _STRING}, "required": ["text"]}
_DATA = {"type": "object", "properties": {"text": _STRING}, "required": ["text"]}
_DATA_FORM = {"type": "object", "properties": {"id": _STRING, "data": _DATA}, "required": ["data"]}
AnyDocument = Annotated[Document, WithJsonSchema({"anyOf": [_STRING, _TEXT, _DATA_FORM]})]


class RequestOptions(_Fields):
    """The field ``ragbias`` of a request."""

    method: str | None = Field(
        default=None, description="Method for this request, such as `none` or `attention-sorting(rounds=2)`."
    )
    on_missing: limits.OnMissing | None = Field(
        default=None, description="`raise` rejects the request if the method needs documents and none are found."
    )
    raw: bool = Field(default=False, description="Return the model's text unchanged, without parsing tool calls.")


class StreamOptions(_Fields):
    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class TemplateOptions(BaseModel):
    """Variables for the model's chat template. ``documents`` has the same meaning as the field of the body."""

    model_config = ConfigDict(extra="allow", strict=True)

    documents: list[AnyDocument] | None = None

    __pydantic_extra__: dict[str, JsonValue] = Field(init=False)


class ArrangedFields(_Fields):
    """The fields that ragbias adds to OpenAI's. The proxy validates only these fields."""

    documents: list[AnyDocument] | None = None
    ragbias: RequestOptions | None = None

    @property
    def options(self) -> RequestOptions:
        """The ``ragbias`` field, or default options if it is missing."""
        return self.ragbias or RequestOptions()


class _GenerationFields(ArrangedFields):
    """The fields that chat and completion requests have in common."""

    model: str
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Annotated[int, limits.POSITIVE_INT64] | None = None
    temperature: Annotated[float, limits.TEMPERATURE] | None = None
    top_p: Annotated[float, limits.TOP_P] | None = None
    top_k: Annotated[int, limits.POSITIVE_INT64] | None = None
    # division by a lower penalty may overflow the logits, and then answers fail with status 500
    repetition_penalty: Annotated[float, limits.REPETITION_PENALTY, Field(ge=0.01)] | None = None
    seed: Annotated[int, limits.SAMPLING_SEED] | None = None
    stop: str | list[str] | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    n: Annotated[int | None, accept_only(1)] = None
    presence_penalty: Annotated[float | None, accept_only(0)] = None
    frequency_penalty: Annotated[float | None, accept_only(0)] = None
    logit_bias: Annotated[dict[str, JsonValue] | None, accept_only({})] = None

    @field_validator("stop", mode="before")
    @classmethod
    def _stop_strings(cls, stop: Any) -> Any:
        words = [stop] if isinstance(stop, str) else stop
        valid = isinstance(words, list) and all(isinstance(word, str) and word for word in words)
        if not (words is None or valid):
            raise ValueError("expected a non-empty string or a list of them")
        return words


class TextPart(_Fields):
    type: Literal["text"]
    text: str

    @property
    def in_chat(self) -> str:
        return self.text


_TITLE = {"type": {"enum": list(BLOCKS)}, "title": _STRING}
DocumentPart = Annotated[Document, WithJsonSchema({"type": "object", "properties": _TITLE, "required": ["type"]})]


class FunctionCall(_Fields):
    name: str
    arguments: str  # JSON


class EarlierToolCall(_Fields):
    """A tool call in an earlier message of the assistant."""

    id: str
    type: Literal["function"] = "function"
    function: FunctionCall
    index: int | None = None


class Message(_Fields):
    """A message of the conversation. Fields that OpenAI adds to its answers are accepted and ignored."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart | DocumentPart] | None = None
    name: str | None = None
    tool_calls: list[EarlierToolCall] | None = None
    tool_call_id: str | None = None
    refusal: JsonValue = None
    annotations: JsonValue = None
    audio: JsonValue = None
    function_call: JsonValue = None
    reasoning_content: JsonValue = None

    @field_validator("content", mode="before")
    @classmethod
    def _join_texts(cls, content: Any) -> Any:
        """Join text parts into one string, unless the content has document parts."""
        if content is None or isinstance(content, str):
            return content
        if not isinstance(content, list) or not content:
            raise ValueError(f"expected a string, or a list of at least one part, not {json_type(content)}")
        parts = [_part(part, f"content[{index}]") for index, part in enumerate(content)]
        has_only_text = all(isinstance(part, TextPart) for part in parts)
        return "".join(part.text for part in parts) if has_only_text else parts

    @property
    def parts(self) -> list[str | ChatDocument]:
        """The content as a list of texts and documents."""
        return [self.content] if isinstance(self.content, str) else [part.in_chat for part in self.content or ()]


def _part(part: Any, name: str) -> TextPart | Document:
    kind = part.get("type") if isinstance(part, dict) else type(part).__name__
    if kind == "text" and isinstance(part.get("text"), str):
        if unknown := content_fields(part).keys() - {"text", "annotations"}:
            what = f"a part of type 'text' has the field {shown(min(unknown))}"
            raise ValueError(f'{name}: {what}; expected text only: {{"type": "text", "text": ...}}')
        return TextPart(type="text", text=part["text"])
    try:
        if isinstance(part, dict) and (document := block_document(part)):
            return Document(text=document.text, title=document.title)
    except ArgumentError as error:
        raise ValueError(f"{name}: {error}") from error
    wanted = f'{{"type": "text", "text": ...}}, or the text of a document ({", ".join(BLOCKS)})'
    raise ValueError(f"{name}: a part of type {shown(kind)}; expected text only: {wanted}")


class ChatRequest(_GenerationFields):
    """The body of ``POST /v1/chat/completions``."""

    messages: Annotated[list[Message], Field(min_length=1)]
    max_completion_tokens: Annotated[int, limits.POSITIVE_INT64] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int | None, accept_only(0)] = None
    tools: list[dict[str, JsonValue]] | None = None
    tool_choice: JsonValue = None
    parallel_tool_calls: bool | None = None
    response_format: dict[str, JsonValue] | None = None
    chat_template_kwargs: TemplateOptions | None = None
    metadata: JsonValue = None
    store: Annotated[bool | None, accept_only(False)] = None
    service_tier: Annotated[str | None, accept_only("auto", "default")] = None
    reasoning_effort: Annotated[str | None, accept_only("none")] = None
    modalities: Annotated[list[str] | None, accept_only(["text"])] = None


class CompletionRequest(_GenerationFields):
    """The body of ``POST /v1/completions``."""

    prompt: str
    logprobs: Annotated[int | None, accept_only(0)] = None
    echo: Annotated[bool | None, accept_only(False)] = None
    best_of: Annotated[int | None, accept_only(1)] = None
    suffix: Annotated[str | None, accept_only("")] = None


RequestBody = ChatRequest | CompletionRequest


class TokenizeRequest(_Fields):
    """The body of ``POST /tokenize``, as in vLLM."""

    model: str
    prompt: str
    add_special_tokens: bool = False
