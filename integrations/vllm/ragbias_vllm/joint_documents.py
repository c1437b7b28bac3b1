"""Compute the documents of a prompt together, for methods such as rotor, in which documents attend to each other."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
from transformers import DynamicCache, PreTrainedModel

from ragbias.binding.binding import Binding
from ragbias.binding.hooks import hooked
from ragbias.cache import DocumentCache
from ragbias.cache.identity import identity_of
from ragbias.generation.attaching import copy_states
from ragbias.generation.decoding import memory_errors
from ragbias.models.kv_cache import KV_CACHE
from ragbias.serving.errors import ApiError
from ragbias_vllm.plans import Part, Plan, method_of, parts_of

STORE_FULL = "the proxy cannot store documents: its folder is not writable, or --cache-disk is too small; see its log"


class JointDocuments:
    """Compute documents in this process, and store them for vLLM's connector.

    ``cache`` is a portable cache in the connector's folder.
    """

    def __init__(self, model: PreTrainedModel, cache: DocumentCache) -> None:
        self._model, self._cache = model, cache
        self._identity = identity_of(model, "", portable=True)
        self._thread = ThreadPoolExecutor(1, "ragbias-joint")  # computes one prompt at a time

    def missing(self, plan: Plan, ids: Sequence[int]) -> list[Part]:
        """Return the parts of the plan that are not stored. ``ids`` are the token ids of prefix and documents."""
        return [part for part in parts_of(self._identity, plan, ids) if part.key not in self._cache]

    async def store(self, plan: Plan, ids: Sequence[int]) -> int:
        """Compute and store missing parts, or raise ``ApiError``. Return 0, because vLLM computed no part."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._store, plan, ids)

    def close(self) -> None:
        """Drop waiting prompts, and finish the prompt that is being computed."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _store(self, plan: Plan, ids: Sequence[int]) -> int:
        if not (missing := self.missing(plan, ids)):
            return 0
        cache = self._compute(plan, ids)
        for part in missing:
            self._cache.put(part.key, copy_states(cache, part.begin, part.end))
        if self.missing(plan, ids):
            raise ApiError(503, STORE_FULL, None, "store_unavailable", retry_after=5)
        return 0

    @torch.inference_mode()
    def _compute(self, plan: Plan, ids: Sequence[int]) -> DynamicCache:
        """Return keys and values of prefix, documents and one more token. Keys have no position encoding."""
        binding = Binding(self._model, method_of(plan.method), [plan.spans], private=True)
        cache, prompt = DynamicCache(), [*ids[: plan.end], ids[plan.end - 1]]
        tokens = torch.tensor([prompt], device=self._model.device)
        with memory_errors([plan.end], self._model.device), hooked(binding):
            self._model(tokens, use_cache=True, logits_to_keep=1, **{KV_CACHE: cache})
        return cache
