"""Structured output by asking for JSON and reading it, for ``method="json_schema"`` and ``"json_mode"``."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import Any

from langchain_core.messages import BaseMessage, HumanMessage
from langchain_core.output_parsers import BaseOutputParser, JsonOutputParser, PydanticOutputParser
from langchain_core.runnables import Runnable, RunnableMap, RunnablePassthrough
from langchain_core.utils.function_calling import convert_to_json_schema
from langchain_core.utils.pydantic import is_basemodel_subclass

from ragbias.adapters.json_answers import json_request
from ragbias.errors import ArgumentError


def response_format(schema: Any, method: str) -> dict[str, Any]:
    """OpenAI's ``response_format`` for a schema."""
    if method == "json_mode":
        return {"type": "json_object"}
    return {"type": "json_schema", "json_schema": {"schema": convert_to_json_schema(schema)}}


def asking_for_json(messages: Sequence[BaseMessage], wanted: Any) -> list[BaseMessage]:
    """The conversation with the request for JSON at its end.

    Raises:
        ValueError: ``wanted`` is no ``response_format`` that is known here.
    """
    try:
        request = json_request(wanted)
    except ArgumentError as error:
        raise ValueError(str(error)) from error
    if not messages:
        raise ValueError("response_format needs a conversation, and there is no message")
    last = messages[-1]
    if isinstance(last, HumanMessage) and isinstance(last.content, str):
        return [*messages[:-1], last.model_copy(update={"content": f"{last.content}\n\n{request}"})]
    return [*messages, HumanMessage(request)]


def parser_for(schema: Any) -> BaseOutputParser[Any]:
    """Objects of a pydantic class, dicts for anything else."""
    if isinstance(schema, type) and is_basemodel_subclass(schema):
        return PydanticOutputParser(pydantic_object=schema)
    return JsonOutputParser()


def reading(llm: Runnable[Any, Any], parser: BaseOutputParser[Any], include_raw: bool) -> Runnable[Any, Any]:
    """The model and its parser; with ``include_raw`` a dict of ``raw``, ``parsed`` and ``parsing_error``."""
    if not include_raw:
        return llm | parser
    parsed = RunnablePassthrough.assign(parsed=itemgetter("raw") | parser, parsing_error=lambda _: None)
    failed = RunnablePassthrough.assign(parsed=lambda _: None)
    return RunnableMap(raw=llm) | parsed.with_fallbacks([failed], exception_key="parsing_error")
