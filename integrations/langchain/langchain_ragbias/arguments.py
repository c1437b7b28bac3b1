"""Merge the arguments of a call with the model's fields, and accept the arguments of ``HuggingFacePipeline``."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from uuid import uuid4
from weakref import WeakKeyDictionary

import torch
from langchain_core.documents import Document
from langchain_core.language_models import LanguageModelInput
from langchain_core.runnables import RunnableConfig
from typing_extensions import Unpack

from langchain_ragbias.messages import ToolLike
from ragbias import DebiasedLM, methods
from ragbias.attention.backends import BACKENDS
from ragbias.boundaries.sources import check_reusable, document_texts
from ragbias.checks import check_dict, check_names
from ragbias.errors import ArgumentError, WrongTypeError
from ragbias.generation import GenerationSettings
from ragbias.generation.arguments import SAMPLING, SamplingArguments, rename_max_tokens
from ragbias.methods import Method

FORMAT = ("tools", "tool_choice", "response_format")  # arguments of the chat model only
SAME = tuple(name for name in SAMPLING if name != "seed")  # of ``pipeline_kwargs``
STOPS = ("stop_sequence", "stop_strings")
FOR_TOKENIZERS = ("cache_dir", "local_files_only", "revision", "token", "trust_remote_code")
STOCK_BACKENDS = ("default", "pipeline")  # names that HuggingFacePipeline accepts
Output = TypeVar("Output")
Chunk = TypeVar("Chunk")


class CallArguments(SamplingArguments, total=False):
    """Keyword arguments of ``invoke``, ``stream`` and their async forms. Each overrides the field with its name."""

    documents: Sequence[Document | str] | None
    """The retrieved documents, as they occur in the prompt. The default is the documents that the chain retrieved."""
    method: str | Method | None
    """The method: a name or an instance."""
    max_tokens: int
    """The same as ``max_new_tokens``."""
    logprobs: bool | None
    """Whether to return each token's log-probability in OpenAI's format."""
    pipeline_kwargs: Mapping[str, Any] | None
    """Arguments for generation, as for ``HuggingFacePipeline``."""
    tools: Sequence[ToolLike] | None
    """Tools to offer; see ``bind_tools``. Only the chat model has this argument and the next two."""
    tool_choice: str | bool | dict[str, Any] | None
    """The tool that must be called; see ``bind_tools``."""
    response_format: dict[str, Any] | None
    """OpenAI's ``{"type": "json_object"}``, or ``"json_schema"`` with a schema."""


class TypedCalls(Generic[Output, Chunk]):
    """Declare the arguments of LangChain's calls for type checkers. At run time, this class is empty.

    LangChain's calls take arbitrary keyword arguments, so mypy reports subclasses as incompatible (``misc``).
    """

    if TYPE_CHECKING:

        def invoke(
            self,
            input: LanguageModelInput,
            config: RunnableConfig | None = None,
            *,
            stop: list[str] | None = None,
            **kwargs: Unpack[CallArguments],
        ) -> Output: ...

        async def ainvoke(
            self,
            input: LanguageModelInput,
            config: RunnableConfig | None = None,
            *,
            stop: list[str] | None = None,
            **kwargs: Unpack[CallArguments],
        ) -> Output: ...

        def stream(
            self,
            input: LanguageModelInput,
            config: RunnableConfig | None = None,
            *,
            stop: list[str] | None = None,
            **kwargs: Unpack[CallArguments],
        ) -> Iterator[Chunk]: ...

        def astream(
            self,
            input: LanguageModelInput,
            config: RunnableConfig | None = None,
            *,
            stop: list[str] | None = None,
            **kwargs: Unpack[CallArguments],
        ) -> AsyncIterator[Chunk]: ...


KNOWN = ("stop", *(name for name in CallArguments.__annotations__ if name not in FORMAT))


@dataclass(frozen=True)
class Call:
    """The arguments of one request: its documents, its method, and how to generate."""

    documents: tuple[str, ...] | None
    method: Method
    settings: GenerationSettings


