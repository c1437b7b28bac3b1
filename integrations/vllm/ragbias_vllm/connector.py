"""The KV connector: it loads stored documents into vLLM's cache, and vLLM computes the rest of the prompt.

vLLM creates two connectors. The one in the scheduler plans loads and saves, and the one in the worker runs them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import takewhile
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from vllm.config import VllmConfig
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorMetadata, KVConnectorRole
from vllm.logger import init_logger
from vllm.model_executor.models.utils import extract_layer_index

from ragbias.cache import DocumentCache, States
from ragbias.errors import ArgumentError, UnsupportedModelError
from ragbias_vllm.engine_model import (
    check_supported,
    engine_identity,
    load_encodings,
    portable_identity,
    spare_slots,
)
from ragbias_vllm.metrics import REFUSAL, Counts, PrometheusCounts
from ragbias_vllm.paged_cache import PagedLayer
from ragbias_vllm.plans import Part, Plan, RefusedError, parts_of, plan_of

if TYPE_CHECKING:
    from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorStats
    from vllm.forward_context import ForwardContext
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request

logger = init_logger(__name__)


@dataclass
class Load:
    """A task of the worker: write stored parts of a prompt into the request's blocks of vLLM's cache."""

    request: str  # id, for messages
    parts: list[Part]  # adjacent parts of the prompt
    first: int  # index of the first token to write; earlier ones are in vLLM's prefix cache
    blocks: list[int]  # ids of all blocks of the request
    refusal: str = ""  # reason why the request must fail, or empty


@dataclass
class Save:
    """A task of the worker: read parts of a prompt from the request's blocks, and store them."""

    parts: list[Part]
    blocks: list[int]
    reused: int  # number of first tokens that vLLM did not compute; their blocks may be those of a failed load


@dataclass
class Step(KVConnectorMetadata):
    """The loads and saves that the worker runs in one step of the engine."""

    loads: list[Load] = field(default_factory=list)
    saves: list[Save] = field(default_factory=list)


@dataclass
class TrackedRequest:
    """A request in the scheduler that loads or stores documents.

    Attributes:
        parts: the prefix, unless it is empty, and the documents.
        refusal: reason why the request must fail, or None.
        load_end: index after the last token to load. It is the end of the documents. With ``plan.store``, it is the
            end of the last part that is already stored.
        reused: number of tokens at the start of the prompt that vLLM does not compute, because they are loaded or in
            vLLM's prefix cache. Each allocation of blocks updates the number.
        loaded: minimum of ``reused`` over all allocations, but at most the tokens of prefix and documents. vLLM never
            computed these tokens.
        saved: whether the worker has the task to save the parts.
    """

    request: Request
    plan: Plan
    parts: list[Part]
    refusal: RefusedError | None = None
    load_end: int = 0
    reused: int = 0
    loaded: int = 0
    saved: bool = False


