"""Prompts whose documents were computed before: their keys and values fill the cache, and only the rest runs.

Of a method with reusable documents, a document's keys and values depend on the prefix and the document alone. Each is
computed by itself after its prefix, in a pass of its own, so that it has the same bits in whatever prompt, order and
batch it comes, and whether it was kept or is computed anew.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import Module
from torch.nn.functional import pad
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer

from ragbias import attention
from ragbias.binding import attach, backend_of
from ragbias.binding.architectures import architecture_of, attention_modules, decoder_of
from ragbias.binding.binding import Binding
from ragbias.binding.hooks import attached
from ragbias.cache import DocumentCache
from ragbias.cache.identity import identity_of, key_of
from ragbias.cache.states import States
from ragbias.checks import check_not_cancelled
from ragbias.generation.memory import memory_told
from ragbias.methods import NoMethod
from ragbias.methods.base import AttentionMethod, JointMethod, Method
from ragbias.methods.call import SequenceCall, SequenceLayout
from ragbias.methods.registry import METHODS
from ragbias.prompt import Span, TokenisedPrompt

NOT_FOR_THIS_PROMPT = (
    "a prompt is longer than the model's rotary frequencies hold for, or has nothing before its documents or after them"
)


def warn_if_unused(cache: DocumentCache, method: Method) -> None:
    """Warn, once for a method without reusable documents, that its requests run as if there were no cache."""
    if not method.reusable_documents:
        reusable = ", ".join(sorted(name for name, each in METHODS.items() if each.reusable_documents))
        reason = f"the states of a document depend on the others or on its position; take one of {reusable}"
        cache.not_used(method.name, reason)


class Alone(AttentionMethod):
    """The plain model, whose keys are kept without positions: what a prefix, and a document after it, run with."""

    name = "alone"

    def attend_sequence(self, seq: SequenceCall, prefill: bool) -> tuple[Tensor, Tensor]:
        total, count = seq.key.shape[1], seq.query.shape[1]

        def at_positions(new: Tensor, first: int) -> Tensor:
            return seq.scoring.encoding(new, seq.arange(first, first + new.shape[1]))

        return attention.attend(
            seq.query,
            seq.encoded("positions", at_positions),
            seq.value,
            positions=seq.arange(total - count, total),
            scoring=seq.scoring,
            segments=[(0, total)],
            causal=True,
        )


class DocumentStates:
    """The states of prefixes and documents, kept or computed.

    Args:
        cache: where they are kept; None: nowhere.
        cancelled: set by another thread, it ends the work at the next document.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        backend: str,
        cache: DocumentCache | None,
        cancelled: threading.Event | None = None,
    ) -> None:
        self._model, self._cache, self._cancelled = model, cache, cancelled
        self._backend = backend_of(model, backend)
        if cache is not None:
            self._identity = identity_of(model, self._backend)
            cache.register(self._identity)
        self._prefixes: dict[tuple[int, ...], States] = {}  # by their tokens; documents are computed after them

    def of(self, prefix: Sequence[int], tokens: Sequence[int]) -> tuple[States, bool]:
        """The states of ``tokens`` after a prefix, and whether they were kept."""
        states, kept = self._found(prefix, tokens)
        if not prefix:
            self._prefixes[tuple(tokens)] = states
        return states, kept

    def _found(self, prefix: Sequence[int], tokens: Sequence[int]) -> tuple[States, bool]:
        if self._cache is None:
            return self._computed(prefix, tokens), False
        key = key_of(self._identity, prefix, tokens)
        kept = self._cache.get(key)
        if kept is not None:
            return kept, True
        computed = self._computed(prefix, tokens)
        self._cache.put(key, computed)
        return computed, False

    def keep(self, prefix: Sequence[int], tokens: Sequence[int]) -> bool:
        """Compute states unless they are kept already; returns whether they had to be."""
        if self._cache is not None and key_of(self._identity, prefix, tokens) in self._cache:
            return False
        return not self.of(prefix, tokens)[1]

    def _of_prefix(self, prefix: Sequence[int]) -> States:
        ids = tuple(prefix)
        return self._prefixes[ids] if ids in self._prefixes else self.of((), ids)[0]

    def _computed(self, prefix: Sequence[int], tokens: Sequence[int]) -> States:
        check_not_cancelled(self._cancelled)
        before, begin = [self._of_prefix(prefix)] if prefix else [], len(prefix)
        binding = Binding(self._model, Alone(), [], private=True, backend=self._backend)
        cache = cache_of(self._model, before)
        run(binding, cache, SequenceLayout(0, begin + len(tokens), (), ()), tokens)
        layers: list[DynamicLayer] = cache.layers  # type: ignore[assignment]  # as all of them here are
        keys, values = ([getattr(layer, part)[0, :, begin:] for layer in layers] for part in ("keys", "values"))
        return States(*(tuple(each.to("cpu", copy=True) for each in part) for part in (keys, values)))


@dataclass(frozen=True)
class Entered:
    """Prompts on their way into the model.

    Attributes:
        cache: holds all of each prompt but its last tokens; None: nothing has entered yet.
        reused: tokens of each prompt that were kept from an earlier request.
    """

    cache: DynamicCache | None
    reused: Sequence[int]

    @property
    def width(self) -> int:
        """Columns of the batch that have entered, padding counted."""
        return 0 if self.cache is None else int(self.cache.get_seq_length())


