"""Options of the integrations' models: grouping, and agreement with a given model."""

import pytest

from ragbias import DebiasedLM, DocumentCache
from ragbias.errors import ArgumentError
from ragbias.frameworks import FrameworkModel, RagBiasOptions


class Model(FrameworkModel):
    model_id: str = ""

    def load(self, lm=None):
        self.open_model("model_id", lm, {})
        return self


@pytest.fixture
def given(lm: DebiasedLM) -> DebiasedLM:
    cache = DocumentCache()
    return DebiasedLM(lm.model, lm.tokenizer, "none", strip_numbering=True, backend="torch", cache=cache)


def test_fields_that_were_not_given_are_those_of_the_lm(given):
    llm = Model().load(given)
    assert (llm.method, llm.options.strip_numbering, llm.options.backend) == (given.method, True, "torch")
    assert llm.document_cache is given.cache is not None


def test_the_method_may_be_another_one(given):
    llm = Model(method="rotor", options={"backend": "torch"}).load(given)
    assert llm.method == "rotor"


@pytest.mark.parametrize("field", [{"strip_numbering": False}, {"backend": "auto"}])
def test_an_option_may_not_contradict_the_lm(given, field):
    with pytest.raises(ArgumentError, match=f"{next(iter(field))}=.* contradicts the existing model; .*DebiasedLM"):
        Model(options=field).load(given)


def test_a_cache_may_not_contradict_the_lm(given):
    with pytest.raises(ArgumentError, match="document_cache=None contradicts the existing model"):
        Model(document_cache=None).load(given)


def test_keyword_arguments_override_the_options():
    options = Model(options=RagBiasOptions(top_p=0.9, seed=1), top_p=0.5).options
    assert (options.top_p, options.model_fields_set) == (0.5, {"top_p", "seed"})
    assert "options" not in Model(method="none").model_fields_set


def test_without_a_model_the_error_shows_how_to_name_one():
    with pytest.raises(ArgumentError, match=r'no model given; name one, .* model_id="Qwen/.*lm=.*base_url='):
        Model().load()
