"""LangChain's calls with the arguments that they take here, for editors and type checkers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Generic, TypeVar

from langchain_core.language_models import LanguageModelInput
from langchain_core.runnables import RunnableConfig
from typing_extensions import Unpack

from langchain_ragbias.arguments import CallArguments

Output = TypeVar("Output")
Chunk = TypeVar("Chunk")


class TypedCalls(Generic[Output, Chunk]):
    """Base class that goes before LangChain's own, whose calls take arguments of any name.

    mypy calls that incompatible, and a class that has both ignores it (``misc``): an argument that is not declared here
    is an error at run time too. Without a type checker, this class is empty.
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
