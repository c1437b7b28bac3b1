"""The stored documents of rotor give the plain model, as in vLLM, the logits of rotor."""

import asyncio
import itertools

import pytest
import torch
from transformers import DynamicCache

from ragbias import DebiasedLM, DocumentCache, debias
from ragbias.binding.architectures import structure_of
from ragbias.cache.identity import identity_of
from ragbias.methods import RoToR
from ragbias.prompt import TokenisedPrompt

pytest.importorskip("ragbias_vllm")

from ragbias_vllm.joint_documents import JointDocuments
from ragbias_vllm.plans import Plan, parts_of

DOCUMENTS = [[30, 31, 32, 33], [20, 21], [40, 41, 42]]
SUFFIX = [50, 51, 52]


@pytest.mark.parametrize("prefix", [[], [10, 11, 12]])
def test_stored_documents_give_the_logits_of_rotor(tmp_path, prefix):
    lm = DebiasedLM.from_pretrained("tiny", "rotor", dtype="float32")
    cache, missing = DocumentCache(memory=None, folder=tmp_path, portable=True), []
    for order in itertools.permutations(DOCUMENTS):
        given = TokenisedPrompt(prefix, list(order), SUFFIX)
        prompt = given.reordered(RoToR().document_order(given.documents))
        plan = Plan(False, "rotor", (len(prefix), *map(len, prompt.documents)), "")
        joint = JointDocuments(lm.model, cache)
        missing.append(len(joint.missing(plan, prompt.ids)))
        asyncio.run(joint.store(plan, prompt.ids))
        joint.close()
        with debias(lm.model, RoToR(), [given.spans]), torch.no_grad():
            expected = lm.model(torch.tensor([given.ids])).logits[0, -len(SUFFIX) :]
        parts = parts_of(identity_of(lm.model, "", portable=True), plan, prompt.ids)
        torch.testing.assert_close(plain_logits(lm.model, cache, parts), expected, rtol=0, atol=1e-3)
    assert missing == [len(parts)] + [0] * 5


def plain_logits(model, cache, parts):
    """Return the plain model's logits of the suffix after stored parts, at the positions of the parts."""
    architecture, decoder, modules = structure_of(model)
    filled = DynamicCache()
    entries = [cache.get(part.key) for part in parts]
    positions = torch.cat([torch.arange(part.end - part.begin) + part.start for part in parts])
    for layer, module in enumerate(modules):
        keys = torch.cat([entry.keys[layer] for entry in entries], 1)
        values = torch.cat([entry.values[layer] for entry in entries], 1)
        filled.update(architecture.encoding(decoder, module, 100)(keys, positions)[None], values[None], layer)
    with torch.no_grad():
        return model(torch.tensor([SUFFIX]), past_key_values=filled, use_cache=True).logits[0]
