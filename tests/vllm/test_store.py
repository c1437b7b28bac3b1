"""Stored documents that are missing, damaged, deleted or another tenant's, and requests that cannot run."""

import shutil

import pytest

from ragbias import DebiasedLM, DocumentCache
from ragbias.cache.stores import BROKEN, SUFFIX
from ragbias.prompt import tokenise
from ragbias_vllm.plans import Plan
from support.readers import write_reader
from support.vllm_engine import engine, failed, plan_of, random_prompts, tokens_of


@pytest.fixture(scope="module")
def lm():
    return DebiasedLM.from_pretrained("tiny", method="pcw", dtype="float32")


@pytest.fixture(scope="module")
def prompts(lm):
    return [tokenise(prompt, lm.tokenizer) for prompt in random_prompts(6)]


@pytest.fixture(scope="module")
def right(lm):
    return [lm.batch([lm.prepare(prompt)], max_new_tokens=8)[0].token_ids for prompt in random_prompts(6)]


def states(outputs):
    return [output.kv_transfer_params["ragbias"] for output in outputs if not failed(output)]


def check(outputs, right):
    for output, tokens in zip(outputs, right, strict=True):
        assert tokens_of(output)[: len(tokens)] == tokens


def test_answers_are_right_or_fail_if_the_folder_changes(tmp_path, lm, prompts, right):
    from vllm.lora.request import LoRARequest

    folder = tmp_path / "stored"
    reader = LoRARequest("reader", 1, write_reader(tmp_path / "reader", lm.model))
    with engine(folder, connector={"memory": None}, enable_lora=True, max_loras=2, max_lora_rank=8) as llm:
        # nothing is stored
        assert all(map(failed, llm.answer(prompts)))
        assert llm.counter("vllm:ragbias_refusals") == len(prompts)
        assert all(
            output.kv_transfer_params["ragbias"] == {"stored": True, "available": True} for output in llm.store(prompts)
        )
        outputs = llm.answer(prompts)
        check(outputs, right)
        assert states(outputs) == [{"loaded": plan_of(prompt).end} for prompt in prompts]
        assert llm.counter("vllm:ragbias_stored_entries") == len(list(folder.glob(f"*{SUFFIX}")))

        # documents that are stored already are not computed again
        before = llm.counter("vllm:ragbias_stored_entries")
        assert all(
            output.kv_transfer_params["ragbias"] == {"stored": False, "available": True}
            for output in llm.store(prompts)
        )
        assert llm.counter("vllm:ragbias_stored_entries") == before

        # another tenant
        assert all(map(failed, llm.answer(prompts, scope="other")))
        llm.store(prompts[:1], scope="other")
        check(llm.answer(prompts[:1], scope="other"), right[:1])

        # vLLM's own prefix cache contains answers, so it is emptied before each damage
        llm.llm.reset_prefix_cache()
        for path in folder.glob(f"*{SUFFIX}"):
            path.write_bytes(path.read_bytes()[:-1] + b"?")
        assert all(map(failed, llm.answer(prompts)))
        assert any(folder.glob(f"*{BROKEN}"))
        llm.store(prompts)
        check(llm.answer(prompts), right)

        llm.llm.reset_prefix_cache()
        shutil.rmtree(folder)
        assert all(map(failed, llm.answer(prompts)))
        llm.store(prompts)
        check(llm.answer(prompts), right)

        # one missing document fails its request alone
        llm.llm.reset_prefix_cache()
        (extra,) = (tokenise(prompt, lm.tokenizer) for prompt in random_prompts(1, seed=9))
        outputs = llm.answer([*prompts[:3], extra, *prompts[3:]])
        assert failed(outputs.pop(3))
        check(outputs, right)

        # requests that cannot run
        plan, ids = plan_of(prompts[0]), prompts[0].ids
        length = len(prompts[0].documents[0])
        store = Plan(True, "", (len(prompts[0].prefix), length), "")
        for each, options in {
            "salt": dict(salt="wrong"),
            "no salt": dict(salt=""),
            "log-probabilities of the prompt": dict(prompt_logprobs=1),
        }.items():
            assert failed(llm.run([(plan, ids)], 4, **options)[0]), each
        assert failed(llm.run([(plan_of(prompts[0], "pine"), ids)], 4)[0])
        assert failed(llm.run([(store, ids[: store.end + 1])], 1, lora=reader)[0])
        assert failed(llm.run([(Plan(False, "pcw", (1, 10_000), ""), ids)], 4)[0])
        assert failed(llm.run([(Plan(False, "pcw", (0, 1), ""), ids[:1])], 4)[0])  # the only token is of a document
        check(llm.answer(prompts), right)

        # with a second adapter, no slot would be empty
        second = LoRARequest("second", 2, write_reader(tmp_path / "second", lm.model))
        assert failed(llm.answer(prompts[:1], lora=second)[0])

    with engine(folder, max_num_seqs=1) as llm:  # another process uses the same entries
        check(llm.answer(prompts), right)

        # a document is stored even if it gets the blocks of a load that failed one step before
        document = min(prompts[0].documents, key=len)
        ids, lengths = [*prompts[0].prefix, *document, document[-1]], (len(prompts[0].prefix), len(document))
        load, store = (Plan(store, "pcw", lengths, "new") for store in (False, True))
        missing, stored, loaded = llm.run([(load, ids), (store, ids), (load, ids)], 1)
        assert failed(missing)
        assert states([stored, loaded]) == [{"stored": True, "available": True}, {"loaded": load.end}]


def test_a_full_folder_fails_requests_without_wrong_answers(tmp_path, prompts, right):
    with engine(tmp_path, connector={"memory": None, "disk": "1MB"}) as llm:
        stored = llm.store(prompts)
        assert not all(
            output.kv_transfer_params["ragbias"]["available"] for output in llm.store(prompts) if not failed(output)
        )
        assert stored
        outputs = llm.answer(prompts)
        assert any(map(failed, outputs))
        for output, tokens in zip(outputs, right, strict=True):
            assert failed(output) or tokens_of(output)[: len(tokens)] == tokens


def test_vllm_and_document_cache_use_each_others_entries(tmp_path, lm):
    cache = DocumentCache(memory=None, folder=tmp_path, portable=True)
    cached = DebiasedLM(lm.model, lm.tokenizer, method="pcw", cache=cache)
    mine, others = random_prompts(4, seed="mine"), random_prompts(4, seed="others")

    def answers(model, prompts):
        return [model.generate(prompt, max_new_tokens=8).token_ids for prompt in prompts]

    def tokenised(prompts):
        return [tokenise(prompt, lm.tokenizer) for prompt in prompts]

    assert answers(cached, mine) == answers(lm, mine)
    with engine(tmp_path, connector={"portable": True}) as llm:
        check(llm.answer(tokenised(mine)), answers(lm, mine))
        assert llm.counter("vllm:ragbias_stored_entries") == 0
        loaded = llm.counter("vllm:ragbias_loaded_tokens")
        llm.store(tokenised(others))
        new = llm.counter("vllm:ragbias_stored_entries")  # without the prefix, which is loaded for each document
        assert llm.counter("vllm:ragbias_loaded_tokens") - loaded == new * len(tokenised(others)[0].prefix) > 0
        check(llm.answer(tokenised(others)), answers(lm, others))
    computed = cache.stats().misses
    assert answers(cached, others) == answers(lm, others)
    assert cache.stats().misses == computed
