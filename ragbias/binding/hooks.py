"""``debias``: run an unmodified transformers model with a method, using hooks on its attention modules.

While a binding acts on a module, the module has hooks and a copy of its config. The copy names an attention function of
this library. MPT has no attention function, so its ``forward`` is replaced. Each call looks up the active binding.
Therefore threads with different bindings can share a model. A module is restored when its last binding closes.

An interrupt may occur while bindings attach or detach. Therefore the hooks on the model are the only record of attached
bindings. ``remove_unused_hooks`` runs when a binding closes, before a binding is attached, and when a forward pass
meets an unused hook. The decoder's hooks are added first and removed last.
"""

from __future__ import annotations

import copy
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers import DynamicCache, PreTrainedModel
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from ragbias.attention import Scoring
from ragbias.attention.primitive import choose_backend
from ragbias.binding.architectures import (
    Architecture,
    head_dim,
    kv_cache_of,
    structure_of,
)
from ragbias.binding.binding import Binding, PlainBinding, active_binding_of, binding_of, open_bindings
from ragbias.errors import MethodError, NoDocumentsError, UnsupportedModelError
from ragbias.methods import AttentionMethod, Method, get
from ragbias.prompt import Span, check_spans

PREFIX = "ragbias-over-"
PROJECTIONS: tuple[Literal["query", "key"], ...] = ("query", "key")
Spans = Sequence[Span] | Sequence[Sequence[Span]]
PlainAttention = Callable[..., tuple[Tensor, Tensor | None]]

_lock = threading.RLock()  # reentrant, because the garbage collector may close a binding while hooks are removed


def backend_of(model: PreTrainedModel, backend: str) -> str:
    """Choose the backend. Raise ``BackendError`` if a backend other than ``auto`` does not support the model."""
    architecture, decoder, modules = structure_of(model)
    encoding = architecture.encoding(decoder, modules[0], 1)
    query = torch.empty(0, head_dim(modules[0]), dtype=model.dtype, device=model.device)
    return choose_backend(query, Scoring(encoding, 1.0, backend=backend))


def copy_cache(model: PreTrainedModel, cache: DynamicCache) -> DynamicCache:
    """Copy a cache that was filled under the active binding, to continue a prompt in several ways."""
    copied = copy.deepcopy(cache)
    current = binding_of(model.get_decoder())
    if isinstance(current, Binding):
        current.copy_session(cache, copied)
    return copied


def create_binding(
    model: PreTrainedModel, method: Method, spans: list[list[Span]], private: bool = False, backend: str = "auto"
) -> PlainBinding:
    """Create the binding of a method. Raise an error if the method does not act inside the model, or needs spans.

    The caller has already checked the spans. For ``private``, see ``Binding``.
    """
    if method.is_plain:
        if not isinstance(model, PreTrainedModel):
            raise UnsupportedModelError(f"expected a transformers model, got {type(model).__name__}")
        decoder: nn.Module = model.get_decoder()
        return PlainBinding(decoder, decoder.modules())
    if not isinstance(method, AttentionMethod):
        raise MethodError(
            f"{method.name} acts on whole prompts, not inside the model; "
            "use ragbias.DebiasedLM(model, tokenizer, method=...)"
        )
    if method.needs_documents and not (spans and all(spans)):
        raise NoDocumentsError(
            f"{method.name} needs to know which tokens are documents; pass spans=[(begin, end), ...] in tokens"
        )
    return Binding(model, method, spans, private, backend)


@contextmanager
def debias(
    model: PreTrainedModel, method: str | Method, spans: Spans | None = None, backend: str = "auto"
) -> Iterator[PreTrainedModel]:
    """Run a transformers model with a method. The model is restored when the context ends, even after an error.

    In this context, ``model(...)`` and ``model.generate(...)`` run with the method, even if other code calls them. Pass
    each prompt in one forward pass. Several prompts may run in succession. Other threads may use the same model at the
    same time if each of them opens ``debias``.

    Args:
        model: a causal language model of a supported family.
        method: a name or an instance, e.g. ``"pine"`` or ``Pine()``.
        spans: ``(begin, end)`` of each document in columns of ``input_ids``, counting padding. Spans must be adjacent.
            For a batch, pass one list of spans per prompt. Do not repeat spans for beams of a prompt.
        backend: ``"auto"``, ``"torch"``, ``"triton"`` or ``"flash"``, see ``ragbias.attention.primitive``.

    Raises:
        UnknownMethodError: no method has this name.
        MethodError: the method acts on whole prompts, or its parameters do not fit the model.
        NoDocumentsError: the method needs spans, and none are given.
        SpanError: spans overlap or leave gaps; or, in the first forward pass, a span is outside the prompt.
        EmptyDocumentError: a span is empty.
        UnsupportedModelError: the architecture is not supported.
        BackendError: the backend is unknown, not installed, or, in the first forward pass, does not support the model.
        BindingError: a forward pass uses a cache that was filled elsewhere, or runs in a thread without ``debias``.
    """
    resolved = get(method, getattr(getattr(model, "config", None), "_name_or_path", None))
    if resolved.selective:
        raise MethodError(
            f"selective {resolved.name} compares two runs; use ragbias.DebiasedLM(model, tokenizer, method=...)"
        )
    if resolved.reader:
        raise MethodError(
            f"{resolved.name} with a reader runs in two phases; use ragbias.DebiasedLM(model, tokenizer, method=...)"
        )
    with attached(create_binding(model, resolved, _spans_by_sequence(spans), backend=backend)):
        yield model