class RagBiasConnector(KVConnectorBase_V1):
    """Store documents that vLLM computes, and load stored documents into other prompts.

    ``kv_connector_extra_config`` contains arguments of ``ragbias.DocumentCache``: ``folder``, which is required, and
    ``disk``, ``memory`` and ``portable``. With ``portable``, ``DocumentCache(portable=True)`` can load the entries.
    """

    def __init__(self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        check_supported(vllm_config, kv_cache_config)
        settings = dict(self._kv_transfer_config.kv_connector_extra_config)
        if "folder" not in settings or not settings.keys() <= {"folder", "disk", "memory", "portable"}:
            expected = "expected folder, and optionally disk, memory and portable"
            raise ArgumentError(f"kv_connector_extra_config={settings}; {expected}")
        self._counts = Counts()
        self._folder = DocumentCache(memory=None, folder=settings["folder"])  # shared by both processes
        if role == KVConnectorRole.SCHEDULER:
            compute_identity = portable_identity if settings.get("portable") else engine_identity
            self._identity = compute_identity(vllm_config)
            self._adapters: set[int] = set()
            self._max_adapters = spare_slots(vllm_config)
            self._tracked: dict[str, TrackedRequest] = {}
            self._loads: list[Load] = []
        else:
            self._cache = DocumentCache(**settings)
            self._encodings = load_encodings(vllm_config)
            self._layers: list[PagedLayer] = []
            self._failed: set[int] = set()
            self._failed_before: set[int] = set()
            self._layout: Tensor | None = None

    @property
    def requires_kv_delivery(self) -> bool:
        return True  # otherwise vLLM may return a token of a request before its load fails

    # scheduler

    def on_new_request(self, request: Request) -> None:
        if request.lora_request is not None:
            self._adapters.add(request.lora_request.lora_int_id)
        params = (request.kv_transfer_params or {}).get("ragbias")
        if params is None:
            return
        tokens = request.prompt_token_ids or []
        try:
            plan = plan_of(params, len(tokens))
            self._check(request, plan)
        except RefusedError as error:
            logger.warning("ragbias refuses request %s: %.200s", request.request_id, error)
            self._tracked[request.request_id] = TrackedRequest(request, Plan(False, "", (), ""), [], error)
            if len(tokens) == 1:  # a load must leave one token to compute
                request.prompt_token_ids = tokens * 2
                request.num_prompt_tokens = 2
                request._all_token_ids.append(tokens[0])
            request.skip_reading_prefix_cache = True  # leaves a token for the load that fails
            request.cache_salt = request.request_id  # other requests must not share the blocks that fail
            request.block_hashes.clear()
            request.update_block_hashes()
            return
        parts = parts_of(self._identity, plan, tokens)
        load_end = plan.end
        if plan.store:
            stored = takewhile(lambda part: part.key in self._folder, parts)
            load_end = max((part.end for part in stored), default=0)
        self._tracked[request.request_id] = TrackedRequest(request, plan, parts, load_end=load_end, loaded=plan.end)

    def _check(self, request: Request, plan: Plan) -> None:
        """Raise ``RefusedError`` if the answer to the request could be wrong."""
        if request.cache_salt != plan.cache_salt(request.prompt_token_ids or []):
            raise RefusedError("salt", "cache_salt does not match the method, the lengths and the scope")
        if plan.store and request.lora_request is not None:
            raise RefusedError("lora", "documents must be computed without a LoRA, because all requests share them")
        if request.skip_reading_prefix_cache:
            raise RefusedError(
                "prompt_logprobs", "log-probabilities of the prompt need a prompt without loaded documents"
            )
        if self._max_adapters is not None and len(self._adapters) > self._max_adapters:
            raise RefusedError(
                "lora_slots", f"{len(self._adapters)} adapters were used; start vLLM with a larger max_loras"
            )
        if request.mm_features:
            raise RefusedError("malformed", "only text can be loaded")

    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> tuple[int, bool]:
        tracked = self._tracked.get(request.request_id)
        if tracked is None:
            return 0, False
        if tracked.refusal:
            request.skip_reading_prefix_cache = False  # otherwise vLLM would ignore the load
            return 1, False
        tracked.reused = num_computed_tokens
        return max(tracked.load_end - num_computed_tokens, 0), False

    def update_state_after_alloc(self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int) -> None:
        tracked = self._tracked.get(request.request_id)
        if tracked is None:
            return
        tracked.reused += num_external_tokens
        tracked.loaded = min(tracked.loaded, tracked.reused)
        if num_external_tokens == 0:
            return
        ids = blocks.get_block_ids()[0]
        if tracked.refusal:
            failing = [Part("", 0, 1, 0)]
            self._loads.append(Load(request.request_id, failing, 0, ids, tracked.refusal.reason))
            return
        first = tracked.load_end - num_external_tokens
        parts = [part for part in tracked.parts if first < part.end <= tracked.load_end]
        self._loads.append(Load(request.request_id, parts, first, ids))

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> Step:
        step, self._loads = Step(self._loads), []
        for request, count in scheduler_output.num_scheduled_tokens.items():
            tracked = self._tracked.get(request)
            if tracked is None or tracked.refusal or tracked.saved:
                continue
            if tracked.load_end == tracked.plan.end:  # nothing to store
                continue
            if tracked.request.num_computed_tokens + count >= tracked.plan.end:
                (blocks,) = scheduler_output.kv_connector_block_state.resolve_block_ids(request)
                step.saves.append(Save(tracked.parts, list(blocks), tracked.reused))
                tracked.saved = True
        return step

    def update_connector_output(self, connector_output: KVConnectorOutput) -> None:
        """If blocks failed to load, remove them from vLLM's prefix cache, even if the request was aborted."""
        if failed := connector_output.invalid_block_ids:
            self._kv_cache_manager.evict_blocks(failed)

    def request_finished(self, request: Request, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        tracked = self._tracked.pop(request.request_id, None)
        if tracked is None or tracked.refusal:
            return False, None
        if not tracked.plan.store:
            return False, {"ragbias": {"loaded": tracked.loaded}}
        available = all(part.key in self._folder for part in tracked.parts)
        return False, {"ragbias": {"stored": tracked.saved and available, "available": available}}

    # worker

    def register_kv_caches(self, kv_caches: dict[str, Tensor]) -> None:
        layers = self._vllm_config.compilation_config.static_forward_context
        names = sorted(kv_caches, key=extract_layer_index)
        self._layers = [PagedLayer(layers[name], kv_caches[name]) for name in names]
        sizes = {layer.block_size for layer in self._layers}
        if len(names) != len(self._encodings) or sizes != {self._vllm_config.cache_config.block_size}:
            raise UnsupportedModelError(
                f"RagBiasConnector: {len(names)} caches with blocks of {sizes} tokens do not fit "
                f"{len(self._encodings)} layers with blocks of {self._vllm_config.cache_config.block_size}"
            )

    @torch.inference_mode()
    def start_load_kv(self, forward_context: ForwardContext, **kwargs: Any) -> None:
        step = self._get_connector_metadata()
        assert isinstance(step, Step)
        for load in step.loads:
            self._load(load)

    def _load(self, load: Load) -> None:
        """Write entries into a request's blocks. If an entry is missing, report the blocks as failed."""
        size = self._layers[0].block_size
        end = load.parts[-1].end
        blocks = load.blocks[load.first // size : -(-end // size)]
        try:
            if load.refusal:
                raise RefusedError(load.refusal, "the scheduler refused it")
            entries = self._read_entries(load.parts)
        except RefusedError as error:
            self._failed.update(blocks)
            self._counts.add(**{REFUSAL + error.reason: 1})
            logger.warning("ragbias fails request %s: %s", load.request, error)
            return
        skipped = load.first - load.parts[0].begin  # tokens of the first part
        index = torch.arange(load.first, end)
        slots = torch.tensor(load.blocks)[index // size] * size + index % size
        offsets = [torch.arange(part.end - part.begin) + part.start for part in load.parts]
        positions = torch.cat(offsets)[skipped:]
        for number, (layer, encoding) in enumerate(zip(self._layers, self._encodings, strict=True)):
            keys = torch.cat([entry.keys[number] for entry in entries], 1)[:, skipped:].to(layer.cache.device)
            values = torch.cat([entry.values[number] for entry in entries], 1)[:, skipped:]
            layer.write(encoding(keys, positions.to(keys.device)), values, slots)
        self._failed_before.difference_update(blocks)
        n_bytes = sum(entry.nbytes for entry in entries)
        self._counts.add(loaded_entries=len(entries), loaded_tokens=len(slots), loaded_bytes=n_bytes)

    def _read_entries(self, parts: list[Part]) -> list[States]:
        """Return the entries of all parts. Raise ``RefusedError`` if one is missing or damaged."""
        shapes = [(layer.heads, layer.head_dim) for layer in self._layers]
        entries = {
            part.key: self._cache.get(part.key, [(heads, part.end - part.begin, dim) for heads, dim in shapes])
            for part in parts
        }
        if missing := [key for key, entry in entries.items() if entry is None]:
            raise RefusedError("missing", f"{len(missing)} entries are missing or damaged, such as {missing[0]}")
        return [entry for part in parts if (entry := entries[part.key])]

    @torch.inference_mode()
    def wait_for_save(self) -> None:
        step = self._get_connector_metadata()
        assert isinstance(step, Step)
        # with asynchronous scheduling, this step may share blocks whose load failed in the previous step
        failed, self._failed_before = self._failed | self._failed_before, set(self._failed)
        for save in step.saves:
            reused_blocks = save.blocks[: -(-save.reused // self._layers[0].block_size)]
            if failed.isdisjoint(reused_blocks):
                self._save(save)

    def _save(self, save: Save) -> None:
        if self._layout is None:
            self._layout = self._layers[0].layout()
        for part in save.parts:
            if part.key in self._folder:
                continue
            positions = torch.arange(part.begin, part.end)
            keys = []
            values = []
            for layer, encoding in zip(self._layers, self._encodings, strict=True):
                encoded, value = layer.read(torch.tensor(save.blocks), part.begin, part.end, self._layout)
                keys.append(encoding.remove(encoded, positions))
                values.append(value.contiguous())
            states = States(tuple(keys), tuple(values))
            self._cache.put(part.key, states)
            self._counts.add(stored_entries=1, stored_bytes=states.nbytes)

    def get_block_ids_with_load_errors(self) -> set[int]:
        failed, self._failed = self._failed, set()
        return failed

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Do nothing, because ``start_load_kv`` has loaded all layers."""

    def save_kv_layer(self, layer_name: str, kv_layer: Tensor, attn_metadata: Any, **kwargs: Any) -> None:
        """Do nothing, because CUDA graphs skip this call. ``wait_for_save`` reads all layers instead."""

    def get_kv_connector_stats(self) -> KVConnectorStats | None:
        counts, self._counts = self._counts, Counts()
        return None if counts.is_empty() else counts

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> KVConnectorStats:
        return Counts(data=data or {})

    @classmethod
    def build_prom_metrics(cls, *arguments: Any) -> PrometheusCounts:
        return PrometheusCounts(*arguments)
