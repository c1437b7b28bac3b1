"""Soak test of vLLM with the connector of ragbias-vllm, in vLLM's environment.

    .venv-vllm/bin/python -m studies.vllm_soak --model tiny

The study sends rounds of concurrent requests, each with documents from a pool in a new order. Some documents are new,
so that the folder fills and entries are evicted. The study checks that requests with the same question and documents
get the same answer. It prints the memory of each process, vLLM's blocks in use, and the counters of the connector.

The worker's memory is flat once its entries fill the limit ``memory``. The settings in ``ENVIRONMENT`` limit other
growth: by default, oneDNN caches 1,024 compiled matrix products, and the allocator caches freed blocks of tensors.
"""

from __future__ import annotations

import json
import os
import random
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ragbias.models import local_path
from ragbias.prompt import TokenisedPrompt
from ragbias_vllm.plans import Plan
from studies import arguments_of

WORDS = ["red", "blue", "old", "hall", "tower", "bridge", "lies", "near", "falcon", "7", "19"]
NEW = 0.05  # share of requests that have a new document
BLOCKS = 64  # few blocks in vLLM's cache, so that all are soon in use and its memory stays constant
ENVIRONMENT = {
    "MALLOC_MMAP_THRESHOLD_": "131072",
    "MALLOC_TRIM_THRESHOLD_": "131072",
    "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "8",
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GB; the default is a share of the machine
}
ATTEMPTS = 3  # attempts for a request whose documents were evicted


class Soak:
    """An engine, and requests to it.

    Args:
        model: name or folder.
        folder: folder of stored documents.
        disk: maximum size of the folder, such as 1GB.
        seed: seed of documents and orders.
    """

    def __init__(self, model: str, folder: Path, disk: str, seed: int) -> None:
        os.environ |= {**ENVIRONMENT, **os.environ}
        from vllm import LLM

        transfer = {
            "kv_connector": "RagBiasConnector",
            "kv_connector_module_path": "ragbias_vllm",
            "kv_role": "kv_both",
            "kv_connector_extra_config": {"folder": str(folder), "disk": disk, "memory": "15MB"},
        }
        options: dict[str, Any] = {"dtype": "float32", "enforce_eager": True, "disable_log_stats": False}
        options["num_gpu_blocks_override"] = BLOCKS
        self.llm = LLM(local_path(model), max_model_len=1024, kv_transfer_config=transfer, **options)
        self.draw, self.first = random.Random(seed), dict[str, list[int]]()
        self.tokenizer = self.llm.get_tokenizer()
        self.retried = self.stored = 0
        self.documents = [self.document() for _ in range(60)]
        self.kinds = [(self.draw.sample(range(60), 5), self.words(8)) for _ in range(100)]

    def ids(self, text: str) -> list[int]:
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def words(self, count: int) -> str:
        return " ".join(self.draw.choice(WORDS) for _ in range(count))

    def document(self) -> list[int]:
        return self.ids(self.words(self.draw.randint(10, 60)) + "\n\n")

    def prompt(self) -> tuple[str, TokenisedPrompt]:
        """Return a prompt with documents in random order, and the name of its set of documents."""
        number = self.draw.randrange(len(self.kinds))
        chosen, question = self.kinds[number]
        documents = [self.documents[index] for index in self.draw.sample(chosen, len(chosen))]
        if self.draw.random() < NEW:
            return f"new {self.draw.random()}", TokenisedPrompt(
                self.ids("Notes:\n"), [*documents, self.document()], [5, 6]
            )
        return str(number), TokenisedPrompt(self.ids("Notes:\n"), documents, self.ids(question))

    def run(self, requests: Sequence[tuple[Plan, list[int]]], tokens: int) -> list[Any]:
        from vllm import SamplingParams

        prompts, settings = [], []
        for plan, ids in requests:
            fields = {"store": plan.store, "method": plan.method, "lengths": list(plan.lengths), "scope": plan.scope}
            prompts.append({"prompt_token_ids": ids, "cache_salt": plan.cache_salt(ids)})
            extra = {"kv_transfer_params": {"ragbias": fields}}
            settings.append(SamplingParams(max_tokens=tokens, temperature=0, ignore_eos=True, extra_args=extra))
        return list(self.llm.generate(prompts, settings, use_tqdm=False))

    def round(self, count: int, tokens: int) -> int:
        """Answer ``count`` prompts together, as a proxy does. Return how many answers differ from earlier rounds."""
        waiting, different = [self.prompt() for _ in range(count)], 0
        for _ in range(ATTEMPTS):
            plans = [Plan(False, "pcw", (len(p.prefix), *map(len, p.documents)), "") for _, p in waiting]
            outputs = self.run([(plan, prompt.ids) for plan, (_, prompt) in zip(plans, waiting, strict=True)], tokens)
            lost = []
            for (kind, prompt), output in zip(waiting, outputs, strict=True):
                if output.outputs[0].finish_reason == "error":
                    lost.append((kind, prompt))
                else:
                    answer = list(output.outputs[0].token_ids)
                    different += self.first.setdefault(kind, answer) != answer
            if not lost:
                return different
            parts = {(tuple(p.prefix), tuple(document)) for _, p in lost for document in p.documents}
            stores = [(Plan(True, "", (len(a), len(b)), ""), [*a, *b, b[-1]]) for a, b in parts]
            self.retried, self.stored, waiting = self.retried + len(lost), self.stored + len(stores), lost
            self.run(stores, 1)
        raise RuntimeError(f"{len(waiting)} requests found no documents in {ATTEMPTS} attempts")

    def state(self) -> dict[str, Any]:
        """Return the memory of each process in MB, vLLM's blocks in use, and the connector's counters."""
        import psutil

        process = psutil.Process()
        sizes = Counter[str]()
        for each in [process, *process.children(recursive=True)]:
            sizes[each.name()] += each.memory_info().rss // 10**6
        values = {metric.name: metric.value for metric in self.llm.get_metrics() if hasattr(metric, "value")}
        named = {name.removeprefix("vllm:"): value for name, value in values.items() if "ragbias" in name}
        return {"mb": sizes, "blocks_in_use": values["vllm:kv_cache_usage_perc"], **named}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = arguments_of(__doc__)
    parser.add_argument("--model", required=True, help="name or folder of the model")
    parser.add_argument("--requests", type=int, default=2000, help="number of answers")
    parser.add_argument("--together", type=int, default=20, help="requests at the same time")
    parser.add_argument("--tokens", type=int, default=16, help="tokens of an answer")
    parser.add_argument("--disk", default="5MB", help="maximum size of the folder")
    parser.add_argument("--seed", type=int, default=0, help="seed of documents and orders")
    parsed = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        soak = Soak(parsed.model, Path(folder), parsed.disk, parsed.seed)
        begin, different, rounds = time.monotonic(), 0, parsed.requests // parsed.together
        for number in range(1, rounds + 1):
            different += soak.round(parsed.together, parsed.tokens)
            if number in (1, rounds) or number % max(1, rounds // 10) == 0:
                found = {"answers": number * parsed.together, "different": different, "retried": soak.retried}
                print(json.dumps({**found, "seconds": round(time.monotonic() - begin), **soak.state()}), flush=True)
        soak.llm.llm_engine.engine_core.shutdown()
    raise SystemExit(different > 0)


if __name__ == "__main__":
    main()
