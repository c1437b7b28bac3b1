"""Compute the documents of a prompt together, for a method in which documents see each other."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
from transformers import DynamicCache

from ragbias.binding.binding import Binding
from ragbias.binding.hooks import hooked
from ragbias.cache import DocumentCache
from ragbias.cache.identity import identity_of
from ragbias.cache.stores import States
from ragbias.generation.decoding import memory_errors
from ragbias.lm import DebiasedLM
from ragbias_vllm.plans import Plan, method_of, parts_of


class JointDocuments:
    """Compute documents with the model's weights, and store them in the folder of vLLM's connector.

    Args:
        cache: a portable cache in that folder.
    """

    def __init__(self, lm: DebiasedLM, cache: DocumentCache) -> None:
        self._model, self._cache = lm.model, cache
        self._identity = identity_of(lm.model, "", portable=True)
        self._thread = ThreadPoolExecutor(1)  # one prompt at a time

    async def store(self, plan: Plan, ids: Sequence[int]) -> int:
        """Store prefix and documents of a prompt. Return the number of tokens that were stored before."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._store, plan, ids)

    def close(self) -> None:
        """Drop waiting prompts. A prompt that is being computed is finished."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _store(self, plan: Plan, ids: Sequence[int]) -> int:
        parts = parts_of(self._identity, plan, ids)
        missing = [part for part in parts if part.key not in self._cache]
        if missing:
            cache = self._computed(plan, ids)
        for part in missing:
            keys, values = (
                tuple(getattr(layer, name)[0, :, part.begin : part.end].to("cpu", copy=True) for layer in cache.layers)
                for name in ("keys", "values")
            )
            self._cache.put(part.key, States(keys, values))
        return plan.end - sum(part.end - part.begin for part in missing)

    @torch.inference_mode()
    def _computed(self, plan: Plan, ids: Sequence[int]) -> DynamicCache:
        """Return a cache with the keys, without positions, and values of prefix, documents and one more token."""
        binding = Binding(self._model, method_of(plan.method), [plan.spans], private=True)
        cache, tokens = DynamicCache(), torch.tensor([ids[: plan.end + 1]], device=self._model.device)
        with memory_errors([plan.end], self._model.device), hooked(binding):
            self._model(tokens, past_key_values=cache, use_cache=True, logits_to_keep=1)
        return cache
