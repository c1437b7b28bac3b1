"""Attach a method for a batch of prompts. Reuse documents: load their keys and values, and run only the other tokens.

For a method with reusable documents, the keys and values of a document depend only on the prefix and the document. Each
document is computed in a separate forward pass after its prefix. Therefore its states are bit-identical in every
prompt, order and batch, with or without a ``DocumentCache``.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import Module
from torch.nn.functional import pad
from transformers import DynamicCache, PreTrainedModel, PreTrainedTokenizerBase

from ragbias.attention import attend
from ragbias.binding.architectures import (
    KV_CACHE,
    has_fixed_encodings,
    head_dim,
    structure_of,
)
from ragbias.binding.binding import Binding, PlainBinding
from ragbias.binding.hooks import attached, backend_of, create_binding
from ragbias.cache import DocumentCache
from ragbias.cache.identity import identity_of, key_of
from ragbias.cache.stores import States
from ragbias.checks import check_not_cancelled
from ragbias.generation.decoding import memory_errors
from ragbias.generation.request import check_length
from ragbias.methods import METHODS, AttentionMethod, JointMethod, Method, NoMethod, SequenceCall, SequenceLayout
from ragbias.prompt import Span, TokenisedPrompt
from ragbias.readers import Lora, apply_reader, reader_of


class LoadedModel(NamedTuple):
    """A model and its tokenizer, with the attention backend and the document cache to use, see ``DebiasedLM``."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    backend: str
    cache: DocumentCache | None


def warn_if_unused(cache: DocumentCache, method: Method) -> None:
    """If the method's documents are not reusable, warn that the cache has no effect."""
    if not method.reusable_documents:
        reusable = ", ".join(sorted(name for name, cls in METHODS.items() if cls.reusable_documents))
        reason = f"the states of a document depend on other documents or on its position; use one of {reusable}"
        cache.warn_unused(method.name, reason)


class PreparedCache(NamedTuple):
    """The initial cache of a generation, or None, and the number of cached tokens of each prompt."""

    cache: DynamicCache | None
    reused: Sequence[int]


@contextmanager
def attached_batch(
    loaded: LoadedModel,
    method: Method,
    prompts: Sequence[TokenisedPrompt],
    spans: list[list[Span]],
    cancelled: threading.Event | None = None,
    lora: Lora | None = None,
) -> Iterator[PreparedCache]:
    """Attach a method for a batch of left-padded prompts, and yield the cache from which generation starts.

    ``spans`` are the documents' columns in the padded batch. During training, ``lora`` replaces the method's reader.
    """
    model, cache = loaded.model, loaded.cache
    if lora is None and method.reader:
        lora = reader_of(model, method)
    after = [columns[-1][1] if columns else sys.maxsize for columns in spans]  # without documents, no reader acts
    reader = nullcontext() if lora is None else apply_reader(model, lora, after)
    with memory_errors([len(prompt.ids) for prompt in prompts], model.device):
        binding: PlainBinding
        filled: DynamicCache | None = None
        reused = [0] * len(prompts)
        if computes_documents_separately(model, method, prompts):
            binding, filled, reused = start_from_states(loaded, method, prompts, cancelled, lora)
        else:
            if cache is not None and method.reusable_documents:
                cache.warn_unused(
                    method.name,
                    "the prompt is longer than the model's rotary frequencies allow, or has no text before or after "
                    "its documents",
                )
            rule = NoMethod() if isinstance(method, JointMethod) else method
            binding = create_binding(model, rule, spans, private=True, backend=loaded.backend)
        with attached(binding), reader:
            yield PreparedCache(filled, reused)


def computes_documents_separately(model: PreTrainedModel, method: Method, prompts: Sequence[TokenisedPrompt]) -> bool:
    """Whether each document runs in a separate pass. Rotary frequencies that depend on the length prevent this."""
    if not method.reusable_documents or not all(p.suffix and (p.prefix or p.documents) for p in prompts):
        return False
    return has_fixed_encodings(model, max(len(prompt.ids) for prompt in prompts))


class DocumentPass(AttentionMethod):
    """Run the plain model on a prefix and one document. The cached keys have no position encoding."""

    name = "document-pass"

    def attend_sequence(self, seq: SequenceCall) -> tuple[Tensor, Tensor]:
        total, count = seq.key.shape[1], seq.query.shape[1]

        def at_positions(new: Tensor, first: int) -> Tensor:
            return seq.scoring.encoding(new, seq.arange(first, first + new.shape[1]))

        return attend(
            seq.query,
            seq.encoded("positions", at_positions),
            seq.value,
            positions=seq.arange(total - count, total),
            scoring=seq.scoring,
            segments=[(0, total)],
            causal=True,
        )


