"""Bindings of a method to a model, with the state of forward passes. Each thread or task has its own bindings."""

from __future__ import annotations

import copy
import inspect
import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, TypeAlias
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer

from ragbias.attention.keys import Encoding, Scoring, rotate
from ragbias.attention.primitive import check_backend
from ragbias.binding.architectures import (
    KV_CACHE,
    OLD_KV_CACHE,
    kv_cache_of,
    structure_of,
)
from ragbias.errors import BindingError, SpanError, UnsupportedModelError
from ragbias.methods import AttentionCall, AttentionMethod, SequenceLayout
from ragbias.prompt import Span

Rotation: TypeAlias = tuple[Tensor, Tensor] | None
AttentionMask: TypeAlias = Tensor | Mapping[str, Tensor | None] | None


class PlainBinding:
    """A binding that runs the plain model, even inside the context of another binding. Base class of ``Binding``."""

    def __init__(self, decoder: nn.Module, modules: Iterable[nn.Module]) -> None:
        self.decoder = decoder
        self.modules = {decoder, *modules}  # includes the attention modules
        self.is_open = True  # False when the context begins to exit


open_bindings: ContextVar[tuple[PlainBinding, ...]] = ContextVar("ragbias_opened", default=())


def binding_of(module: nn.Module) -> PlainBinding | None:
    """Return the innermost open binding of a module's model. The module is a decoder or an attention module."""
    for binding in reversed(open_bindings.get()):
        if binding.is_open and module in binding.modules:
            return binding
    return None


def active_binding_of(attention: nn.Module) -> Binding | None:
    """Return the innermost binding of an attention module's model, or None if its method skips this layer."""
    binding = binding_of(attention)
    return binding if isinstance(binding, Binding) and attention in binding.layers else None


@dataclass
class Session:
    """The state of a batch of prompts through prefill and decoding."""

    layouts: list[SequenceLayout]  # one layout for each sequence
    seen: int  # number of columns in the cache
    permutation: Tensor | None  # int64 [batch, T]: prompt column of each input column; None if no column moves
    memory: dict[tuple[int, int | None], dict[str, Any]] = field(default_factory=dict)  # by (layer, sequence or None)
    last_keys: Tensor | None = None  # keys [batch, G, d] of the last prompt token, to detect moved sequences


class _ForwardPass(threading.local):
    """The current forward pass of a thread. Several threads may share a binding."""

    session: Session | None = None
    prefill: bool = True
    layer_input: tuple[Tensor, Rotation] | None = None
    unchanged_inputs: bool = False


