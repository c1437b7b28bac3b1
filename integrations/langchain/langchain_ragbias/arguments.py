"""The arguments of a call: their types for editors and type checkers, and how they override the model's fields."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from langchain_core.documents import Document
from langchain_core.language_models import LanguageModelInput
from langchain_core.runnables import RunnableConfig
from typing_extensions import Unpack

from langchain_ragbias import loading
from ragbias import methods
from ragbias.boundaries.sources.named import check_lasting, document_texts
from ragbias.generation.arguments import SamplingArguments, check_arguments
from ragbias.methods import Method

SAMPLING = ("max_tokens", "temperature", "top_p", "top_k", "seed", "repetition_penalty")
KNOWN = ("documents", "method", "stop", "logprobs", *SAMPLING, "max_new_tokens")
Output = TypeVar("Output")
Chunk = TypeVar("Chunk")


class CallArguments(SamplingArguments, total=False):
    """The keyword arguments of ``invoke``, ``stream`` and their async forms; each overrides the field of its name."""

    documents: Sequence[Document | str] | None
    """The retrieved documents, as they occur in the prompt; by default those that the chain retrieved."""
    method: str | Method | None
    """The method: a name or an instance."""
    max_tokens: int
    """The same as ``max_new_tokens``."""
    logprobs: bool | None
    """Return each token's log-probability in OpenAI's shape."""
    pipeline_kwargs: Mapping[str, Any] | None
    """Arguments of generation as ``HuggingFacePipeline`` takes them."""
    tools: Sequence[Any] | None
    """Tools to offer, see ``bind_tools``; chat model only, as the next two."""
    tool_choice: str | bool | dict[str, Any] | None
    """Which tool must be called, see ``bind_tools``."""
    response_format: dict[str, Any] | None
    """OpenAI's ``{"type": "json_object"}``, or ``"json_schema"`` with a schema."""


class TypedCalls(Generic[Output, Chunk]):
    """Declares the arguments of LangChain's calls for type checkers; at run time it is empty.

    LangChain's calls take arguments of any name, so mypy calls a subclass incompatible (``misc``).
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


@dataclass(frozen=True)
class Call:
    """One request's arguments: the model's fields, overridden by the arguments of the call.

    Attributes:
        documents: documents given with the call.
        method: the requested method.
        settings: keyword arguments of ``DebiasedLM.batch``.
    """

    documents: tuple[str, ...] | None
    method: Method
    settings: dict[str, Any]


def merge(fields: Mapping[str, Any], stop: Sequence[str] | str | None, given: Mapping[str, Any], model_id: str) -> Call:
    """Override the model's fields by the arguments of a call.

    Args:
        fields: ``method``, ``stop``, ``logprobs`` and those named in ``SAMPLING``.
        stop, given: arguments of the call; ``None`` counts as not given.
        model_id: the model's name, for methods with a profile per model.

    Raises:
        TypeError: an argument is unknown or of the wrong type.
        UnknownMethodError: there is no such method.
    """
    given = {name: value for name, value in given.items() if value is not None and name != "stream"}
    documents = given.pop("documents", None)
    if not given.pop("skip_prompt", True):
        raise TypeError("skip_prompt=False; answers never repeat the prompt here, leave it out")
    if "max_new_tokens" in given:
        given["max_tokens"] = given.pop("max_new_tokens")
    given = {**loading.fields_of_kwargs(given.pop("pipeline_kwargs", None)), **given}
    if stop is not None:
        given["stop"] = stop
    if unknown := sorted(given.keys() - set(KNOWN)):
        raise TypeError(f"unknown argument {', '.join(unknown)}; an LLM call takes {', '.join(KNOWN)}")
    settings = {name: value for name, value in {**fields, **given}.items() if value is not None}
    method = settings.pop("method")
    if not isinstance(method, (str, Method)):
        raise TypeError(f"method must be a method's name or an instance, got {type(method).__name__}")
    check_arguments(settings)
    settings["max_new_tokens"] = settings.pop("max_tokens")
    check_lasting(documents)
    texts = None if documents is None else document_texts(documents)
    return Call(texts, methods.get(method, model_id), settings)