class DocumentStates:
    """Keys and values of prefixes and documents, cached or computed. If ``cancelled`` is set, computing stops."""

    def __init__(self, loaded: LoadedModel, cancelled: threading.Event | None = None) -> None:
        self._model = loaded.model
        self._cache = loaded.cache
        self._cancelled = cancelled
        self._backend = backend_of(loaded.model, loaded.backend)
        if self._cache is not None:
            self._identity = identity_of(self._model, self._backend, self._cache.portable)
            self._cache.register_model(self._identity)
        self._prefixes: dict[tuple[int, ...], States] = {}  # states by prefix tokens

    def get(self, prefix: Sequence[int], tokens: Sequence[int]) -> tuple[States, bool]:
        """Return the states of ``tokens`` after a prefix, and whether they were cached."""
        cached = None
        if self._cache is not None:
            key = key_of(self._identity, prefix, tokens, self._cache.salt)
            cached = self._cache.get(key, self._shapes(len(tokens)), self._dtypes())
        states = cached or self._compute(prefix, tokens)
        if self._cache is not None and cached is None:
            self._cache.put(key, states)
        if not prefix:
            self._prefixes[tuple(tokens)] = states
        return states, cached is not None

    def add_all(self, prompt: TokenisedPrompt, window: int, progress: Callable[[int], None]) -> int:
        """Add a prompt's documents to the cache, see ``DebiasedLM.warm``. Return the number of computed documents."""
        computed = 0
        for done, document in enumerate(prompt.documents, start=1):
            check_length(len(prompt.prefix) + len(document), window)
            assert self._cache is not None
            if key_of(self._identity, prompt.prefix, document, self._cache.salt) not in self._cache:
                computed += not self.get(prompt.prefix, document)[1]
            progress(done)
        return computed

    def _shapes(self, tokens: int) -> list[tuple[int, int, int]]:
        """Return the shape of the keys in each layer. The values have the same shape."""
        heads: int = self._model.config.get_text_config().num_attention_heads
        modules = structure_of(self._model).attention
        return [(heads // getattr(module, "num_key_value_groups", 1), tokens, head_dim(module)) for module in modules]

    def _dtypes(self) -> set[torch.dtype]:
        """Return the possible dtypes of keys and values: the model's dtype and, under autocast, autocast's dtype."""
        device = self._model.device.type
        dtypes = {self._model.dtype}
        if torch.is_autocast_enabled(device):
            dtypes.add(torch.get_autocast_dtype(device))
        return dtypes

    def _compute(self, prefix: Sequence[int], tokens: Sequence[int]) -> States:
        check_not_cancelled(self._cancelled)
        before = []
        if prefix:
            ids = tuple(prefix)
            before.append(self._prefixes.get(ids) or self.get((), ids)[0])
        binding = Binding(self._model, DocumentPass(), [], private=True, backend=self._backend)
        cache = cache_from_states(self._model, before)
        length = len(prefix) + len(tokens)
        run_tokens(binding, cache, SequenceLayout(0, length, (), ()), tokens)
        return copy_states(cache, len(prefix), length)


def start_from_states(
    loaded: LoadedModel,
    method: Method,
    prompts: Sequence[TokenisedPrompt],
    cancelled: threading.Event | None,
    lora: Lora | None,
) -> tuple[Binding, DynamicCache, list[int]]:
    """Return a binding, a cache with prefixes and documents, and the number of cached tokens of each prompt.

    In a batch, the same number of tokens must remain for each prompt. Therefore the cache also contains each suffix
    except its last token. This is not necessary for a ``JointMethod``, whose prompts share the suffix.
    """
    model = loaded.model
    states = DocumentStates(loaded, cancelled)
    rule = method if isinstance(method, AttentionMethod) else DocumentPass()
    same_suffix = len(prompts) == 1 or isinstance(method, JointMethod)
    width = max(len(prompt.ids) for prompt in prompts)
    layouts, caches, reused = [], [], []
    for prompt in prompts:
        length = len(prompt.ids)
        order = rule.document_order(prompt.documents)
        ordered = prompt.reordered(order)
        parts = [states.get((), ordered.prefix)] if ordered.prefix else []
        parts += [states.get(ordered.prefix, document) for document in ordered.documents]
        reused.append(sum(part.tokens for part, cached in parts if cached))
        cache = cache_from_states(model, [part for part, _ in parts])
        layout = SequenceLayout(0, length, (), ())
        if rule.needs_documents:
            layout = replace(layout, spans=tuple(ordered.spans), order=tuple(order))
        if not same_suffix and len(prompt.suffix) > 1:
            for_prompt = Binding(model, rule, [], private=True, backend=loaded.backend)
            with nullcontext() if lora is None else apply_reader(model, lora, [0]):
                run_tokens(for_prompt, cache, layout, prompt.suffix[:-1])
        caches.append(cache)
        layouts.append(replace(layout, pad=width - length))
    joined = caches[0] if len(prompts) == 1 else left_pad(caches)
    binding = Binding(model, rule, [], private=True, backend=loaded.backend)
    binding.resume(joined, layouts)
    return binding, joined, reused


@torch.no_grad()
def run_tokens(binding: Binding, cache: DynamicCache, layout: SequenceLayout, tokens: Sequence[int]) -> None:
    """Run tokens of one sequence after its cached tokens, and add them to the cache."""
    if cache.get_seq_length():
        binding.resume(cache, [layout])
    with attached(binding):
        ids = torch.tensor([tokens], device=binding.model.device)
        binding.model(ids, use_cache=True, logits_to_keep=1, **{KV_CACHE: cache})


@torch.inference_mode()
def compute_jointly(
    model: PreTrainedModel, method: AttentionMethod, ids: Sequence[int], documents: list[Span], parts: Sequence[Span]
) -> list[States]:
    """Run prefix and documents with a method that lets documents attend to each other. Return the states of ``parts``.

    ``ids`` are the tokens of prefix and documents. ``documents`` and ``parts`` are ranges of these tokens.
    """
    binding = Binding(model, method, [documents], private=True)
    cache = DynamicCache()
    tokens = torch.tensor([[*ids, ids[-1]]], device=model.device)  # a token must follow the documents
    with memory_errors([len(ids)], model.device), attached(binding):
        model(tokens, use_cache=True, logits_to_keep=1, **{KV_CACHE: cache})
    return [copy_states(cache, begin, end) for begin, end in parts]


def copy_states(cache: DynamicCache, begin: int, end: int) -> States:
    """Copy keys and values from a cache to the CPU, for tokens ``begin`` to ``end - 1`` of the first sequence."""
    layers: list[Any] = cache.layers
    keys = tuple(layer.keys[0, :, begin:end].to("cpu", copy=True) for layer in layers)
    values = tuple(layer.values[0, :, begin:end].to("cpu", copy=True) for layer in layers)
    return States(keys, values)


def cache_from_states(model: PreTrainedModel, parts: Sequence[States]) -> DynamicCache:
    """Create a cache that contains all states in order. Each cache layer is on the device of its model layer."""
    cache = DynamicCache()
    if parts:
        for layer, module in enumerate(structure_of(model).attention):
            device = _device_of(module)
            keys = torch.cat([part.keys[layer] for part in parts], dim=1)
            values = torch.cat([part.values[layer] for part in parts], dim=1)
            cache.update(keys.to(device)[None], values.to(device)[None], layer)
    return cache


def _device_of(module: Module) -> torch.device:
    """Return the device on which a module computes. Accelerate may keep the weights on another device."""
    for part in module.modules():
        hook = getattr(part, "_hf_hook", None)
        device = getattr(hook, "execution_device", None)
        if device is not None:
            return torch.device(device)
    return next(module.parameters()).device


def left_pad(caches: Sequence[DynamicCache]) -> DynamicCache:
    """Join caches into one batch, padded with zeros on the left."""
    width = max(cache.get_seq_length() for cache in caches)

    def join(states: list[Tensor]) -> Tensor:
        return torch.cat([pad(each, (0, 0, width - each.shape[2], 0)) for each in states])

    joined = DynamicCache()
    all_layers: list[list[Any]] = [cache.layers for cache in caches]
    for index, layers in enumerate(zip(*all_layers, strict=True)):
        keys = join([layer.keys for layer in layers])
        values = join([layer.values for layer in layers])
        joined.update(keys, values, index)
    return joined
