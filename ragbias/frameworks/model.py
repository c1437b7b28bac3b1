"""The base class of the integrations' models: the steps of a call, and loading."""

from __future__ import annotations

import os
import threading
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeVar, cast

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationError, field_serializer
from pydantic.functional_validators import InstanceOf, SkipValidation, model_validator
from typing_extensions import Self

from ragbias import methods
from ragbias.boundaries import Segmenter, Source
from ragbias.boundaries.recognisers import check_segmenter
from ragbias.cache import DocumentCache
from ragbias.display import validation_message
from ragbias.errors import ArgumentError, MethodError
from ragbias.frameworks import asyncio_bridge as bridge
from ragbias.frameworks.missing_documents import LocatedDocuments, MissingDocuments
from ragbias.frameworks.options import RagBiasOptions, with_options
from ragbias.frameworks.remote import LanguageModel, RemoteLM, RemoteRequest
from ragbias.frameworks.run_state import LastReports, Owner
from ragbias.frameworks.tool_use import AnswerFormat, GrowingAnswer, StreamedPart
from ragbias.generation import Generation, GenerationSettings, Request, Stream
from ragbias.generation.arguments import SAMPLING
from ragbias.limits import OnMissing
from ragbias.lm import DebiasedLM
from ragbias.methods import Method
from ragbias.models.loading import load_model, load_tokenizer
from ragbias.models.named import no_model_message
from ragbias.readers import reader_of

T = TypeVar("T")
DEFAULTS = ("stop", "logprobs", "max_tokens", "max_new_tokens", *SAMPLING)  # fields that a call may override
NOT_SETTINGS = ("documents", "method")  # arguments that do not control generation


@dataclass(frozen=True)
class MergedArguments:
    """Arguments of a call, merged with the model's fields."""

    documents: tuple[str, ...] | None
    method: Method
    settings: GenerationSettings


@dataclass(frozen=True)
class PreparedCall:
    """A prepared call of a model."""

    lm: LanguageModel
    store_report: Callable[[dict[str, Any]], None]
    request: Request
    settings: GenerationSettings
    form: AnswerFormat

    def run(self, cancelled: threading.Event | None = None) -> Generation:
        """Answer the request. Setting ``cancelled`` stops the computation at the next token."""
        return self.lm.answer([self.request], self.settings, cancelled)[0]

    def stream(self, convert: Callable[[StreamedPart], T]) -> Generator[T, None, None]:
        """Stream the answer, and convert each part. Closing or deleting the generator stops the computation."""
        stream = self._open_stream()
        growing = GrowingAnswer(self.form)

        def parts() -> Generator[T, None, None]:
            with stream:
                for piece in stream:
                    if new := growing.add(piece):
                        yield convert(StreamedPart(new, growing.shown))
            yield convert(StreamedPart("", growing.shown, stream.generation))

        return parts()

    def astream(self, convert: Callable[[StreamedPart], T]) -> AsyncGenerator[T, None]:
        """Like ``stream``, without blocking the event loop."""
        stream = self._open_stream()
        growing = GrowingAnswer(self.form)

        async def parts() -> AsyncGenerator[T, None]:
            async with aclosing(bridge.pieces(stream)) as pieces:
                async for piece in pieces:
                    if new := growing.add(piece):
                        yield convert(StreamedPart(new, growing.shown))
            yield convert(StreamedPart("", growing.shown, stream.generation))

        return parts()

    def _open_stream(self) -> Stream:
        """Open a stream. Its report is stored at once, because the caller may close the stream early."""
        stream = self.lm.stream_answer(self.request, self.settings)
        self.store_report(stream.report.as_dict())
        return stream

    def finish(self, generation: Generation) -> dict[str, Any]:
        """Store an answer's report. Return the details for a response: finish reason, report and log-probabilities."""
        self.store_report(generation.report.as_dict())  # a copy, because the caller may change the returned dict
        details = {"finish_reason": generation.finish_reason, "ragbias": generation.report.as_dict()}
        logprobs = self.lm.openai_logprobs(generation, self.form.keep_special)
        return details if logprobs is None else {**details, "logprobs": logprobs}


