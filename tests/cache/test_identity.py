"""Which models are the same to a cache: those with equal weights, or equal names where the weights are elsewhere."""

from ragbias.cache.identity import fingerprint
from support.random_models import random_model


def test_weights_decide_and_where_they_are_elsewhere_the_name_does():
    one, same, other = random_model("llama"), random_model("llama"), random_model("llama", seed=1)
    same.config._name_or_path = "a copy"
    assert fingerprint(one) == fingerprint(same) != fingerprint(other)
    one, same, other = (model.to("meta") for model in (one, random_model("llama"), same))
    assert fingerprint(one) == fingerprint(same) != fingerprint(other)
