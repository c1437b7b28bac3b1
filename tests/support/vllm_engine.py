"""A vLLM engine with the connector in separate processes, and random prompts for it."""

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ragbias import Prompt
from ragbias.models import local_path
from ragbias.prompt import TokenisedPrompt
from ragbias_vllm.plans import Plan

SUBJECTS = ["falcon", "heron", "otter", "copper hall", "station", "library", "bridge", "observatory", "harbour", "mill"]
FACTS = ["was built in {n}", "is guarded by {n} owls", "keeps {n} books", "lies {n} miles north", "opened at {n}"]


def random_prompts(count: int, seed: int = 0, most: int = 5, fewest: int = 2) -> list[Prompt]:
    """Prompts with documents of different lengths. Some documents occur in several prompts."""
    draw = random.Random(seed)

    def document() -> str:
        facts = [draw.choice(FACTS).format(n=draw.randrange(2000)) for _ in range(draw.randint(1, 6))]
        return " ".join(f"The {draw.choice(SUBJECTS)} {fact}." for fact in facts) + "\n\n"

    pool = [document() for _ in range(count)]
    return [
        Prompt(
            "Answer from these notes.\n\n",
            [draw.choice([draw.choice(pool), document()]) for _ in range(draw.randint(fewest, most))],
            f"Question: what is known about the {draw.choice(SUBJECTS)}?\nAnswer:",
        )
        for _ in range(count)
    ]


def orders(prompt: TokenisedPrompt, count: int, seed: int = 0) -> list[TokenisedPrompt]:
    """The prompt with its documents in ``count`` random orders."""
    draw, indices = random.Random(seed), range(len(prompt.documents))
    return [prompt.reordered(draw.sample(indices, len(indices))) for _ in range(count)]


class Engine:
    """vLLM with the connector, which stores documents in ``folder``."""

    def __init__(self, llm: Any, folder: Path) -> None:
        self.llm, self.folder = llm, folder

    def run(
        self,
        requests: Sequence[tuple[Plan | None, list[int]]],
        tokens: int,
        lora: Any = None,
        salt: str | None = None,
        **sampling: Any,
    ) -> list[Any]:
        """Run requests together and return vLLM's outputs. A request without a plan is not for the connector.

        ``lora`` is one adapter, or one per request. ``salt`` replaces the right salt.
        """
        from vllm import SamplingParams

        prompts, settings = [], []
        for plan, ids in requests:
            params: dict[str, Any] = {}
            prompts.append({"prompt_token_ids": ids})
            if plan is not None:
                params = {"store": plan.store, "method": plan.method, "lengths": [*plan.lengths], "scope": plan.scope}
                params = {"extra_args": {"kv_transfer_params": {"ragbias": params}}}
                prompts[-1]["cache_salt"] = plan.cache_salt(ids) if salt is None else salt
            settings.append(SamplingParams(max_tokens=tokens, temperature=0, logprobs=0, **params, **sampling))
        return self.llm.generate(prompts, settings, lora_request=lora, use_tqdm=False)

    def counter(self, name: str) -> float:
        """The sum of a counter of ``/metrics`` over its labels."""
        return sum(metric.value for metric in self.llm.get_metrics() if metric.name == name)

    def store(self, prompts: Sequence[TokenisedPrompt], scope: str = "", **options: Any) -> list[Any]:
        """Store each document of the prompts once, all together."""
        parts = {(tuple(prompt.prefix), tuple(document)) for prompt in prompts for document in prompt.documents}
        plans = [
            (Plan(True, "", (len(prefix), len(document)), scope), [*prefix, *document, document[-1]])
            for prefix, document in sorted(parts)
        ]
        return self.run(plans, 1, **options)

    def answer(
        self, prompts: Sequence[TokenisedPrompt], tokens: int = 8, method: str = "pcw", scope: str = "", **options: Any
    ) -> list[Any]:
        """Answer prompts whose documents are stored."""
        return self.run([(plan_of(prompt, method, scope), prompt.ids) for prompt in prompts], tokens, **options)


def plan_of(prompt: TokenisedPrompt, method: str = "pcw", scope: str = "") -> Plan:
    return Plan(False, method, (len(prompt.prefix), *map(len, prompt.documents)), scope)


def tokens_of(output: Any) -> list[int]:
    """Return an answer's tokens without the end token, as ``Generation.token_ids``. Raise for a failed request."""
    (answer,) = output.outputs
    assert answer.finish_reason in ("stop", "length")
    return list(answer.token_ids)


def logprobs_of(output: Any) -> list[float]:
    (answer,) = output.outputs
    return [step[token].logprob for step, token in zip(answer.logprobs, answer.token_ids, strict=True)]


def failed(output: Any) -> bool:
    return output.outputs[0].finish_reason == "error"


@contextmanager
def engine(
    folder: Path, model: str = "tiny", connector: dict[str, Any] | None = None, **settings: Any
) -> Iterator[Engine]:
    """Start an engine in float32 and stop it at the end."""
    from vllm import LLM

    transfer = {
        "kv_connector": "RagBiasConnector",
        "kv_connector_module_path": "ragbias_vllm",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"folder": str(folder), **(connector or {})},
    }
    fixed = {"dtype": "float32", "enforce_eager": True, "max_model_len": 2048, "kv_transfer_config": transfer}
    fixed["disable_log_stats"] = False  # counts metrics
    llm = LLM(local_path(model), **{**fixed, **settings})
    try:
        yield Engine(llm, folder)
    finally:
        llm.llm_engine.engine_core.shutdown()