@contextmanager
def entering(
    model: PreTrainedModel,
    method: Method,
    prompts: Sequence[TokenisedPrompt],
    spans: list[list[Span]],
    backend: str,
    cache: DocumentCache | None = None,
    cancelled: threading.Event | None = None,
) -> Iterator[Entered]:
    """The model runs these prompts, a batch padded on the left, with a method until the context ends.

    Args:
        spans: the documents of each prompt in columns of the batch.
        cache: where documents are kept, for methods with reusable ones.
    """
    with memory_told([len(prompt.ids) for prompt in prompts], model.device):
        if not computes_apart(model, method, prompts):
            if cache is not None and method.reusable_documents:
                cache.not_used(method.name, NOT_FOR_THIS_PROMPT)
            rule = NoMethod() if isinstance(method, JointMethod) else method
            with attach(model, rule, spans, private=True, backend=backend):
                yield Entered(None, [0] * len(prompts))
            return
        states = DocumentStates(model, backend, cache, cancelled)
        binding, filled, reused = resumed(model, method, prompts, states, backend)
        with attached(binding):
            yield Entered(filled, reused)


def computes_apart(model: PreTrainedModel, method: Method, prompts: Sequence[TokenisedPrompt]) -> bool:
    """Whether documents are computed by themselves.

    They are for a method with reusable ones, on a model whose rotary frequencies do not depend on the prompt's length:
    dynamic ones do beyond the window of the first training.
    """
    if not method.reusable_documents or any(not (each.suffix and (each.prefix or each.documents)) for each in prompts):
        return False
    longest = max(len(prompt.ids) for prompt in prompts)
    architecture = architecture_of(model)
    decoder = decoder_of(model, architecture)
    return all(
        architecture.encoding_key(decoder, module, longest) == architecture.encoding_key(decoder, module, 1)
        for module in attention_modules(decoder, architecture)
    )


def resumed(
    model: PreTrainedModel, method: Method, prompts: Sequence[TokenisedPrompt], states: DocumentStates, backend: str
) -> tuple[Binding, DynamicCache, list[int]]:
    """A binding that goes on from a cache with the prompts' prefixes and documents, and how many tokens were kept.

    One prompt has its whole suffix still to run. Of several, each suffix has run by itself but for its last token, as
    suffixes differ in length.
    """
    rule = method if isinstance(method, AttentionMethod) else Alone()
    layouts, caches, reused = [], [], []
    width = max(len(prompt.ids) for prompt in prompts)
    for prompt in prompts:
        order = rule.document_order(prompt.documents)
        ordered = prompt.reordered(order)
        parts = [states.of((), ordered.prefix)] if ordered.prefix else []
        parts += [states.of(ordered.prefix, document) for document in ordered.documents]
        reused.append(sum(part.tokens for part, kept in parts if kept))
        cache = cache_of(model, [part for part, _ in parts])
        documents = (tuple(ordered.spans), tuple(order)) if rule.needs_documents else ((), ())
        if len(prompts) > 1 and len(prompt.suffix) > 1:
            alone = Binding(model, rule, [], private=True, backend=backend)
            run(alone, cache, SequenceLayout(0, len(prompt.ids), *documents), prompt.suffix[:-1])
        caches.append(cache)
        layouts.append(SequenceLayout(width - len(prompt.ids), len(prompt.ids), *documents))
    together = caches[0] if len(prompts) == 1 else left_padded(caches)
    binding = Binding(model, rule, [], private=True, backend=backend)
    binding.resume(together, layouts)
    return binding, together, reused


@torch.no_grad()
def run(binding: Binding, cache: DynamicCache, layout: SequenceLayout, tokens: Sequence[int]) -> None:
    """Let tokens enter after those in the cache."""
    if cache.get_seq_length():
        binding.resume(cache, [layout])
    with attached(binding):
        ids = torch.tensor([tokens], device=binding.model.device)
        binding.model(ids, past_key_values=cache, use_cache=True, logits_to_keep=1)


def cache_of(model: PreTrainedModel, parts: Sequence[States]) -> DynamicCache:
    """A cache that holds the parts one after the other, each layer where the model's is."""
    cache = DynamicCache()
    if parts:
        architecture = architecture_of(model)
        modules = attention_modules(decoder_of(model, architecture), architecture)
        for layer, module in enumerate(modules):
            device = _device_of(module)
            keys, values = (
                torch.cat([getattr(part, name)[layer] for part in parts], dim=1).to(device)[None]
                for name in ("keys", "values")
            )
            cache.update(keys, values, layer)
    return cache


def _device_of(module: Module) -> torch.device:
    """Where a module computes, also one whose weights accelerate brings there when it is called."""
    for each in module.modules():
        if (device := getattr(getattr(each, "_hf_hook", None), "execution_device", None)) is not None:
            return torch.device(device)
    return next(module.parameters()).device


def left_padded(caches: Sequence[DynamicCache]) -> DynamicCache:
    """One cache for a batch, zeros on the left of the shorter ones."""
    width = max(cache.get_seq_length() for cache in caches)
    together = DynamicCache()
    for index, layers in enumerate(zip(*(cache.layers for cache in caches), strict=True)):
        keys, values = (
            torch.cat([pad(getattr(layer, name), (0, 0, width - getattr(layer, name).shape[2], 0)) for layer in layers])
            for name in ("keys", "values")
        )
        together.update(keys, values, index)
    return together
