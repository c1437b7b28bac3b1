"""Base class of the chat model and the completion model: fields, loading, and LangChain's hooks."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, TypeVar

import torch
from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import LangSmithParams
from langchain_core.outputs import LLMResult
from pydantic import Field, model_validator
from typing_extensions import Self

from langchain_ragbias import arguments
from langchain_ragbias.arguments import Stop
from langchain_ragbias.listener import reports
from ragbias import DebiasedLM
from ragbias.boundaries import current_documents, document_texts
from ragbias.checks import check_names
from ragbias.errors import ArgumentError
from ragbias.frameworks import FrameworkModel, LastReports, StopStrings, rename_arguments
from ragbias.frameworks import RagBiasOptions as RagBiasOptions
from ragbias.generation import rename_max_tokens

OTHER_NAMES = {"model": "model_id", "model_name": "model_id", "max_new_tokens": "max_tokens"}
T = TypeVar("T")
RunManager = CallbackManagerForLLMRun | None
AsyncRunManager = AsyncCallbackManagerForLLMRun | None
STOCK = ("pipeline", "pipeline_kwargs")  # arguments of the constructor that are not fields


class RagBiasModel(FrameworkModel):
    """Common fields and methods of the chat model and the completion model."""

    model_id: str = ""
    """A hub name, a path, ``"tiny"`` for the embedded model, or the model's name at ``base_url``."""
    max_tokens: int = 256
    """Maximum number of tokens in an answer. ``max_new_tokens`` is an alias."""
    stop: StopStrings | None = None
    """Strings that end the answer and are not part of it."""
    batch_size: int = Field(default=8, ge=1)
    """Maximum number of prompts that run as one padded batch."""

    reports: ClassVar[LastReports] = reports
    missing_remedy: ClassVar[str] = (
        "If the chain rewrites the documents or passes them to several calls, use chain_type='stuff' and print "
        "page_content unchanged; otherwise, pass documents= as they occur in the prompt, or retrieve inside the chain"
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
        return {**arguments.convert_pipeline_kwargs(values.pop("pipeline_kwargs", None)), **values}

    @model_validator(mode="after")
    def _load(self) -> Self:
        named_anew = isinstance(self.lm, DebiasedLM) and self._names_another_model(self.lm)
        lm = None if named_anew else self.lm
        self.open_model("model_id", lm, self.model_kwargs)
        if lm is None and self.options.model is None and isinstance(self.lm, DebiasedLM):
            arguments.loading_arguments[self.lm] = (self.model_id, self.model_kwargs)
        return self

    def _names_another_model(self, lm: DebiasedLM) -> bool:
        """Whether ``lm`` was loaded from the fields, and they now name another model.

        For example, a chain's configuration may have set ``model_id``.

        Raises:
            ArgumentError: the user passed ``lm`` as an object, but the fields name another model.
        """
        if lm in arguments.loading_arguments:
            model_id, model_kwargs = arguments.loading_arguments[lm]
            loaded = {"model_id": model_id, "model_kwargs": model_kwargs}
            return any(getattr(self, name) != loaded[name] for name in loaded.keys() & self.model_fields_set)
        if "model_id" in self.model_fields_set and lm.name and self.model_id != lm.name:
            raise ArgumentError(f"model_id={self.model_id!r}, but lm is {lm.name!r}; give one of them")
        if self.model_kwargs:
            raise ArgumentError("model_kwargs are for loading a model, but lm is given; leave out model_kwargs")
        return False

    def _convert_arguments(self, given: Mapping[str, Any], stop: Stop) -> dict[str, Any]:
        """Convert a call's arguments to the input of ``merge_arguments``. Arguments that are ``None`` are dropped."""
        call = {name: value for name, value in {**given, "stop": stop}.items() if value is not None}
        call.pop("stream", None)
        if not call.pop("skip_prompt", True):
            raise ArgumentError("skip_prompt=False; answers never contain the prompt, so leave it out")
        check_names(call, arguments.KNOWN, arguments.KNOWN)
        rename_max_tokens(call, "max_tokens")
        if "documents" in call:
            call["documents"] = document_texts(call["documents"], reusable=True)
        if "pipeline_kwargs" in call:
            call = {**arguments.convert_pipeline_kwargs(call.pop("pipeline_kwargs")), **call}
        return call

    def _record_report(self, result: T) -> T:
        """Store the report of a result's last answer in the caller's context. Return the result.

        Reason: a run may store its report in another context, and a cached answer stores none.
        """
        answer: object = result
        if isinstance(result, LLMResult):
            answer = result.generations[-1][0] if result.generations else None
            answer = getattr(answer, "message", answer)
        metadata = getattr(answer, "response_metadata", None) or getattr(answer, "generation_info", None) or {}
        if "ragbias" in metadata:
            self._store_report(metadata["ragbias"])
        return result

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
        fields = arguments.convert_stock_arguments(task, backend, device, device_map, model_kwargs)
        return cls(**{"model_id": model_id, "pipeline_kwargs": pipeline_kwargs, **fields, **kwargs})

    def __repr_args__(self) -> Iterable[tuple[str | None, Any]]:
        return [("model_id", self.model_id), ("method", self.method)]

    @property
    def max_new_tokens(self) -> int:
        """Alias of ``max_tokens``."""
        return self.max_tokens

    @property
    def _identifying_params(self) -> dict[str, Any]:
        """The settings and documents that determine an answer, as the key of LangChain's cache."""
        model = getattr(self.lm, "model", None)
        unique_name = None
        if model is not None and not self.lm.name:
            unique_name = arguments.unique_name(model)
        params = {
            "model_id": self.model_id,
            "model": unique_name,
            "base_url": getattr(self.lm, "base_url", None),
            "method": self.method if isinstance(self.method, str) else repr(self.method),
            **self._call_defaults(),
            "strip_numbering": self.options.strip_numbering,
            "backend": self.options.backend,
            "segmenter": repr(self.segmenter),
            "model_kwargs": {name: str(value) for name, value in self.model_kwargs.items()},
            "on_missing": self.on_missing,  # with "raise", an answer cached with "warn" must not be used
        }
        documents = current_documents()
        if documents is not None:
            params["documents"] = hashlib.sha256(repr(documents).encode()).hexdigest()
        return params

    def _get_ls_params(self, stop: Stop = None, **kwargs: Any) -> LangSmithParams:
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
