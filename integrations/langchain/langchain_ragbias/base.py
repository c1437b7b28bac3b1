"""What the chat model and the completion model share: fields, per-call arguments, and finding the documents."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

import torch
from langchain_core.language_models import LangSmithParams
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, field_validator, model_validator
from typing_extensions import Self

from langchain_ragbias import documents, loading
from langchain_ragbias.arguments import SAMPLING, Call, merge
from langchain_ragbias.listener import listener
from langchain_ragbias.reports import reports
from ragbias import methods
from ragbias.adapters.constructor_arguments import renamed
from ragbias.adapters.last_report import Owner
from ragbias.adapters.missing_documents import MissingDocuments, OnMissing
from ragbias.adapters.openai_logprobs import openai_logprobs
from ragbias.adapters.remote import RemoteGeneration, RemoteLM
from ragbias.adapters.settled_fields import settle
from ragbias.boundaries import current_documents
from ragbias.boundaries.sources.segmenter import check as check_segmenter
from ragbias.generation.report import Generation
from ragbias.generation.request import Request
from ragbias.lm import DebiasedLM

OTHER_NAMES = {"model": "model_id", "model_name": "model_id", "max_new_tokens": "max_tokens"}


class RagBiasModel(BaseModel):
    """Fields and behaviour that both models share."""

    model_config = ConfigDict(arbitrary_types_allowed=True, extra="forbid", protected_namespaces=())

    model_id: str = "tiny"
    """A hub name, a path, or ``"tiny"`` for the embedded model."""
    method: Any = methods.DEFAULT_METHOD
    """The method: a name (see ``ragbias methods``) or an instance, e.g. ``ragbias.methods.Pine()``."""
    max_tokens: int = Field(default=256, ge=1)
    """The most tokens an answer may have. ``max_new_tokens`` is the same."""
    temperature: float | None = None
    """Sampling temperature; greedy without one."""
    top_p: float | None = None
    top_k: int | None = None
    stop: list[str] | None = None
    """Strings that end the answer and are not part of it."""
    seed: int | None = None
    """Makes sampling repeatable."""
    repetition_penalty: float | None = None
    """Divides the logits of tokens that occur in the prompt or answer already; above 1 against repetitions."""
    logprobs: bool = False
    """Give each token's log-probability, before temperature, in OpenAI's shape; in ``response_metadata["logprobs"]``
    of messages and ``generation_info["logprobs"]`` of completions."""
    batch_size: int = Field(default=8, ge=1)
    """The most prompts that run as one padded batch."""
    model_kwargs: dict[str, Any] = Field(default_factory=dict)
    """For ``DebiasedLM.from_pretrained``, e.g. ``{"dtype": "auto", "device_map": "auto"}``."""
    on_missing: OnMissing = "warn"
    """What to do where documents that the method needs are missing from the prompt."""
    segmenter: Any = None
    """Finds the documents where nothing was retrieved: a separator, an ``re.Pattern``, or a function of the prompt that
    gives spans or texts."""
    include_headers: bool = False
    """Whether the spans found in the text begin with the documents' headers. The prompt that runs, and its report, are
    the same: headers always belong to their documents."""
    strip_numbering: bool = False
    """Take numbers out of the documents' headers, as ``Document [3]`` tells the model the order."""
    backend: str = "auto"
    """What computes the method's attention: ``"auto"``, ``"torch"``, ``"triton"`` or ``"flash"``."""
    document_cache: Any = Field(default=None, exclude=True, repr=False)
    """A ``ragbias.DocumentCache`` that keeps what the model makes of documents, for methods with reusable ones."""
    lm: Any = Field(default=None, exclude=True, repr=False)
    """A ``ragbias.DebiasedLM`` that is loaded already."""
    model: Any = Field(default=None, exclude=True, repr=False)
    """A transformers model that is loaded already; goes with ``tokenizer``."""
    tokenizer: Any = Field(default=None, exclude=True, repr=False)

    _owner: Owner = PrivateAttr(default_factory=Owner)
    _missing: MissingDocuments = PrivateAttr(default_factory=documents.missing)

    @field_validator("stop", mode="before")
    @classmethod
    def _one_stop_string(cls, stop: Any) -> Any:
        return [stop] if isinstance(stop, str) else stop

    @model_validator(mode="before")
    @classmethod
    def _accept_stock_arguments(cls, values: Any) -> Any:
        """Take apart the ``pipeline`` and ``pipeline_kwargs`` that ``HuggingFacePipeline`` takes, and other names."""
        if not isinstance(values, dict):
            return values
        values = renamed(values, OTHER_NAMES, cls.model_fields, ValueError)
        pipeline = values.pop("pipeline", None)
        if pipeline is not None:
            values = {**loading.fields_of(pipeline), **values}
        return {**loading.fields_of_kwargs(values.pop("pipeline_kwargs", None)), **values}

    @model_validator(mode="after")
    def _load(self) -> Self:
        if (self.model is None) != (self.tokenizer is None):
            raise ValueError("model and tokenizer go together; give both, or only model_id")
        if self.segmenter is not None:
            check_segmenter(self.segmenter)
        if (remote := self._remote()) is not None:
            self.lm = remote
            settle(self, remote, ValueError)
        elif self.lm is not None:
            if not isinstance(self.lm, DebiasedLM):
                raise ValueError(f"lm must be a ragbias.DebiasedLM, got {type(self.lm).__name__}")
            if self._names_another_model():
                return self._load_anew()
            settle(self, self.lm, ValueError)
        elif self.model is not None:
            self.lm = DebiasedLM(self.model, self.tokenizer, method=self.method, **self._settled())
        else:
            return self._load_anew()
        if "model_id" not in self.model_fields_set:
            self.model_id = self.lm.name or type(self.lm.model).__name__
        methods.get(self.method, self.model_id)
        return self

    def _remote(self) -> RemoteLM | None:
        """The model where it is behind a server."""
        return None

    def _settled(self) -> dict[str, Any]:
        """What a ``DebiasedLM`` is made with."""
        return {"strip_numbering": self.strip_numbering, "backend": self.backend, "cache": self.document_cache}

    def _load_anew(self) -> Self:
        loading.check_device(self.model_kwargs.get("device"))
        self.lm = DebiasedLM.from_pretrained(self.model_id, method=self.method, **self._settled(), **self.model_kwargs)
        loading.sources[self.lm] = (self.model_id, self.model_kwargs)
        return self

    def _names_another_model(self) -> bool:
        """Whether the lm was loaded here by other fields, as where a chain's configuration sets ``model_id``.

        Raises:
            ValueError: the lm was loaded by the caller, so that it cannot be replaced.
        """
        if self.lm in loading.sources:
            loaded = dict(zip(("model_id", "model_kwargs"), loading.sources[self.lm], strict=True))
            return any(getattr(self, name) != loaded[name] for name in loaded.keys() & self.model_fields_set)
        if "model_id" in self.model_fields_set and self.lm.name and self.model_id != self.lm.name:
            raise ValueError(f"model_id={self.model_id!r}, but the lm given is {self.lm.name!r}; give one of them")
        if self.model_kwargs:
            raise ValueError("model_kwargs are for loading a model, but lm is given; leave them out")
        return False

    @classmethod
    def from_model_id(
        cls,
        model_id: str,
        task: str | None = "text-generation",
        backend: str = "default",
        device: int | str | torch.device | None = None,
        device_map: Any = None,
        model_kwargs: dict[str, Any] | None = None,
        pipeline_kwargs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> Self:
        """Load a model with the arguments of ``HuggingFacePipeline.from_model_id``.

        Args:
            model_id: a hub name, a path, or ``"tiny"``.
            task: only ``"text-generation"``.
            backend: ``"default"`` or ``"pipeline"``, as there: the model runs here; or what computes the method's
                attention, see the field ``backend``.
            device: -1 for the CPU, a number for an accelerator, or any name that torch knows.
            device_map: where the layers go, instead of ``device``.
            model_kwargs: for loading, e.g. ``{"dtype": "auto"}``.
            pipeline_kwargs: ``max_new_tokens``, ``temperature``, ``do_sample``, ``top_k``, ``top_p``,
                ``repetition_penalty``, ``stop_sequence``; ``return_full_text`` only as False.
            kwargs: any field, e.g. ``method="rotor"``.

        Raises:
            ValueError: an argument has no counterpart here.
        """
        loaded = loading.loading_kwargs(task, backend, device, device_map, model_kwargs)
        given = {"model_id": model_id, "model_kwargs": loaded, "pipeline_kwargs": pipeline_kwargs, **kwargs}
        if device is not None:
            given["device"] = device
        if backend not in loading.BACKENDS:
            given["backend"] = backend
        return cls(**given)

    @property
    def max_new_tokens(self) -> int:
        """The same as ``max_tokens``."""
        return self.max_tokens

    @property
    def last_report(self) -> dict[str, Any] | None:
        """What the last request in this context asked for, what ran, and where the documents were found."""
        return reports.last(self._owner)

    @property
    def _identifying_params(self) -> dict[str, Any]:
        """What an answer depends on; a cache mixes neither methods nor documents given by ``ragbias.documents``."""
        given = current_documents()
        return {
            "model_id": self.model_id,
            **({} if self.lm.name else {"model": loading.identity(self.lm.model)}),
            **({"base_url": self.lm.base_url} if isinstance(self.lm, RemoteLM) else {}),
            "method": self.method if isinstance(self.method, str) else repr(self.method),
            "max_tokens": self.max_tokens,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
            "stop": self.stop,
            "seed": self.seed,
            "repetition_penalty": self.repetition_penalty,
            "logprobs": self.logprobs,
            "segmenter": repr(self.segmenter),
            "strip_numbering": self.strip_numbering,
            "backend": self.backend,
            "model_kwargs": {name: str(value) for name, value in self.model_kwargs.items()},
            "on_missing": self.on_missing,  # so that no answer without documents is served where they are required
            **({} if given is None else {"documents": hashlib.sha256("\0".join(given).encode()).hexdigest()}),
        }

    def _get_ls_params(self, stop: list[str] | None = None, **kwargs: Any) -> LangSmithParams:
        params: LangSmithParams = super()._get_ls_params(stop=stop, **kwargs)  # type: ignore[misc]  # LangChain's class, the next base
        return LangSmithParams(
            **{**params, "ls_provider": "ragbias", "ls_model_name": kwargs.get("model", self.model_id)}
        )

    def get_token_ids(self, text: str) -> list[int]:
        """The ids of a text's tokens by the model's own tokenizer, without special ones."""
        custom = getattr(self, "custom_get_token_ids", None)  # a field of LangChain's class, the next base
        ids: list[int] = custom(text) if custom else self.lm.tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids

    # one request

    def _call(self, stop: Sequence[str] | str | None, given: Mapping[str, Any]) -> Call:
        """The arguments of a call; its errors are those of ``arguments.merge``."""
        fields = {name: getattr(self, name) for name in ("method", "stop", "logprobs", *SAMPLING)}
        return merge(fields, stop, given, self.model_id)

    def _request(
        self,
        text: str,
        call: Call,
        parent_run_id: UUID | None,
        artifacts: Sequence[Sequence[str]] = (),
        system: Sequence[str] = (),
    ) -> Request:
        """Find the documents of a templated prompt and make it ready to run.

        Raises:
            NoDocumentsError, DocumentNotFoundError: with ``on_missing="raise"``, see
                ``ragbias.adapters.missing_documents``.
        """
        tree = listener.tree(parent_run_id)
        found = documents.find(text, call.documents, artifacts, system, tree, self.segmenter, self.include_headers)
        request: Request = self.lm.prepare(text, boundaries=found, method=call.method)
        if call.method.needs_documents:
            self._missing.check(
                request,
                self.on_missing,
                documents=call.documents,
                segmenter=self.segmenter,
                suspected=bool(tree.failure),
                at_end=listener.at_end(parent_run_id),
            )
        return request

    def _answers(
        self, requests: Sequence[Request], settings: dict[str, Any], cancelled: threading.Event | None = None
    ) -> list[Generation]:
        answers: list[Generation] = self.lm.batch(requests, batch_size=self.batch_size, cancelled=cancelled, **settings)
        return answers

    def _about(self, generation: Generation, keep_special: tuple[str, ...] = ()) -> dict[str, Any]:
        """What is known of an answer beside its text; keeps the report as the last one."""
        report = generation.report.as_dict()
        reports.note(self._owner, report)
        about = {"finish_reason": generation.finish_reason, "ragbias": report}
        if isinstance(generation, RemoteGeneration):
            if generation.chat_logprobs is not None:
                about["logprobs"] = generation.chat_logprobs
        elif generation.logprobs is not None:
            about["logprobs"] = openai_logprobs(generation, self.lm.tokenizer, keep_special)
        return about