def merge_arguments(fields: Mapping[str, Any], call: Mapping[str, Any], model_id: str, batch_size: int) -> Call:
    """Override the model's fields by the arguments of a call. ``None`` arguments are ignored."""
    call = {name: value for name, value in call.items() if value is not None and name != "stream"}
    if not call.pop("skip_prompt", True):
        raise ArgumentError("skip_prompt=False; answers never contain the prompt, so leave it out")
    check_names(call, KNOWN, KNOWN)
    rename_max_tokens(call, "max_tokens")
    call = {**fields_of_kwargs(call.pop("pipeline_kwargs", None)), **call}
    documents = call.pop("documents", None)
    given = {**fields, **call}
    method = methods.get(given.pop("method"), model_id)
    settings = GenerationSettings.from_arguments(given, batch_size)
    check_reusable(documents)
    return Call(None if documents is None else document_texts(documents), method, settings)


sources: WeakKeyDictionary[DebiasedLM, tuple[str, dict[str, Any]]] = WeakKeyDictionary()
"""Name and loading arguments of each model that this package loaded."""
_identities: WeakKeyDictionary[torch.nn.Module, str] = WeakKeyDictionary()


def identity(model: torch.nn.Module) -> str:
    """Return a unique name for an unnamed model, so that caches do not mix answers."""
    return _identities.setdefault(model, uuid4().hex)


def fields_of_kwargs(pipeline_kwargs: Mapping[str, Any] | None) -> dict[str, Any]:
    """Convert ``pipeline_kwargs`` to fields."""
    check_dict("pipeline_kwargs", pipeline_kwargs)
    settings = {name: value for name, value in (pipeline_kwargs or {}).items() if value is not None}
    if settings.pop("return_full_text", False):
        raise ArgumentError("pipeline_kwargs: return_full_text=True; answers never contain the prompt, so leave it out")
    fields = {name: settings.pop(name) for name in SAME if name in settings}
    if "max_new_tokens" in settings:
        fields["max_tokens"] = settings.pop("max_new_tokens")
    for name in STOPS:
        if name in settings:
            fields["stop"] = settings.pop(name)
    sampling = settings.pop("do_sample", None)
    if sampling is False:
        fields["temperature"] = None
    elif sampling:
        fields.setdefault("temperature", 1.0)
    if settings:
        known = ", ".join(["max_new_tokens", *SAME, *STOPS, "do_sample", "return_full_text"])
        raise ArgumentError(f"pipeline_kwargs: {', '.join(sorted(settings))} has no counterpart; known: {known}")
    return fields


def fields_of(pipeline: Any) -> dict[str, Any]:
    """Return model, tokenizer and settings of a ``transformers.pipeline`` as fields."""
    if not hasattr(pipeline, "model"):
        raise WrongTypeError(f"pipeline={pipeline!r}; expected a transformers.pipeline('text-generation', ...)")
    given: dict[str, Any] = {}
    for attribute in ("_forward_params", "_generate_kwargs"):  # the name depends on the version of transformers
        given |= getattr(pipeline, attribute, {})
    given.pop("tokenizer", None)
    return {"model": pipeline.model, "tokenizer": pipeline.tokenizer, **fields_of_kwargs(given)}


def stock_arguments(
    task: str | None,
    backend: str,
    device: int | str | torch.device | None,
    device_map: str | Mapping[str, Any] | None,
    model_kwargs: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """Return fields and options from the arguments of ``HuggingFacePipeline.from_model_id``."""
    if task not in (None, "text-generation"):
        raise ArgumentError(f"task={task!r}; only 'text-generation' is supported, with a decoder-only model")
    if backend not in (*STOCK_BACKENDS, *BACKENDS):
        known = ", ".join(map(repr, BACKENDS))
        raise ArgumentError(f"backend={backend!r}; expected one of {known}")
    check_dict("model_kwargs", model_kwargs)
    kwargs = dict(model_kwargs or {})
    given: dict[str, Any] = {"model_kwargs": kwargs, "backend": "auto" if backend in STOCK_BACKENDS else backend}
    given |= {"device": device, "device_map": device_map}
    if shared := {name: kwargs[name] for name in FOR_TOKENIZERS if name in kwargs}:
        check_dict("tokenizer_kwargs", own := kwargs.pop("tokenizer_kwargs", None))
        given["tokenizer_kwargs"] = {**shared, **(own or {})}
    return given