def _spans_by_sequence(spans: Spans | None) -> list[list[Span]]:
    """Return one list of spans per sequence. A single list applies to all sequences."""
    if spans is None or len(spans) == 0:
        return []
    first = spans[0]
    one_each = isinstance(first, Sequence) and (not first or isinstance(first[0], Sequence))
    lists = spans if one_each else [spans]
    return [check_spans(of_sequence) for of_sequence in lists]  # type: ignore[arg-type]  # distinguished above


class Hook:
    """A hook of this library. Its class distinguishes it from other hooks on the model."""

    def __init__(self, owner: object, act: Callable[..., Any]) -> None:
        self.owner = owner  # the attention module, or the binding if the hook is on the decoder
        self._act = act

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._act(*args, **kwargs)


@contextmanager
def attached(binding: PlainBinding) -> Iterator[None]:
    """Make a binding the innermost one of this thread or task, and hook the decoder and the method's layers.

    The end of the context undoes both. It may end in another thread or task, e.g. if a generator is closed there.
    """
    try:
        try:
            open_bindings.set((*open_bindings.get(), binding))
            if isinstance(binding, Binding):
                _add_hooks(binding)
            yield
        finally:
            binding.is_open = False
    finally:
        try:
            binding.is_open = False  # repeated, in case an interrupt skipped the line above
            open_bindings.set(tuple(other for other in open_bindings.get() if other.is_open))
        finally:
            remove_unused_hooks(binding.decoder)


