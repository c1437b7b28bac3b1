"""Asking a model for JSON: what OpenAI's ``response_format`` means for one that is only asked for it."""

from __future__ import annotations

import json
from typing import Any

from ragbias.errors import ArgumentError

BEGINNING = "{"  # of the answer, put after the prompt
ANY_JSON = "Answer with one JSON object and nothing else."
FITTING_JSON = "Answer with one JSON object that fits this JSON schema, and nothing else:\n"


def json_request(wanted: Any) -> str:
    """What is written after the last message of the user.

    Raises:
        ArgumentError: ``wanted`` is no ``response_format`` that is known here.
    """
    kind = wanted.get("type") if isinstance(wanted, dict) else None
    if kind == "json_object":
        return ANY_JSON
    if kind == "json_schema" and isinstance(wanted.get("json_schema"), dict):
        inner = wanted["json_schema"]
        return FITTING_JSON + json.dumps(inner.get("schema", inner), ensure_ascii=False)
    raise ArgumentError(f"response_format={wanted!r}; expected type 'json_object', or 'json_schema' with a schema")