class Binding(PlainBinding):
    """A method that is attached to a model, for prompts with documents at given spans.

    While a binding is attached, a forward pass in a thread without a binding raises ``BindingError``. Otherwise such a
    thread would silently run the plain model. ``private=True`` disables the error.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        method: AttentionMethod,
        spans: list[list[Span]],
        private: bool = False,
        backend: str = "auto",
    ) -> None:
        check_backend(backend)
        self.model = model
        self.method = method
        self.backend = backend
        self.architecture, decoder, modules = structure_of(model)
        super().__init__(decoder, modules)
        if any(getattr(module, "_compiled_call_impl", None) for module in (model, *decoder.modules())):
            raise UnsupportedModelError("a model compiled by torch.compile is not supported; use the model as loaded")
        config = model.config.get_text_config()
        method.validate(config.hidden_size, len(modules))
        if method.needs_rotary and self.architecture.positions != "rotary":
            raise UnsupportedModelError(
                f"{method.name} changes rotary positions, but {type(model).__name__} has {self.architecture.positions}"
            )
        # a sliding layer's cache drops distant keys, but a method may move them close to the query
        self._slides = getattr(config, "sliding_window", None) is not None
        self._use_cache = config.use_cache
        self._n_layers = len(modules)
        self.layers = {modules[index]: index for index in method.layer_indices(len(modules))}
        self.uses_model_positions = method.positions == "model"
        self._argument_names = list(inspect.signature(decoder.forward).parameters)
        self._private = private
        self._spans = spans
        self._encodings: dict[tuple[object, ...], Encoding] = {}
        self._sessions: WeakKeyDictionary[Any, Session] = WeakKeyDictionary()
        self._pass = _ForwardPass()

    def resume(self, cache: DynamicCache, layouts: list[SequenceLayout]) -> None:
        """Continue from a cache that this method filled. The cache must contain all documents of each prompt."""
        self._sessions[cache] = Session(layouts, int(cache.get_seq_length()), None)

    def copy_session(self, cache: DynamicCache, copied: DynamicCache) -> None:
        """Copy the session of ``cache`` for ``copied``, which is a copy of this cache."""
        if (session := self._sessions.get(cache)) is not None:
            self._sessions[copied] = copy.deepcopy(session)

    def begin_forward(self, decoder: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> Any:
        """Begin a forward pass of the decoder. Return new arguments, or None to keep them."""
        current = binding_of(decoder)
        if current is None and not self._private:
            raise BindingError(
                "this thread runs a model on which another thread opened debias(); open debias() in this thread too "
                "(method 'none' for a plain run), or start the thread with contextvars.copy_context().run"
            )
        if kwargs is None:
            return None
        kwargs = dict(zip(self._argument_names, args, strict=False)) | kwargs
        cache = kv_cache_of(kwargs)
        if current is not self:
            if cache is not None:
                self._sessions.pop(cache, None)  # the cache's next tokens run without this method
            return None
        kwargs.pop(OLD_KV_CACHE, None)
        kwargs[KV_CACHE] = cache = self._cache_for(cache, kwargs.get("use_cache"))
        name = "input_ids" if kwargs.get("input_ids") is not None else "inputs_embeds"
        tokens: Tensor = kwargs[name]
        seen = 0 if cache is None else int(cache.get_seq_length())
        if seen == 0:
            session = _open_session(self.method, self._spans, tokens, kwargs.get("attention_mask"))
            if session.permutation is not None:
                kwargs[name] = _gather_columns(tokens, session.permutation)
        else:
            session = self._session_of(cache, seen, len(tokens))
        session.seen = seen + tokens.shape[1]
        self._pass.session = session
        self._pass.prefill = seen == 0
        return (), kwargs

    def _cache_for(self, cache: Any, use_cache: bool | None) -> Any:
        """Return the cache for a forward pass. It stores all keys, even if the model has sliding windows."""
        if getattr(cache, "is_compileable", False):
            raise UnsupportedModelError(f"{type(cache).__name__} is not supported; use the default dynamic cache")
        if not self._slides:
            return cache
        if cache is None:
            if use_cache is None:
                use_cache = self._use_cache
            return DynamicCache() if use_cache else None
        if cache.get_seq_length() == 0:
            cache.layers = [DynamicLayer() if layer.is_sliding else layer for layer in cache.layers]
        return cache

    def _session_of(self, cache: Any, seen: int, batch: int) -> Session:
        """Return the session of a filled cache. Raise ``BindingError`` if other code filled or reordered the cache."""
        session = self._sessions.get(cache)
        if session is None or session.seen != seen:
            raise BindingError(
                f"the cache contains {seen} tokens that did not run under this debias(); pass the whole prompt "
                "in one forward pass, without a filled cache and without chunked prefill"
            )
        moved = batch != len(session.layouts)
        if not moved and session.last_keys is not None:
            moved = not torch.allclose(self._last_keys(cache, session), session.last_keys, rtol=1e-2, atol=1e-2)
        if moved:
            raise BindingError(
                f"the cache's sequences are not those of the {len(session.layouts)} prompts that ran under this "
                "debias(); pass each sequence as a separate prompt"
            )
        return session

    def _last_keys(self, cache: Any, session: Session) -> Tensor:
        column = session.layouts[0].pad + session.layouts[0].length - 1  # the same column in every sequence
        keys: Tensor = cache.layers[max(self.layers.values())].keys
        return keys[:, :, column]

    def end_forward(self, decoder: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        """End a forward pass: record the cache, and restore the original order of tokens in the output."""
        if binding_of(decoder) is not self or self._pass.session is None:
            return None
        session = self._pass.session
        self._pass.session = None
        self._pass.layer_input = None
        if isinstance(output, tuple):
            raise BindingError("return_dict=False is not supported; remove it")
        cache = output.get(KV_CACHE)
        if cache is not None:
            self._sessions[cache] = session
            if self._pass.prefill:
                session.last_keys = self._last_keys(cache, session).clone()
        if self._pass.prefill and session.permutation is not None:
            back = session.permutation.argsort(1)
            output.last_hidden_state = _gather_columns(output.last_hidden_state, back)
            if output.get("hidden_states") is not None:
                output["hidden_states"] = tuple(_gather_columns(state, back) for state in output["hidden_states"])
        return output

    def set_layer_input(self, hidden: Tensor, rotation: Rotation) -> None:
        """Record the input of a layer, and its rotation ``(cos, sin)`` if it has one."""
        self._pass.layer_input = (hidden, rotation)

    @contextmanager
    def unchanged_inputs(self) -> Iterator[None]:
        """Make ``projection_input`` return its input unchanged in this context."""
        self._pass.unchanged_inputs = True
        try:
            yield
        finally:
            self._pass.unchanged_inputs = False

    def projection_input(self, module: nn.Module, hidden: Tensor, of: Literal["query", "key"]) -> Tensor:
        """Return the input that replaces ``hidden`` in the projection of queries or keys."""
        if self._pass.unchanged_inputs:
            return hidden
        if of == "query":
            return self.method.query_input(hidden, self.layers[module], self._pass.prefill)
        return self.method.key_input(hidden, self.layers[module])

    def run_method(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        plain: Callable[..., Tensor],
        scale: float,
        softcap: float | None = None,
        window: int | None = None,
    ) -> Tensor:
        """Compute a layer's attention with the method: ``[batch, Q, H, d]``. For ``plain``, see ``AttentionCall``."""
        session = self._pass.session
        if session is None or self._pass.layer_input is None:
            raise BindingError("an attention layer was called outside its model; call the model instead")
        if window is not None and session.seen <= window:
            window = None
        hidden, rotation = self._pass.layer_input
        if not getattr(module, "use_rope", True):
            rotation = None
        layer = self.layers[module]
        encodings = [self._encoding(module, layout.length) for layout in session.layouts]
        call = AttentionCall(
            layer=layer,
            n_layers=self._n_layers,
            query=query,
            key=key.to(query.dtype),  # under autocast, only rotated tensors are float32
            value=value.to(query.dtype),
            hidden=hidden,
            prefill=self._pass.prefill,
            layouts=session.layouts,
            scorings=[Scoring(encoding, scale, softcap, window, self.backend) for encoding in encodings],
            memory_of=lambda index: session.memory.setdefault((layer, index), {}),
            project=partial(self._project, module, query),
            rotate=partial(self._rotate, rotation),
            plain=plain,
        )
        return self.method.attention(call)

    def _project(self, module: nn.Module, like: Tensor, of: Literal["query", "key"], hidden: Tensor) -> Tensor:
        """Project hidden states to unrotated queries or keys ``[batch, heads, T, d]``, as in the plain model."""
        with self.unchanged_inputs():
            return self.architecture.project(module, hidden.to(like.device), of).to(like.dtype)

    def _rotate(self, rotation: Rotation, x: Tensor) -> Tensor:
        if rotation is None:  # the layer has no position encoding
            return x
        cos, sin = (part[..., -x.shape[2] :, :] for part in rotation)
        return rotate(x, cos, sin, self.architecture.interleaved)

    def _encoding(self, module: nn.Module, length: int) -> Encoding:
        """Return the positional encoding that the method applies to queries and keys of this layer."""
        if self.uses_model_positions and self.architecture.positions == "rotary":
            return Encoding()
        key = self.architecture.encoding_key(self.decoder, module, length)
        if key not in self._encodings:
            self._encodings[key] = self.architecture.encoding(self.decoder, module, length)
        return self._encodings[key]


