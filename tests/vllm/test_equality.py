"""vLLM with the connector gives the same tokens and log-probabilities as ``DebiasedLM``, for every order."""

import asyncio
from pathlib import Path

import pytest

from ragbias import DebiasedLM, DocumentCache, Prompt
from ragbias.methods import RoToR
from ragbias.prompt import tokenise
from ragbias_vllm.joint_documents import JointDocuments
from support.vllm_engine import engine, logprobs_of, orders, plan_of, random_prompts, tokens_of

READER = Path(__file__).parents[2] / "ragbias/models/readers/smollm2-pcw"
TOLERANCE = 1e-3
TOKENS = 8


def check_equal(outputs, references):
    """Compare vLLM's outputs with answers of ``DebiasedLM``, which may lack the token that ends an answer."""
    for output, reference in zip(outputs, references, strict=True):
        count = len(reference.token_ids)
        assert tokens_of(output)[:count] == reference.token_ids
        assert len(tokens_of(output)) - count <= (reference.finish_reason == "stop")
        assert logprobs_of(output)[:count] == pytest.approx(reference.logprobs[:count], abs=TOLERANCE)


def check_orders(llm, lm, prompts, method, tokens=TOKENS, **options):
    """Answer each prompt in four orders and compare with one answer of ``DebiasedLM``."""
    requests = [lm.prepare(prompt) for prompt in prompts]
    references = [lm.batch([request], max_new_tokens=tokens, logprobs=True)[0] for request in requests]
    tokenised = [tokenise(request.prompt.parts, lm.tokenizer) for request in requests]
    if method == "rotor":
        check_together(llm, lm, tokenised, references, tokens, **options)
        return
    llm.store(tokenised)
    for shuffled in zip(*(orders(prompt, 4, seed) for seed, prompt in enumerate(tokenised)), strict=True):
        check_equal(llm.answer(shuffled, tokens, method, **options), references)


def check_together(llm, lm, prompts, references, tokens, **options):
    """As above, with documents that ``JointDocuments`` computes from the first order and finds in the others."""
    joint = JointDocuments(lm.model, DocumentCache(memory=None, folder=llm.folder, portable=True))
    missing = []
    for shuffled in zip(*(orders(prompt, 4, seed) for seed, prompt in enumerate(prompts)), strict=True):
        ordered = [prompt.reordered(RoToR().document_order(prompt.documents)) for prompt in shuffled]
        missing += [len(joint.missing(plan_of(prompt, "rotor"), prompt.ids)) for prompt in ordered]
        for prompt in ordered:
            asyncio.run(joint.store(plan_of(prompt, "rotor"), prompt.ids))
        check_equal(llm.answer(ordered, tokens, "rotor", **options), references)
    joint.close()
    assert all(missing[: len(prompts)]) and not any(missing[len(prompts) :])


@pytest.mark.parametrize("method", ["pcw", "ape(temperature=1,scale=1)", "rotor"])
def test_answers_of_tiny_equal_those_of_debiased_lm(tmp_path, method):
    lm = DebiasedLM.from_pretrained("tiny", method=method, dtype="float32")
    with engine(tmp_path, connector={"portable": method == "rotor"}) as llm:
        check_orders(llm, lm, random_prompts(100), method)


def test_answers_of_smollm2_equal_those_of_rotor(tmp_path):
    lm = DebiasedLM.from_pretrained("smollm2", method="rotor", dtype="float32")
    with engine(tmp_path, "smollm2", connector={"portable": True}) as llm:
        check_orders(llm, lm, random_prompts(30), "rotor")


def test_answers_of_smollm2_equal_those_of_debiased_lm(tmp_path):
    vllm_lora = pytest.importorskip("vllm.lora.request")
    plain = DebiasedLM.from_pretrained("smollm2", method="pcw", dtype="float32")
    reading = DebiasedLM(plain.model, plain.tokenizer, method=f"pcw(reader={READER})")
    prompts = random_prompts(30)
    with engine(tmp_path, "smollm2", enable_lora=True, max_loras=2, max_lora_rank=8) as llm:
        check_orders(llm, plain, prompts, "pcw")
        reader = vllm_lora.LoRARequest("smollm2-pcw", 1, str(READER))
        check_orders(llm, reading, prompts, "pcw", lora=reader)


def test_blocks_of_rotor_are_not_shared_with_other_documents(tmp_path):
    lm = DebiasedLM.from_pretrained("tiny", method="rotor", dtype="float32")
    texts = [
        "The falcon keeps 12 books at the station. " * 9,
        "The heron lies 5 miles north. ",
        "The otter lies 7 miles north. ",
    ]
    prompts = [Prompt("Notes.\n\n", [texts[0], text], "Question: where is it?\nAnswer:") for text in texts[1:]]
    with engine(tmp_path, connector={"portable": True}) as llm:
        check_orders(llm, lm, prompts[:1], "rotor")
        check_orders(llm, lm, prompts[1:], "rotor")
