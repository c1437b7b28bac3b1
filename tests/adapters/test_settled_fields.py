"""What a given lm was made with becomes the integration's; fields that say otherwise are refused."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel

from ragbias import DebiasedLM, DocumentCache
from ragbias.adapters.settled_fields import settle
from ragbias.errors import ArgumentError


class Fields(BaseModel):
    method: Any = "pine"
    strip_numbering: bool = False
    backend: str = "auto"
    document_cache: Any = None


@pytest.fixture
def given(lm: DebiasedLM) -> DebiasedLM:
    cache = DocumentCache()
    return DebiasedLM(lm.model, lm.tokenizer, "none", strip_numbering=True, backend="torch", cache=cache)


def test_fields_that_were_not_given_are_those_of_the_lm(given):
    llm = Fields()
    settle(llm, given, ArgumentError)
    assert (llm.method, llm.strip_numbering, llm.backend) == (given.method, True, "torch")
    assert llm.document_cache is given.cache is not None


def test_the_method_may_be_another_one(given):
    llm = Fields(method="rotor", backend="torch")
    settle(llm, given, ArgumentError)
    assert llm.method == "rotor"


@pytest.mark.parametrize("field", [{"strip_numbering": False}, {"backend": "auto"}, {"document_cache": None}])
def test_what_only_the_lm_settles_may_not_differ(given, field):
    with pytest.raises(ValueError, match=f"{next(iter(field))} is settled by the lm given"):
        settle(Fields(**field), given, ValueError)