def _add_hooks(binding: Binding) -> None:
    """Hook the decoder and the attention modules of a binding. Bindings share the hooks of a module."""

    def begin_forward(decoder: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> Any:
        if binding.is_open:
            return binding.begin_forward(decoder, args, kwargs)
        remove_unused_hooks(decoder)  # this hook remains from an interrupt
        return None

    decoder = binding.decoder
    with _lock:
        remove_unused_hooks(decoder)
        shared = _owners_in_use(decoder)
        decoder.register_forward_pre_hook(Hook(binding, begin_forward), with_kwargs=True)
        decoder.register_forward_hook(Hook(binding, binding.end_forward))
        for module in binding.layers:
            if module not in shared:
                _hook(module, binding.architecture)


def remove_unused_hooks(decoder: nn.Module) -> None:
    """Remove all hooks, configs and forwards of this library that no open binding uses."""
    with _lock:
        used = _owners_in_use(decoder)
        for module in reversed(list(decoder.modules())):  # the decoder comes last
            tables = vars(module)
            for kind in ("_forward_hooks", "_forward_pre_hooks"):
                for key, hook in list(tables[kind].items()):
                    if isinstance(hook, Hook) and hook.owner not in used:
                        tables[kind].pop(key, None)
                        tables[f"{kind}_with_kwargs"].pop(key, None)
            if module not in used:
                _restore(module)


def _owners_in_use(decoder: nn.Module) -> set[object]:
    """Return the owners of hooks that are in use: the open bindings on a decoder, and their attention modules."""
    hooks = decoder._forward_pre_hooks.values()
    bindings: list[Any] = [hook.owner for hook in hooks if isinstance(hook, Hook)]
    still_open = [binding for binding in bindings if binding.is_open]
    return {*still_open, *(module for binding in still_open for module in binding.layers)}


def _hook(module: nn.Module, architecture: Architecture) -> None:
    if architecture.fused is not None:
        after = Hook(module, _after_fused_projection(module, architecture))
        module.get_submodule(architecture.fused).register_forward_hook(after)
    else:
        for projection in PROJECTIONS:
            before = Hook(module, _before_projection(module, projection))
            module.get_submodule(f"{projection[0]}_proj").register_forward_pre_hook(before)
    if architecture.positions == "alibi":
        forward: Any = _mpt_forward(module, architecture)
        forward.ragbias_original = vars(module).get("forward")
        module.forward = forward
        return
    module.register_forward_pre_hook(Hook(module, _before_attention(architecture)), with_kwargs=True)
    config: Any = copy.copy(module.config)
    config.ragbias_original = module.config
    config._attn_implementation = _register_attention(config._attn_implementation)
    module.config = config


def _restore(module: nn.Module) -> None:
    for name in ("config", "forward"):
        replacement: Any = vars(module).get(name)
        if not hasattr(replacement, "ragbias_original"):
            continue
        if replacement.ragbias_original is None:  # the forward of the class
            vars(module).pop(name, None)
        else:
            setattr(module, name, replacement.ragbias_original)


def _before_attention(architecture: Architecture) -> Callable[..., Any]:
    # torch omits kwargs if another thread removes the hook while it runs; then no binding is active
    def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> Any:
        active = active_binding_of(module)
        if active is None or kwargs is None:
            return None
        hidden = kwargs["hidden_states"] if "hidden_states" in kwargs else args[0]
        cos, sin = kwargs["position_embeddings"]
        active.set_layer_input(hidden, (architecture.angles(cos), architecture.angles(sin)))
        if active.uses_model_positions:
            return None
        identity = torch.ones_like(cos[:, :1]), torch.zeros_like(sin[:, :1])
        return args, {**kwargs, "position_embeddings": identity}

    return hook


def _before_projection(attention: nn.Module, projection: Literal["query", "key"]) -> Callable[..., Any]:
    def hook(module: nn.Module, args: tuple[Tensor, ...]) -> Any:
        active = active_binding_of(attention)
        if active is None:
            return None
        return active.projection_input(attention, args[0], projection), *args[1:]

    return hook


def _after_fused_projection(attention: nn.Module, architecture: Architecture) -> Callable[..., Any]:
    """Return a hook that projects queries and keys again if the method changes the inputs of the projection."""

    def hook(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Any:
        active = active_binding_of(attention)
        if active is None:
            return None
        query, key = (active.projection_input(attention, args[0], projection) for projection in PROJECTIONS)
        if query is args[0] and key is args[0]:
            return None
        parts = list(architecture.split(attention, output))
        for index, changed in enumerate((query, key)):
            if changed is not args[0]:
                with active.unchanged_inputs():
                    parts[index] = architecture.split(attention, module(changed))[index]
        return architecture.join(*parts)

    return hook


class _WithOriginalConfig:
    """A view of a module with its original config, which names the model's own attention function."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self.config = getattr(module.config, "ragbias_original", module.config)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


def _register_attention(implementation: str) -> str:
    """Register an attention function that wraps the model's implementation. Return the name of the function."""
    name = PREFIX + implementation
    if name in ALL_ATTENTION_FUNCTIONS:
        return name

    def attention(
        module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **kwargs: Any
    ) -> tuple[Tensor, Tensor | None]:
        eager: Any = getattr(sys.modules[type(module).__module__], "eager_attention_forward", None)
        original: PlainAttention = ALL_ATTENTION_FUNCTIONS.get_interface(implementation, eager)
        unhooked = _WithOriginalConfig(module)
        active = active_binding_of(module)
        if active is None:
            return original(unhooked, query, key, value, mask, **kwargs)

        def plain(query: Tensor, key: Tensor, value: Tensor = value) -> Tensor:
            return original(unhooked, query, key, value, mask, **kwargs)[0]

        softcap, window = kwargs.get("softcap"), kwargs.get("sliding_window")
        return active.run_method(module, query, key, value, plain, kwargs["scaling"], softcap, window), None

    ALL_ATTENTION_FUNCTIONS.register(name, attention)
    return name


def _mpt_forward(module: Any, architecture: Architecture) -> Callable[..., tuple[Tensor, Tensor | None]]:
    """Create a replacement for ``MptAttention.forward`` that uses the active binding."""
    original: Callable[..., tuple[Tensor, Tensor | None]] = module.forward

    def forward(
        hidden_states: Tensor,
        position_bias: Tensor,
        attention_mask: Tensor | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        active = active_binding_of(module)
        if active is None:
            return original(hidden_states, position_bias, attention_mask=attention_mask, **kwargs)
        active.set_layer_input(hidden_states, None)
        projected = architecture.clipped(module, module.Wqkv(hidden_states))
        query, key, value = (part.transpose(1, 2) for part in architecture.split(module, projected))
        if (cache := kv_cache_of(kwargs)) is not None:
            key, value = cache.update(key, value, module.layer_idx)

        def plain(query: Tensor, key: Tensor, value: Tensor = value) -> Tensor:
            return _mpt_attention(query, key, value, position_bias, attention_mask, module.softmax_scale)

        output = active.run_method(module, query, key, value, plain, scale=module.softmax_scale)
        return module.out_proj(output.flatten(2)), None

    return forward


def _mpt_attention(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor, mask: Tensor | None, scale: float
) -> Tensor:
    """Compute softmax attention with the last K columns of ``bias`` ``[H, 1, >= K]``. ``mask`` marks hidden keys."""
    scores = query @ key.transpose(-1, -2) * scale + bias[..., -key.shape[2] :]
    if mask is not None:
        scores = scores.masked_fill(mask, torch.finfo(query.dtype).min)
    weights = nn.functional.softmax(scores.float(), dim=-1).to(value.dtype)
    return (weights @ value).transpose(1, 2)
