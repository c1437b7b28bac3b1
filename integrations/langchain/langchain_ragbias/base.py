"""Base class of the chat model and the completion model: fields, loading, and preparation of requests."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast
from uuid import UUID

import torch
from langchain_core.language_models import LangSmithParams
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, SkipValidation, model_validator
from typing_extensions import Self

from langchain_ragbias import arguments
from langchain_ragbias.arguments import Call
from langchain_ragbias.listener import listener, reports
from ragbias import DebiasedLM, DocumentCache, Generation
from ragbias.boundaries import Boundaries, Segmenter, locate
from ragbias.boundaries.recognisers import check_segmenter
from ragbias.boundaries.sources import current_documents
from ragbias.errors import ArgumentError
from ragbias.frameworks import (
    AnswerFormat,
    LanguageModel,
    MissingDocuments,
    OnMissing,
    Owner,
    RagBiasOptions,
    StopStrings,
    open_model,
    rename_arguments,
    report_errors,
    with_options,
)
from ragbias.generation import GenerationSettings, Request, Stream
from ragbias.generation.arguments import SAMPLING
from ragbias.methods import Method

OTHER_NAMES = {"model": "model_id", "model_name": "model_id", "max_new_tokens": "max_tokens"}
STOCK = ("pipeline", "pipeline_kwargs")  # arguments of the constructor that are not fields


class RagBiasModel(BaseModel):
    """Common fields and methods of the chat model and the completion model."""

    model_config = ConfigDict(arbitrary_types_allowed=True, extra="forbid", protected_namespaces=())

    model_id: str = ""
    """A hub name, a path, ``"tiny"`` for the embedded model, or the model's name at ``base_url``."""
    method: str | Method | None = None
    """The method, see ``ragbias.methods.get``. ``None`` selects the server's method, or the best measured method."""
    max_tokens: int = 256
    """Maximum number of tokens in an answer. ``max_new_tokens`` is an alias."""
    temperature: float | None = None
    """Sampling temperature. Without a temperature, answers are greedy."""
    stop: StopStrings | None = None
    """Strings that end the answer and are not part of it."""
    logprobs: bool = False
    """Whether to return each token's log-probability before temperature, in OpenAI's format without ``top_logprobs``.
    The result is in ``response_metadata["logprobs"]``, or in ``generation_info["logprobs"]`` of completions."""
    batch_size: int = Field(default=8, ge=1)
    """Maximum number of prompts that run as one padded batch."""
    model_kwargs: dict[str, Any] = Field(default_factory=dict)
    """Arguments for ``DebiasedLM.from_pretrained``, e.g. ``{"dtype": "auto", "device_map": "auto"}``."""
    on_missing: OnMissing = "warn"
    """What to do if expected documents are missing from the prompt: ``"warn"``, ``"raise"`` or ``"ignore"``."""
    segmenter: SkipValidation[Segmenter | None] = None
    """Finds documents that no retriever of LangChain returned: a separator, an ``re.Pattern``, or a function that takes
    the prompt and returns spans or texts."""
    document_cache: DocumentCache | None = Field(default=None, exclude=True, repr=False)
    """Cache of computed documents, for methods that can reuse them."""
    lm: LanguageModel = Field(default=cast(Any, None), exclude=True, repr=False)
    """The loaded model."""
    base_url: str | None = None
    """Address of a server of ``ragbias serve``; needs ``pip install 'langchain-ragbias[remote]'``."""
    options: RagBiasOptions = Field(default_factory=RagBiasOptions)
    """Rarely needed settings. Each is also a keyword argument of the constructor, e.g. ``top_p=0.9``."""

    _owner: Owner = PrivateAttr(default_factory=Owner)
    _missing: MissingDocuments = PrivateAttr(
        default_factory=lambda: MissingDocuments(
            "If the chain rewrites the documents or passes them to several calls, use chain_type='stuff' and print "
            "page_content unchanged; otherwise, pass documents= as they occur in the prompt, or retrieve inside the "
            "chain"
        )
    )

    @model_validator(mode="before")
    @classmethod
    def _accept_stock_arguments(cls, values: Any) -> Any:
        """Convert arguments of ``HuggingFacePipeline``, aliases of fields, and options to fields."""
        if not isinstance(values, dict):
            return values
        values = rename_arguments(values, OTHER_NAMES, {*cls.model_fields, *RagBiasOptions.model_fields, *STOCK})
        pipeline = values.pop("pipeline", None)
        if pipeline is not None:
            values = {**arguments.pipeline_fields(pipeline), **values}
        values = {**arguments.convert_pipeline_kwargs(values.pop("pipeline_kwargs", None)), **values}
        return with_options(values, RagBiasOptions)

    _report_errors = model_validator(mode="wrap")(report_errors)

    @model_validator(mode="after")
    def _load(self) -> Self:
        if self.segmenter is not None:
            check_segmenter(self.segmenter)
        GenerationSettings.from_arguments(self._settings)  # raises the errors of invalid fields
        given: LanguageModel | None = self.lm
        if isinstance(given, DebiasedLM) and self._names_another_model(given):
            given = None
        self.lm, self.options = open_model(self, "model_id", self.options, given, self.model_kwargs)
        if given is None and self.options.model is None and isinstance(self.lm, DebiasedLM):
            arguments.loading_arguments[self.lm] = (self.model_id, self.model_kwargs)
        if not self.model_id:
            self.model_id = self.lm.name or type(getattr(self.lm, "model", None)).__name__
        return self

    def _names_another_model(self, lm: DebiasedLM) -> bool:
        """Whether the fields name a model other than ``lm``, e.g. because a chain's configuration set ``model_id``.

        Raises:
            ArgumentError: the caller passed ``lm``, but the fields name another model.
        """
        if lm in arguments.loading_arguments:
            loaded = dict(zip(("model_id", "model_kwargs"), arguments.loading_arguments[lm], strict=True))
            return any(getattr(self, name) != loaded[name] for name in loaded.keys() & self.model_fields_set)
        if "model_id" in self.model_fields_set and lm.name and self.model_id != lm.name:
            raise ArgumentError(f"model_id={self.model_id!r}, but the lm given is {lm.name!r}; give one of them")
        if self.model_kwargs:
            raise ArgumentError("model_kwargs are for loading a model, but lm is given; leave out model_kwargs")
        return False

    @classmethod
    def from_model_id(
        cls,
        model_id: str,
        task: str | None = "text-generation",
        backend: str = "auto",
        device: int | str | torch.device | None = None,
        device_map: str | Mapping[str, Any] | None = None,
        model_kwargs: dict[str, Any] | None = None,
        pipeline_kwargs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> Self:
        """Load a model with the arguments of ``HuggingFacePipeline.from_model_id``.

        Args:
            model_id: a hub name, a path, or ``"tiny"``.
            task: only ``"text-generation"``.
            backend: implementation of the method's attention, see ``RagBiasOptions``. The stock values ``"default"``
                and ``"pipeline"`` mean ``"auto"``.
            device: -1 for the CPU, the index of an accelerator, or a torch device.
            device_map: devices of the layers, instead of ``device``.
            model_kwargs: arguments for loading, e.g. ``{"dtype": "auto"}``.
            pipeline_kwargs: ``max_new_tokens``, ``temperature``, ``do_sample``, ``top_k``, ``top_p``,
                ``repetition_penalty``, ``stop_sequence``; ``return_full_text`` only as False.
            kwargs: other fields and options, e.g. ``method="rotor"``.

        Raises:
            ArgumentError: an argument has no counterpart in this class.
        """
        given = arguments.convert_stock_arguments(task, backend, device, device_map, model_kwargs)
        return cls(**{"model_id": model_id, "pipeline_kwargs": pipeline_kwargs, **given, **kwargs})

    def __repr_args__(self) -> Iterable[tuple[str | None, Any]]:
        return [("model_id", self.model_id), ("method", self.method)]

    @property
    def max_new_tokens(self) -> int:
        """Alias of ``max_tokens``."""
        return self.max_tokens

    @property
    def last_report(self) -> dict[str, Any] | None:
        """The report of the last request in this thread or task: the method that ran, and the documents."""
        return reports.last_report(self._owner)

    @property
    def _identifying_params(self) -> dict[str, Any]:
        """The settings and documents that determine an answer, as the key of LangChain's cache."""
        documents = current_documents()
        model = getattr(self.lm, "model", None)
        return {
            "model_id": self.model_id,
            "model": None if self.lm.name or model is None else arguments.unique_name(model),
            "base_url": getattr(self.lm, "base_url", None),
            "method": self.method if isinstance(self.method, str) else repr(self.method),
            **self._settings,
            "strip_numbering": self.options.strip_numbering,
            "backend": self.options.backend,
            "segmenter": repr(self.segmenter),
            "model_kwargs": {name: str(value) for name, value in self.model_kwargs.items()},
            "on_missing": self.on_missing,  # with "raise", an answer cached with "warn" must not be used
            **({} if documents is None else {"documents": hashlib.sha256(repr(documents).encode()).hexdigest()}),
        }

    def _get_ls_params(self, stop: list[str] | None = None, **kwargs: Any) -> LangSmithParams:
        params: LangSmithParams = super()._get_ls_params(stop=stop, **kwargs)  # type: ignore[misc]  # of LangChain's class
        return LangSmithParams(
            **{**params, "ls_provider": "ragbias", "ls_model_name": kwargs.get("model", self.model_id)}
        )

    def get_token_ids(self, text: str) -> list[int]:
        """Return the token ids of a text, without special tokens."""
        custom = getattr(self, "custom_get_token_ids", None)  # a field of LangChain's class
        if custom is not None:
            return list(custom(text))
        return self.lm.token_ids(text)

    @property
    def _settings(self) -> dict[str, Any]:
        fields = {name: getattr(self, name) for name in ("stop", "logprobs", "max_tokens", "temperature")}
        return {**fields, **{name: getattr(self.options, name) for name in SAMPLING if name not in fields}}

    def _merge_arguments(self, stop: Sequence[str] | str | None, given: Mapping[str, Any]) -> Call:
        fields = {"method": self.method, **self._settings}
        return arguments.merge_arguments(fields, {**given, "stop": stop}, self.model_id, self.batch_size)

    def _prepare_request(
        self,
        text: str,
        call: Call,
        parent_run_id: UUID | None,
        artifacts: Sequence[Sequence[str]] = (),
        boundaries: Boundaries | None = None,
    ) -> Request:
        """Locate the documents in a rendered prompt, and prepare the request.

        Args:
            artifacts: the documents' texts for each message with documents, the latest message first.
            boundaries: boundaries of the documents if the chat template rendered them; ``None`` to locate them.
        """
        tree = listener.tree(parent_run_id)
        boundaries = boundaries or locate(
            text,
            documents=call.documents,
            artifacts=artifacts,
            run=tree.latest_first(),
            registry=listener.retrievals.registry(),
            segmenter=self.segmenter,
        )
        boundaries = replace(boundaries, reason="; ".join(filter(None, (boundaries.reason, tree.failure))))
        request = self.lm.prepare(text, boundaries=boundaries, method=call.method)
        if call.method.needs_documents:
            self._missing.check(
                request,
                self.on_missing,
                documents=call.documents,
                segmenter=self.segmenter,
                suspected=bool(tree.failure),
                at_end=listener.end_of_run_registrar(parent_run_id),
            )
        return request

    def _record_stream(self, stream: Stream) -> Stream:
        """Store the report of a stream when it begins, because its caller may close it early. Return the stream."""
        reports.store(self._owner, stream.report.as_dict())
        return stream

    def _answer_details(self, generation: Generation, form: AnswerFormat) -> dict[str, Any]:
        """Return finish reason, report and log-probabilities of an answer. Also store its report."""
        report = generation.report.as_dict()
        reports.store(self._owner, report)
        details = {"finish_reason": generation.finish_reason, "ragbias": report}
        logprobs = form.logprobs(self.lm, generation)
        return details if logprobs is None else {**details, "logprobs": logprobs}
