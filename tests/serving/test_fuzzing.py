"""Random requests from the OpenAPI schema cause no status 500, and every response follows the schema."""

import warnings

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
MODES = {"POST": list(schemathesis.GenerationMode), "GET": [schemathesis.GenerationMode.POSITIVE]}
OPERATIONS = [
    pytest.param("POST", "/v1/chat/completions", 40, marks=pytest.mark.slow),
    pytest.param("POST", "/v1/completions", 40, marks=pytest.mark.slow),
    ("POST", "/tokenize", 2),
    ("GET", "/v1/models/{name}", 2),
]


def fuzz(address: str, method: str, path: str, examples: int, mode: schemathesis.GenerationMode) -> None:
    schema = schemathesis.openapi.from_url(f"{address}/openapi.json")
    operation = schema[path][method]

    @settings(max_examples=examples, deadline=None, database=None, derandomize=True, suppress_health_check=HealthCheck)
    @given(case=operation.as_strategy(generation_mode=mode))
    def run(case: schemathesis.Case) -> None:
        if isinstance(case.body, dict) and "model" in case.body and isinstance(case.body["model"], str):
            case.body["model"] = "tiny"
            case.body["max_tokens"] = (
                min(case.body["max_tokens"], 3) if isinstance(case.body.get("max_tokens"), int) else 3
            )
        case.call_and_validate(base_url=address, checks=CHECKS)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run()


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_streams_are_as_the_schema_says(address, path):
    request = {"prompt": "j"} if path == "/v1/completions" else {"messages": [{"role": "user", "content": "j"}]}
    operation = schemathesis.openapi.from_url(f"{address}/openapi.json")[path]["POST"]
    case = operation.Case(body={"model": "tiny", "stream": True, "max_tokens": 2, **request})
    assert case.call_and_validate(base_url=address, checks=CHECKS).status_code == 200


@pytest.mark.parametrize(("method", "path", "examples"), OPERATIONS)
def test_requests_of_the_schema_and_against_it(address, method, path, examples):
    for mode in MODES[method]:
        fuzz(address, method, path, examples, mode)
