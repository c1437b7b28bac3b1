"""What clients may send, field by field; the names are OpenAI's, ``documents`` and ``ragbias`` are added."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, WithJsonSchema, field_validator, model_validator

from ragbias.adapters.missing_documents import OnMissing
from ragbias.display import shown
from ragbias.serving.errors import refused

Json = dict[str, Any]
TEXT_KEYS = ("text", "content", "snippet")  # of a document's data, the first that is there
Text = Annotated[str, Field(strict=True)]
Integer = Annotated[int, Field(strict=True)]
Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
Boolean = Annotated[bool, Field(strict=True)]
Objects = list[dict[str, JsonValue]]


class _Fields(BaseModel):
    model_config = ConfigDict(extra="forbid", protected_namespaces=())


class Document(_Fields):
    """A retrieved document: a string, ``{"title", "text"}``, or ``{"id", "data": {...}}``."""

    text: Text
    title: Text | None = None
    id: Text | None = None
    metadata: dict[str, JsonValue] = {}
    printed: list[Text] = Field(default=[], description="How its metadata stand in the messages, where that is known.")

    @model_validator(mode="before")
    @classmethod
    def _of_any_form(cls, given: Any) -> Any:
        if isinstance(given, str):
            return {"text": given}
        if not isinstance(given, dict):
            raise ValueError('expected a string, {"title", "text"} or {"id", "data": {...}}')
        if "data" not in given:
            return given
        data = given["data"]
        if isinstance(data, str):
            return {"id": given.get("id"), "text": data}
        key = next((key for key in TEXT_KEYS if isinstance(data, dict) and isinstance(data.get(key), str)), None)
        if key is None:
            raise ValueError(f"data has no text; expected one of {', '.join(TEXT_KEYS)}")
        rest = {name: value for name, value in data.items() if name not in (key, "title")}
        return {"id": given.get("id"), "text": data[key], "title": data.get("title"), "metadata": rest}

    @field_validator("text")
    @classmethod
    def _not_empty(cls, text: str) -> str:
        if not text.strip():
            raise ValueError("a document without text; leave it out")
        return text


_DOCUMENT_FORMS = {
    "anyOf": [
        {"type": "string"},
        {
            "type": "object",
            "properties": {"text": {"type": "string"}, "title": {"type": "string"}, "id": {"type": "string"}},
            "required": ["text"],
        },
        {
            "type": "object",
            "properties": {
                "id": {"type": "string"},
                "data": {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
            },
            "required": ["data"],
        },
    ]
}
AnyDocument = Annotated[Document, WithJsonSchema(_DOCUMENT_FORMS)]


class RagBiasOptions(_Fields):
    """What goes beyond OpenAI's fields."""

    method: Text | None = Field(
        default=None, description="Instead of the server's: `pine`, `none`, `attention-sorting(rounds=2)`."
    )
    on_missing: OnMissing | None = Field(
        default=None, description="`raise` refuses a request whose method needs documents and finds none."
    )
    raw: Boolean = Field(
        default=False, description="The content is what the model wrote; calls of tools stand in it unread."
    )


class StreamOptions(_Fields):
    """Options of a streamed answer."""

    include_usage: Boolean | None = None
    include_obfuscation: Boolean | None = None


class TemplateOptions(BaseModel):
    """Variables for the model's chat template; ``documents`` are those of the body."""

    model_config = ConfigDict(extra="allow")

    documents: list[AnyDocument] | None = None

    __pydantic_extra__: dict[str, JsonValue] = Field(init=False)


class ArrangedFields(_Fields):
    """The fields of a body that are ours; a proxy reads no others."""

    documents: list[AnyDocument] | None = None
    ragbias: RagBiasOptions | None = None

    @property
    def options(self) -> RagBiasOptions:
        """The options of ``ragbias``."""
        return self.ragbias or RagBiasOptions()


