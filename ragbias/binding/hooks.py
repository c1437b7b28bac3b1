"""Hooks on an attention module: what it reads, which positions it applies, and which attention it calls.

While at least one binding uses a module, the module carries hooks and, where transformers lets an attention function be
named, a copy of its config that names one of ours; MPT's module, which calls none, carries a forward of ours. The
active binding is looked up at each call, so threads with different bindings (or none) share a model without mixing.
When the last binding is closed, the module is as it was.

An interrupt may come between any two steps of attaching and detaching. So nothing is kept about what was attached: all
of it is told from the model's own hooks, and ``sweep`` removes what no open binding needs. It runs when a binding is
closed, before one is attached, and with the next forward pass that meets a hook left over: the decoder's hooks come
first and go last.
"""

from __future__ import annotations

import copy
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from ragbias.binding.active import active_binding_of
from ragbias.binding.architectures import Architecture
from ragbias.binding.mpt import forward_of

PREFIX = "ragbias-over-"
PROJECTIONS: tuple[Literal["query", "key"], ...] = ("query", "key")
PlainAttention = Callable[..., tuple[Tensor, Tensor | None]]

_lock = threading.RLock()  # a binding that was dropped may be closed by the garbage collector, in the midst of a sweep


class Attachable(Protocol):
    """A binding, as far as its hooks go.

    Attributes:
        layers: the attention modules that it acts on.
    """

    decoder: nn.Module
    architecture: Architecture
    layers: Mapping[nn.Module, int]
    is_open: bool

    def enter(self, decoder: nn.Module, args: Any, kwargs: Any = None) -> Any:
        """Called before each forward pass of the decoder."""

    def leave(self, decoder: nn.Module, args: Any, output: Any) -> Any:
        """Called after it."""


class Hook:
    """A hook of ours, to be known wherever it is.

    Args:
        owner: the attention module that it is for; of the decoder's hooks, the binding.
        act: what it does.
    """

    def __init__(self, owner: object, act: Callable[..., Any]) -> None:
        self.owner = owner
        self._act = act

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._act(*args, **kwargs)


def attach(binding: Attachable) -> None:
    """Hook the decoder and the attention modules of a binding that is open; those hooked already are shared."""
    decoder = binding.decoder
    with _lock:
        sweep(decoder)
        shared = _needed(decoder)
        decoder.register_forward_pre_hook(Hook(binding, binding.enter), with_kwargs=True)
        decoder.register_forward_hook(Hook(binding, binding.leave))
        for module in binding.layers:
            if module not in shared:
                _hook(module, binding.architecture)


def sweep(decoder: nn.Module) -> None:
    """Remove all that no open binding needs, be it left over by one that was just closed or by an interrupt."""
    with _lock:
        needed = _needed(decoder)
        for module in reversed(list(decoder.modules())):  # the decoder last
            tables = vars(module)
            for kind in ("_forward_hooks", "_forward_pre_hooks"):
                ours = {key: hook.owner for key, hook in tables[kind].items() if isinstance(hook, Hook)}
                for key in (key for key, owner in ours.items() if owner not in needed):
                    tables[kind].pop(key, None)
                    tables[f"{kind}_with_kwargs"].pop(key, None)
            if module not in needed:
                _restore(module)


def _needed(decoder: nn.Module) -> set[object]:
    """The open bindings on a decoder, and the modules they act on."""
    hooks = decoder._forward_pre_hooks.values()
    bindings: list[Any] = [hook.owner for hook in hooks if isinstance(hook, Hook)]
    attached = [binding for binding in bindings if binding.is_open]
    return {*attached, *(module for binding in attached for module in binding.layers)}


