"""Options of the integrations' models: grouping, and agreement with a given model."""

from typing import Any

import pytest
from pydantic import BaseModel

from ragbias import DebiasedLM, DocumentCache
from ragbias.errors import ArgumentError
from ragbias.frameworks.options import RagBiasOptions, adopt_settings, open_model, with_options


class Fields(BaseModel):
    model_id: str = ""
    method: Any = None
    document_cache: Any = None
    base_url: str | None = None


@pytest.fixture
def given(lm: DebiasedLM) -> DebiasedLM:
    cache = DocumentCache()
    return DebiasedLM(lm.model, lm.tokenizer, "none", strip_numbering=True, backend="torch", cache=cache)


def test_fields_that_were_not_given_are_those_of_the_lm(given):
    llm = Fields()
    options = adopt_settings(llm, RagBiasOptions(), given)
    assert (llm.method, options.strip_numbering, options.backend) == (given.method, True, "torch")
    assert llm.document_cache is given.cache is not None


def test_the_method_may_be_another_one(given):
    llm = Fields(method="rotor")
    adopt_settings(llm, RagBiasOptions(backend="torch"), given)
    assert llm.method == "rotor"


@pytest.mark.parametrize("field", [{"strip_numbering": False}, {"backend": "auto"}])
def test_an_option_may_not_contradict_the_lm(given, field):
    with pytest.raises(ArgumentError, match=f"{next(iter(field))}=.* contradicts the existing model; .*DebiasedLM"):
        adopt_settings(Fields(), RagBiasOptions(**field), given)


def test_a_cache_may_not_contradict_the_lm(given):
    with pytest.raises(ArgumentError, match="document_cache=None contradicts the existing model"):
        adopt_settings(Fields(document_cache=None), RagBiasOptions(), given)


def test_keyword_arguments_override_the_options():
    values = {"options": RagBiasOptions(top_p=0.9, seed=1), "top_p": 0.5, "method": "none"}
    assert with_options(values, RagBiasOptions) == {"options": {"top_p": 0.5, "seed": 1}, "method": "none"}
    assert with_options({"method": "none"}, RagBiasOptions) == {"method": "none"}


def test_without_a_model_the_error_shows_how_to_name_one():
    with pytest.raises(ArgumentError, match=r'no model given; name one, .* model_id="Qwen/.*lm=.*base_url='):
        open_model(Fields(), "model_id", RagBiasOptions(), None, {})