class _Request(ArrangedFields):
    """What chat and completion have in common."""

    model: Text
    stream: Boolean | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Annotated[Integer, Field(ge=1)] | None = None
    temperature: Annotated[Number, Field(ge=0)] | None = None
    top_p: Annotated[Number, Field(gt=0, le=1)] | None = None
    top_k: Annotated[Integer, Field(ge=1)] | None = None
    repetition_penalty: Annotated[Number, Field(ge=0.01, le=100)] | None = None
    seed: Annotated[Integer, Field(ge=-(2**63), le=2**64 - 1)] | None = None
    stop: Text | list[Text] | None = None
    user: Text | None = None
    safety_identifier: Text | None = None
    prompt_cache_key: Text | None = None
    n: Integer | None = None
    presence_penalty: Number | None = None
    frequency_penalty: Number | None = None
    logit_bias: dict[str, JsonValue] | None = None

    @field_validator("stop", mode="before")
    @classmethod
    def _stop_strings(cls, stop: Any) -> Any:
        words = [stop] if isinstance(stop, str) else stop
        if words is None:
            return None
        if not (isinstance(words, list) and all(isinstance(each, str) and each for each in words)):
            raise ValueError("expected a string that is not empty, or a list of them")
        return words


class TextPart(_Fields):
    """A part of a message."""

    type: Literal["text"]
    text: Text


class FunctionCall(_Fields):
    """A tool's name and arguments, as JSON."""

    name: Text
    arguments: Text


class ToolCall(_Fields):
    """A call that an earlier answer made."""

    id: Text
    type: Literal["function"] = "function"
    function: FunctionCall
    index: Integer | None = None


class Message(_Fields):
    """One message of the conversation. What an answer brings besides its text is taken and not read."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Text | list[TextPart] | None = None
    name: Text | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: Text | None = None
    refusal: JsonValue = None
    annotations: JsonValue = None
    audio: JsonValue = None
    function_call: JsonValue = None
    reasoning_content: JsonValue = None

    @field_validator("content", mode="before")
    @classmethod
    def _text_alone(cls, content: Any) -> Any:
        if content is None or isinstance(content, str):
            return content
        if not isinstance(content, list):
            raise ValueError("expected a string, or a list of parts of type text")
        for part in content:
            if not (isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)):
                kind = shown(part.get("type") if isinstance(part, dict) else type(part).__name__)
                raise ValueError(f'a part of type {kind}; this model reads text only: {{"type": "text", "text": ...}}')
        return "".join(part["text"] for part in content)

    @property
    def text(self) -> str:
        """The content."""
        return self.content if isinstance(self.content, str) else ""


class ChatRequest(_Request):
    """The body of ``POST /v1/chat/completions``."""

    messages: Annotated[list[Message], Field(min_length=1)]
    max_completion_tokens: Annotated[Integer, Field(ge=1)] | None = None
    logprobs: Boolean | None = None
    top_logprobs: Integer | None = None
    tools: Objects | None = None
    tool_choice: JsonValue = None
    parallel_tool_calls: Boolean | None = None
    response_format: dict[str, JsonValue] | None = None
    chat_template_kwargs: TemplateOptions | None = None
    metadata: JsonValue = None
    store: Boolean | None = None
    service_tier: Text | None = None
    reasoning_effort: Text | None = None
    modalities: list[Text] | None = None


class CompletionRequest(_Request):
    """The body of ``POST /v1/completions``."""

    prompt: Text
    logprobs: Integer | None = None
    echo: Boolean | None = None
    best_of: Integer | None = None
    suffix: Text | None = None


Request = ChatRequest | CompletionRequest


class TokenizeRequest(_Fields):
    """The body of ``POST /tokenize``, as vLLM has it."""

    model: Text
    prompt: Text
    add_special_tokens: Boolean = False


# fields that clients send, and the values of them that change nothing; others are refused
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "logit_bias": ({},),
    "top_logprobs": (0,),
    "echo": (False,),
    "suffix": ("",),
    "store": (False,),
    "service_tier": ("auto", "default"),
    "reasoning_effort": ("none",),
    "modalities": (["text"],),
}


def check_supported(body: Request) -> None:
    """Raise a 400 for a field whose value asks for what cannot be had."""
    for name, neutral in NEUTRAL.items():
        value = getattr(body, name, None)
        if value is not None and value not in neutral:
            only = " or ".join(map(repr, neutral))
            raise refused(name, f"{name} is not supported here; leave it out, or send {only}", "unsupported_parameter")
    if isinstance(body, CompletionRequest) and body.logprobs:
        raise refused("logprobs", "logprobs gives no alternatives here; send 0", "unsupported_parameter")
