"""Answers stay correct in a small cache under load: chunked prefill, preemption, shared prefixes, mixed requests."""

import random

import pytest

from ragbias import DebiasedLM
from ragbias.prompt import tokenise
from support.readers import write_reader
from support.vllm_engine import engine, orders, plan_of, random_prompts, tokens_of

METHODS = ["pcw", "ape(temperature=1,scale=1)"]
SCOPES = ["", "a" * 64]
TOKENS = 24
BLOCK = 32  # the smallest on a CPU


@pytest.fixture(scope="module")
def lm():
    return DebiasedLM.from_pretrained("tiny", method="pcw", dtype="float32")


def test_500_mixed_requests_are_right_in_a_small_cache(tmp_path, lm):
    from vllm.lora.request import LoRARequest

    folder = write_reader(tmp_path / "reader", lm.model, size=0.2)
    reader, draw = LoRARequest("reader", 1, folder), random.Random(0)
    requests = [lm.prepare(prompt) for prompt in random_prompts(25, most=8)]
    right, plain = {}, {}
    for kind, method in (("pcw", "pcw"), ("reader", f"pcw(reader={folder})"), ("plain", "none")):
        for number, request in enumerate(requests):
            again = lm.prepare(request.prompt.parts, method=method)
            plain[number] = again.tokens  # at last that of "none", whose tokens may cross borders of documents
            right[kind, number] = lm.batch([again], max_new_tokens=TOKENS, min_new_tokens=TOKENS)[0].token_ids
    assert any(right["pcw", number] != right["plain", number] for number in range(25))
    assert any(right["pcw", number] != right["reader", number] for number in range(25))
    tokenised = [tokenise(request.prompt.parts, lm.tokenizer) for request in requests]
    batch, loras, expected = [], [], []
    for _ in range(500):
        number, kind = draw.randrange(25), draw.choice(["pcw", "pcw", "reader", "plain"])
        prompt, plan = plain[number], None
        if kind != "plain":
            (prompt,) = orders(tokenised[number], 1, draw.random())
            plan = plan_of(prompt, draw.choice(METHODS), draw.choice(SCOPES))
        batch.append((plan, prompt.ids))
        loras.append(reader if kind == "reader" else None)
        expected.append((kind, right[kind, number]))
    small = {"block_size": BLOCK, "num_gpu_blocks_override": 60, "max_model_len": 1024, "max_num_batched_tokens": 64}
    with engine(tmp_path / "stored", enable_lora=True, max_loras=2, max_lora_rank=8, max_num_seqs=32, **small) as llm:
        for scope in SCOPES:
            llm.store(tokenised, scope)
        outputs = llm.run(batch, TOKENS, lora=loras, min_tokens=TOKENS)
        assert llm.counter("vllm:num_preemptions") > 0
        assert llm.counter("vllm:ragbias_refusals") == 0
        assert llm.counter("vllm:ragbias_loaded_tokens") > 10_000
        pairs = zip(outputs, expected, strict=True)
        assert [kind for output, (kind, tokens) in pairs if tokens_of(output) != tokens] == []


def test_any_number_of_documents_is_right(tmp_path, lm):
    with engine(tmp_path, max_model_len=8192, block_size=BLOCK) as llm:
        for count in (1, 2, 3, 10, 33, 100):
            (prompt,) = random_prompts(1, seed=count, fewest=count, most=count)
            request = lm.prepare(prompt)
            reference = lm.batch([request], max_new_tokens=8)[0].token_ids
            llm.store([tokenise(request.prompt.parts, lm.tokenizer)])
            for shuffled in orders(tokenise(request.prompt.parts, lm.tokenizer), 2):
                (output,) = llm.answer([shuffled])
                assert tokens_of(output)[: len(reference)] == reference