def _gather_columns(states: Tensor, columns: Tensor) -> Tensor:
    """Return ``states[b, columns[b]]`` for each sequence ``b``. States are ``[batch, T]`` or ``[batch, T, hidden]``."""
    index = columns.to(states.device)
    return states.gather(1, index if states.dim() == 2 else index[..., None].expand_as(states))


def _open_session(method: AttentionMethod, spans: list[list[Span]], tokens: Tensor, mask: AttentionMask) -> Session:
    """Return the session of a batch of whole prompts. ``tokens`` are ids ``[batch, T]`` or embeddings."""
    batch, length = tokens.shape[:2]
    if spans and batch % len(spans):
        raise SpanError(f"spans were given for {len(spans)} sequences, but the batch has {batch}")
    repeat = batch // len(spans) if spans else 0  # beams and multiple return sequences repeat each prompt
    layouts, permutations = [], []
    for index, pad in enumerate(_count_padding(mask, batch, length)):
        columns = spans[index // repeat] if spans else []
        if method.needs_documents:
            _check_spans(columns, pad, length)
        order = list(range(len(columns)))
        if method.invariant:
            order = method.document_order([_sort_key(tokens[index, begin:end]) for begin, end in columns])
        begin, end = (columns[0][0], columns[-1][1]) if columns else (0, 0)
        ordered = [columns[i] for i in order]
        lengths = [right - left for left, right in ordered]
        edges = itertools.accumulate(lengths, initial=begin - pad)
        layouts.append(SequenceLayout(pad, length - pad, tuple(itertools.pairwise(edges)), tuple(order)))
        document_columns = [column for left, right in ordered for column in range(left, right)]
        permutations.append([*range(begin), *document_columns, *range(end, length)])
    moved = any(permutation != sorted(permutation) for permutation in permutations)
    permutation = torch.tensor(permutations, device=tokens.device) if moved else None
    return Session(layouts, 0, permutation)


def _sort_key(document: Tensor) -> Sequence[Any]:
    """Return the sort key of a document: its token ids ``[L]``, or the bytes of its embeddings ``[L, hidden]``."""
    if document.dim() == 1:
        return list(document.tolist())
    return [embedding.tobytes() for embedding in document.float().cpu().numpy()]


def _check_spans(spans: list[Span], pad: int, length: int) -> None:
    for left, right in itertools.pairwise(spans):
        if left[1] != right[0]:
            raise SpanError(
                f"tokens {left[1]} to {right[0]} between spans {left} and {right} belong to no document; "
                "include the separator in each document's span"
            )
    if spans[0][0] < pad or spans[-1][1] > length:
        raise SpanError(f"spans {spans[0]} to {spans[-1]} lie outside the prompt, which has columns {pad} to {length}")
    if spans[-1][1] == length:
        raise SpanError(f"the last span {spans[-1]} ends the prompt; expected at least one token after the documents")


def _count_padding(attention_mask: AttentionMask, batch: int, length: int) -> list[int]:
    """Return the number of padding columns at the left of each sequence."""
    if isinstance(attention_mask, Mapping):  # multimodal models use a mask [batch, 1, Q, K] per layer type
        attention_mask = attention_mask.get("full_attention")
        if attention_mask is not None:  # select the keys that the last query sees
            attention_mask = attention_mask[:, 0, -1]
            if attention_mask.dtype != torch.bool:
                attention_mask = attention_mask >= 0
    if attention_mask is None:
        return [0] * batch
    if not isinstance(attention_mask, Tensor) or attention_mask.dim() != 2:
        raise BindingError("expected a 2-D attention_mask [batch, length]; custom masks are not supported")
    if attention_mask.shape[1] != length:
        raise BindingError(f"attention_mask has {attention_mask.shape[1]} columns, but the prompt has {length} tokens")
    mask = attention_mask.bool().expand(batch, -1)
    pads: list[int] = (length - mask.sum(-1)).tolist()
    for index, pad in enumerate(pads):
        if not mask[index, pad:].all():
            raise BindingError(
                f"sequence {index} has padding that is not on the left; set tokenizer.padding_side = 'left'"
            )
    return pads