class FrameworkModel(BaseModel):
    """Fields and steps that the models of all integrations share.

    A subclass sets the class variable ``reports``, and calls ``open_model`` after the validation of its fields.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True, extra="forbid", protected_namespaces=())

    reports: ClassVar[LastReports]
    """The last report of each model. The framework's models share it."""
    missing_remedy: ClassVar[str] = "Pass documents= as they occur in the prompt"
    """Advice in warnings and errors for users who passed no documents, if documents are missing."""
    complete_sources: ClassVar[frozenset[Source]] = frozenset()
    """Values of ``Report.source``, besides ``documents`` and ``segmenter``, whose documents must all occur in the
    prompt."""

    method: str | InstanceOf[Method] | None = None
    """The method, see ``ragbias.methods.get``. ``None`` selects the default of the model or server."""
    temperature: float | None = None
    """Sampling temperature. Without a temperature, answers are greedy."""
    logprobs: bool = False
    """Whether to return each token's log-probability before temperature, in OpenAI's format without ``top_logprobs``.
    LangChain's chat model returns them in ``response_metadata``, its completion model in ``generation_info``, and
    LlamaIndex's LLM in ``logprobs`` and ``raw``."""
    model_kwargs: dict[str, Any] = Field(default_factory=dict)
    """Arguments for ``DebiasedLM.from_pretrained``, e.g. ``{"dtype": "auto", "device_map": "auto"}``."""
    on_missing: OnMissing = "warn"
    """What to do if expected documents are missing from the prompt: ``"warn"``, ``"raise"`` or ``"ignore"``."""
    segmenter: SkipValidation[Segmenter | None] = None
    """How to find documents that no retriever of the framework returned: a separator, an ``re.Pattern``, or a function
    that takes the prompt and returns spans or texts."""
    document_cache: DocumentCache | None = Field(default=None, exclude=True, repr=False)
    """Cache for the keys and values of documents, for methods that can reuse them."""
    lm: LanguageModel = Field(default=cast(Any, None), exclude=True, repr=False)
    """The loaded model."""
    base_url: str | None = None
    """Address of a server of ``ragbias serve``; needs the extra ``remote`` of the integration's package."""
    options: RagBiasOptions = Field(default_factory=RagBiasOptions)
    """Rarely needed settings. Each is also a keyword argument of the constructor, e.g. ``top_p=0.9``."""

    _missing: MissingDocuments = PrivateAttr()
    _owner: Owner = PrivateAttr(default_factory=Owner)

    def merge_arguments(self, arguments: Mapping[str, Any], model_name: str, batch_size: int = 8) -> MergedArguments:
        """Merge the arguments of a call with the model's fields. Arguments take precedence."""
        merged = {"method": self.method, **self._call_defaults(), **arguments}
        documents = merged.pop("documents", None)
        method = methods.get(merged.pop("method"), model_name)
        return MergedArguments(documents, method, GenerationSettings.from_arguments(merged, batch_size))

    def _call_defaults(self) -> dict[str, Any]:
        owners = (self, self.options)
        return {name: getattr(owner, name) for name in DEFAULTS for owner in owners if name in type(owner).model_fields}

    def prepare_call(
        self,
        prompt: str,
        call: MergedArguments,
        located: LocatedDocuments,
        form: AnswerFormat | None = None,
        messages: Sequence[dict[str, Any]] | None = None,
    ) -> PreparedCall:
        """Prepare the request for a rendered prompt, and check for missing documents.

        Args:
            form: format of the answer to a conversation. The prompt already ends with ``form.beginning``.
            messages: the conversation, which only servers use, because they render the chat template themselves.
        """
        form = form or AnswerFormat()
        request = self.lm.prepare(prompt, boundaries=located.boundaries, method=call.method)
        self._missing.check(request, located, self.on_missing, call.documents, self.segmenter)
        if isinstance(request, RemoteRequest):
            fields = {"tools": list(form.tools) or None, **form.request_fields}
            request = replace(request, messages=messages, fields=fields)
        settings = replace(call.settings, keep_special=form.keep_special)
        return PreparedCall(self.lm, self._store_report, request, settings, form)

    @property
    def last_report(self) -> dict[str, Any] | None:
        """The report of the last request in this thread or task: the method that ran, and the documents."""
        return self.reports.last_report(self._owner)

    def _store_report(self, report: dict[str, Any]) -> None:
        self.reports.store(self._owner, report)

    def open_model(self, name_field: str, lm: LanguageModel | None, model_kwargs: Mapping[str, Any]) -> None:
        """Check the fields, and set ``lm``. Fields that the user did not set get the model's settings.

        Args:
            name_field: name of the field that contains the model's name.
            lm: the model. ``None`` connects to the server at ``base_url``, or loads a model.
            model_kwargs: arguments for loading the model.
        """
        self._missing = MissingDocuments(self.missing_remedy, self.complete_sources)
        if self.segmenter is not None:
            check_segmenter(self.segmenter)
        defaults = self._call_defaults().items()
        GenerationSettings.from_arguments({name: value for name, value in defaults if name not in NOT_SETTINGS})
        name: str = getattr(self, name_field)
        if self.method is None and self.base_url is None:
            self.method = methods.default_method(name) if lm is None else lm.method
        if self.options.reader:
            self.method = methods.get(self.method, name or None, self.options.reader)
        if self.base_url is not None:
            lm = self._open_server(self.base_url, name, lm)
        if lm is not None:
            self._adopt_settings(lm)
        elif not name and self.options.model is None:
            named = f'{name_field}="Qwen/Qwen2.5-7B-Instruct", or pass lm=DebiasedLM(...) or base_url='
            raise ArgumentError(no_model_message(named))
        self.lm = self._load_model(name, model_kwargs) if lm is None else lm
        if not name:
            setattr(self, name_field, self.lm.name or type(getattr(self.lm, "model", None)).__name__)

    def _open_server(self, base_url: str, name: str, lm: LanguageModel | None) -> RemoteLM:
        options = self.options
        local: dict[str, Any] = {"lm": None if isinstance(lm, RemoteLM) else lm, "model": options.model}
        local |= {"document_cache": self.document_cache, "reader": options.reader or None}
        if given := [field for field, value in local.items() if value is not None]:
            raise ArgumentError(f"base_url and {given[0]}: the server has its own {given[0]}; give one of them")
        key = options.api_key.get_secret_value() if options.api_key else os.environ.get("RAGBIAS_API_KEY", "")
        return RemoteLM(base_url, name or None, self.method, key, options.timeout, options.max_retries)

    def _load_model(self, name: str, model_kwargs: Mapping[str, Any]) -> DebiasedLM:
        options = self.options
        model = cast(Any, options.model)
        tokenizer = options.tokenizer
        settings: dict[str, Any] = {"strip_numbering": options.strip_numbering, "backend": options.backend}
        settings |= {"method": self.method, "cache": self.document_cache}
        if model is None and tokenizer is None and options.tokenizer_name in (None, name):
            loading = {"tokenizer_kwargs": options.tokenizer_kwargs, **model_kwargs}
            return DebiasedLM.from_pretrained(name, **settings, **loading)
        if model is None:
            methods.get(self.method, name)  # raises errors before the weights are read
            model = load_model(name, model_kwargs)
        if tokenizer is None:
            source = options.tokenizer_name or model.config._name_or_path
            if not source:
                raise ArgumentError("the model has no name to load a tokenizer by; pass tokenizer or tokenizer_name")
            tokenizer = load_tokenizer(source, options.tokenizer_kwargs, bool(model_kwargs.get("trust_remote_code")))
        return DebiasedLM(model, tokenizer, **settings)

    def _adopt_settings(self, lm: LanguageModel) -> None:
        """Copy the settings of ``lm`` to the fields and options. Raise an error if the user set different values."""
        settings: dict[str, Any] = {"strip_numbering": lm.strip_numbering, "backend": lm.backend}
        for owner, values in ((self.options, settings), (self, {"document_cache": lm.cache})):
            for name in values.keys() & owner.model_fields_set:
                value = getattr(owner, name)
                if value != values[name]:
                    raise ArgumentError(
                        f"{name}={value!r} contradicts the existing model; leave it out, and set it where the model is "
                        "created: in ragbias.DebiasedLM(...), or with `ragbias serve`"
                    )
        self.document_cache = lm.cache
        if self.method is None:
            self.method = lm.method
        method = methods.get(self.method, lm.name)
        if method.reader and isinstance(lm, DebiasedLM):
            reader_of(lm.model, method, lm.name)  # raises an error if the reader does not fit
        self.options = self.options.model_copy(update=settings)

    @model_validator(mode="wrap")
    @classmethod
    def _report_errors(cls, values: Any, handler: Callable[[Any], Self]) -> Self:
        """Validate the fields, but raise ``ArgumentError`` instead of ``ValidationError``."""
        try:
            return handler(values)
        except ValidationError as error:
            raise ArgumentError(validation_message(error)) from None

    @model_validator(mode="before")
    @classmethod
    def _accept_options(cls, values: Any) -> Any:
        kind: Any = cls.model_fields["options"].annotation
        return with_options(values, kind) if isinstance(values, dict) else values

    @field_serializer("method")
    def _format_method(self, method: str | Method | None) -> str | None:
        with suppress(MethodError):
            return methods.format_method(method) if isinstance(method, Method) else method
        return repr(method)

    def __copy__(self) -> Self:
        copied = super().__copy__()
        copied._owner = Owner()  # last reports are stored by owner
        return copied
