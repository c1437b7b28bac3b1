"""Compute the documents of a prompt together, for methods such as rotor, in which documents attend to each other."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from transformers import PreTrainedModel

from ragbias.cache import DocumentCache, identity_of
from ragbias.generation import compute_jointly
from ragbias.serving import ApiError
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
        """Compute and store missing parts, or raise ``ApiError``. The result 0 means: vLLM computed no part."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._store, plan, ids)

    def close(self) -> None:
        """Drop waiting prompts, and finish the prompt that is being computed."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _store(self, plan: Plan, ids: Sequence[int]) -> int:
        missing = self.missing(plan, ids)
        if not missing:
            return 0
        spans = [(part.begin, part.end) for part in missing]
        states = compute_jointly(self._model, method_of(plan.method), ids[: plan.end], plan.spans, spans)
        for part, computed in zip(missing, states, strict=True):
            self._cache.put(part.key, computed)
        if self.missing(plan, ids):
            raise ApiError(503, STORE_FULL, None, "store_unavailable", retry_after=5)
        return 0
