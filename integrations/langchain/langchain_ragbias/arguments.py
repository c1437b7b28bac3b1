"""Types of call arguments, and the conversion of arguments of ``HuggingFacePipeline``."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from uuid import uuid4
from weakref import WeakKeyDictionary

import torch
from langchain_core.documents import Document
from langchain_core.language_models import LanguageModelInput as Input
from langchain_core.runnables import RunnableConfig
from typing_extensions import Unpack

from langchain_ragbias.messages import ToolLike
from ragbias import DebiasedLM
from ragbias.attention import BACKENDS
from ragbias.checks import check_dict
from ragbias.errors import ArgumentError, WrongTypeError
from ragbias.generation import SamplingArguments
from ragbias.methods import Method

FORMAT = ("tools", "tool_choice", "response_format")  # arguments that only the chat model has
SAME_NAMES = ("temperature", "top_k", "top_p", "repetition_penalty")  # ``pipeline_kwargs`` named as fields
STOPS = ("stop_sequence", "stop_strings")
FOR_TOKENIZERS = ("cache_dir", "local_files_only", "revision", "token", "trust_remote_code")
STOCK_BACKENDS = ("default", "pipeline")  # names that HuggingFacePipeline accepts
Output = TypeVar("Output")
Chunk = TypeVar("Chunk")
Stop = list[str] | None
Config = RunnableConfig | None


class CallArguments(SamplingArguments, total=False):
    """Keyword arguments of ``invoke``, ``stream`` and their async forms. Each overrides the field of the same name."""

    documents: Sequence[Document | str] | None
    """The documents as they occur in the prompt. By default, these are the documents that the chain retrieved."""
    method: str | Method | None
    """The method: a name or an instance."""
    max_tokens: int
    """Alias of ``max_new_tokens``."""
    logprobs: bool | None
    """Whether to return each token's log-probability in OpenAI's format."""
    pipeline_kwargs: Mapping[str, Any] | None
    """Arguments for generation, as for ``HuggingFacePipeline``."""
    tools: Sequence[ToolLike] | None
    """Tools that the model may call; see ``bind_tools``. Only the chat model takes this argument and the next two."""
    tool_choice: str | bool | dict[str, Any] | None
    """The tool that must be called; see ``bind_tools``."""
    response_format: dict[str, Any] | None
    """``{"type": "json_object"}`` or ``{"type": "json_schema", "json_schema": ...}``, as in OpenAI's API."""


class TypedCalls(Generic[Output, Chunk]):
    """Types of LangChain's methods with ``CallArguments``, for type checkers. At run time, this class is empty.

    Subclasses need ``# type: ignore[misc]``, because LangChain's methods accept any keyword arguments.
    """

    if TYPE_CHECKING:

        def invoke(
            self, input: Input, config: Config = None, *, stop: Stop = None, **kwargs: Unpack[CallArguments]
        ) -> Output: ...

        async def ainvoke(
            self, input: Input, config: Config = None, *, stop: Stop = None, **kwargs: Unpack[CallArguments]
        ) -> Output: ...

        def stream(
            self, input: Input, config: Config = None, *, stop: Stop = None, **kwargs: Unpack[CallArguments]
        ) -> Iterator[Chunk]: ...

        def astream(
            self, input: Input, config: Config = None, *, stop: Stop = None, **kwargs: Unpack[CallArguments]
        ) -> AsyncIterator[Chunk]: ...


KNOWN = ("stop", *(name for name in CallArguments.__annotations__ if name not in FORMAT))
loading_arguments: WeakKeyDictionary[DebiasedLM, tuple[str, dict[str, Any]]] = WeakKeyDictionary()
"""Name and loading arguments of each model that this package loaded."""
_identities: WeakKeyDictionary[torch.nn.Module, str] = WeakKeyDictionary()


def unique_name(model: torch.nn.Module) -> str:
    """Return a unique name for an unnamed model, because LangChain's caches distinguish models by name."""
    return _identities.setdefault(model, uuid4().hex)


def convert_pipeline_kwargs(pipeline_kwargs: Mapping[str, Any] | None) -> dict[str, Any]:
    """Convert ``pipeline_kwargs`` to the model's fields. Raise ``ArgumentError`` if an argument has no counterpart."""
    check_dict("pipeline_kwargs", pipeline_kwargs)
    settings = {name: value for name, value in (pipeline_kwargs or {}).items() if value is not None}
    if settings.pop("return_full_text", False):
        raise ArgumentError("pipeline_kwargs: return_full_text=True; answers never contain the prompt, so leave it out")
    fields = {name: settings.pop(name) for name in SAME_NAMES if name in settings}
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
        known = ", ".join(["max_new_tokens", *SAME_NAMES, *STOPS, "do_sample", "return_full_text"])
        raise ArgumentError(f"pipeline_kwargs: {', '.join(sorted(settings))} has no counterpart; supported: {known}")
    return fields


def pipeline_fields(pipeline: Any) -> dict[str, Any]:
    """Return the model, tokenizer and settings of a ``transformers.pipeline`` as fields and options."""
    if not hasattr(pipeline, "model"):
        raise WrongTypeError(f"pipeline={pipeline!r}; expected a transformers.pipeline('text-generation', ...)")
    given: dict[str, Any] = {}
    for attribute in ("_forward_params", "_generate_kwargs"):  # the name depends on the version of transformers
        given |= getattr(pipeline, attribute, {})
    given.pop("tokenizer", None)
    return {"model": pipeline.model, "tokenizer": pipeline.tokenizer, **convert_pipeline_kwargs(given)}


def convert_stock_arguments(
    task: str | None,
    backend: str,
    device: int | str | torch.device | None,
    device_map: str | Mapping[str, Any] | None,
    model_kwargs: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """Convert the arguments of ``HuggingFacePipeline.from_model_id`` to fields and options."""
    if task not in (None, "text-generation"):
        raise ArgumentError(f"task={task!r}; only 'text-generation' is supported, with a decoder-only model")
    if backend not in (*STOCK_BACKENDS, *BACKENDS):
        known = ", ".join(map(repr, BACKENDS))
        raise ArgumentError(f"backend={backend!r}; expected one of {known}")
    check_dict("model_kwargs", model_kwargs)
    kwargs = dict(model_kwargs or {})
    given: dict[str, Any] = {"model_kwargs": kwargs, "backend": "auto" if backend in STOCK_BACKENDS else backend}
    given |= {"device": device, "device_map": device_map}
    shared = {name: kwargs[name] for name in FOR_TOKENIZERS if name in kwargs}
    if shared:
        tokenizer_kwargs = kwargs.pop("tokenizer_kwargs", None)
        check_dict("tokenizer_kwargs", tokenizer_kwargs)
        given["tokenizer_kwargs"] = {**shared, **(tokenizer_kwargs or {})}
    return given