def _hook(module: nn.Module, architecture: Architecture) -> None:
    if architecture.fused is not None:
        after = Hook(module, _after_fused_projection(module, architecture))
        module.get_submodule(architecture.fused).register_forward_hook(after)
    else:
        for of in PROJECTIONS:
            before = Hook(module, _before_projection(module, of))
            module.get_submodule(f"{of[0]}_proj").register_forward_pre_hook(before)
    if architecture.positions == "alibi":
        forward: Any = forward_of(module, architecture)
        forward.ragbias_original = vars(module).get("forward")
        module.forward = forward
        return
    module.register_forward_pre_hook(Hook(module, _before_attention(architecture)), with_kwargs=True)
    config: Any = copy.copy(module.config)
    config.ragbias_original = module.config
    config._attn_implementation = _register(config._attn_implementation)
    module.config = config


def _restore(module: nn.Module) -> None:
    """Put the config and the forward back that the module had."""
    for name in ("config", "forward"):
        ours: Any = vars(module).get(name)
        if not hasattr(ours, "ragbias_original"):
            continue
        if ours.ragbias_original is None:  # the class's own forward
            vars(module).pop(name, None)
        else:
            setattr(module, name, ours.ragbias_original)


def _before_attention(architecture: Architecture) -> Callable[..., Any]:
    # torch omits kwargs if another thread takes the hook away while it runs; then no binding is active either
    def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> Any:
        active = active_binding_of(module)
        if active is None or kwargs is None:
            return None
        hidden = kwargs["hidden_states"] if "hidden_states" in kwargs else args[0]
        cos, sin = kwargs["position_embeddings"]
        active.note(hidden, (architecture.angles(cos), architecture.angles(sin)))
        if active.wants_positions:
            return None
        identity = torch.ones_like(cos[:, :1]), torch.zeros_like(sin[:, :1])
        return args, {**kwargs, "position_embeddings": identity}

    return hook


def _before_projection(attention: nn.Module, of: Literal["query", "key"]) -> Callable[..., Any]:
    def hook(module: nn.Module, args: tuple[Tensor, ...]) -> Any:
        active = active_binding_of(attention)
        return None if active is None else (active.projection_input(attention, args[0], of), *args[1:])

    return hook


def _after_fused_projection(attention: nn.Module, architecture: Architecture) -> Callable[..., Any]:
    """Puts the queries and keys of changed inputs into the output."""

    def hook(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Any:
        active = active_binding_of(attention)
        if active is None:
            return None
        query, key = (active.projection_input(attention, args[0], of) for of in PROJECTIONS)
        if query is args[0] and key is args[0]:
            return None
        parts = list(architecture.split(attention, output))
        for index, changed in enumerate((query, key)):
            if changed is not args[0]:
                with active.projecting():
                    parts[index] = architecture.split(attention, module(changed))[index]
        return architecture.join(*parts)

    return hook


class _Original:
    """The module with its own config, for attention functions that read the implementation's name from it."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self.config = getattr(module.config, "ragbias_original", module.config)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


def _register(implementation: str) -> str:
    """Register our attention function over the model's own implementation, and return its name."""
    name = PREFIX + implementation
    if name in ALL_ATTENTION_FUNCTIONS:
        return name

    def attention(
        module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **kwargs: Any
    ) -> tuple[Tensor, Tensor | None]:
        eager: Any = getattr(sys.modules[type(module).__module__], "eager_attention_forward", None)
        original: PlainAttention = ALL_ATTENTION_FUNCTIONS.get_interface(implementation, eager)
        own = _Original(module)
        active = active_binding_of(module)
        if active is None:
            return original(own, query, key, value, mask, **kwargs)

        def plain(query: Tensor, key: Tensor, value: Tensor = value) -> Tensor:
            return original(own, query, key, value, mask, **kwargs)[0]

        output = active.attention(
            module,
            query,
            key,
            value,
            plain,
            scale=kwargs["scaling"],
            softcap=kwargs.get("softcap"),
            window=kwargs.get("sliding_window"),
        )
        return output, None

    ALL_ATTENTION_FUNCTIONS.register(name, attention)
    return name
