"""The declarations of methods are true."""

import pytest
import torch

import ragbias
from ragbias.methods import METHODS, AttentionMethod, JointMethod, ReorderingMethod, VotingMethod
from support.random_models import random_model

BASES = {"attention": AttentionMethod, "order": ReorderingMethod, "tokens": JointMethod, "answers": VotingMethod}
PREFIX, SUFFIX = [3, 5, 9], [11, 4]
OTHERS = ([20, 21, 22, 23], [24, 25, 26, 27, 28, 29, 30])
DOCUMENT = [60, 61, 62, 63, 64]  # last in the canonical order too
WITH_DOCUMENTS = [
    name
    for name, method in METHODS.items()
    if issubclass(method, AttentionMethod) and method.needs_documents and method.positions == "none"
]


def states(model, method, other):
    """Return the last layer's keys and values ``[1, G, L, d]`` for ``DOCUMENT`` after another document."""
    ids = PREFIX + other + DOCUMENT + SUFFIX
    begin, end = len(PREFIX) + len(other), len(PREFIX) + len(other) + len(DOCUMENT)
    spans = [(len(PREFIX), begin), (begin, end)]
    with torch.no_grad(), ragbias.debias(model, method, spans=spans):
        layer = model(torch.tensor([ids])).past_key_values.layers[-1]
    return torch.cat([layer.keys, layer.values])[:, :, begin:end]


@pytest.mark.parametrize("name", WITH_DOCUMENTS)
def test_documents_are_reusable_exactly_where_that_is_declared(name):
    model = random_model("llama")
    first, second = (states(model, name, other) for other in OTHERS)
    same = torch.allclose(first, second, rtol=0, atol=1e-5 * float(first.abs().max()))
    assert same == METHODS[name].reusable_documents


@pytest.mark.parametrize("name", METHODS)
def test_every_method_declares_what_it_acts_on_and_costs(name):
    method = METHODS[name]
    assert method.name == name
    kinds = [kind for kind, base in BASES.items() if issubclass(method, base)]
    assert kinds == ([] if method.acts_on == "nothing" else [method.acts_on])
    assert method.cost and (method.source or method.acts_on == "nothing")
