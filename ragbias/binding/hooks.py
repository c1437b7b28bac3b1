"""Hooks on attention modules that change their inputs, positions and attention function.

While at least one binding acts on a module, the module has our hooks and a copy of its config that names our attention
function. MPT's module calls no attention function and gets our forward instead. Each call looks up the active binding,
so that threads with different bindings (or none) share a model. The last binding to close restores the module.

An interrupt may come between any two steps of attaching and detaching. So the model's own hooks are the only record of
what is attached, and ``sweep`` removes what no open binding needs. It runs when a binding closes, before one is
attached, and in the next forward pass with a leftover hook: the decoder's hooks are added first and removed last.
"""

from __future__ import annotations

import copy
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from ragbias.binding.architectures import Architecture
from ragbias.binding.binding import Binding, active_binding_of, opening
from ragbias.binding.mpt import forward_of

PREFIX = "ragbias-over-"
PROJECTIONS: tuple[Literal["query", "key"], ...] = ("query", "key")
PlainAttention = Callable[..., tuple[Tensor, Tensor | None]]

_lock = threading.RLock()  # reentrant: the garbage collector may close a binding during a sweep


class Hook:
    """One of our hooks, recognisable by its class.

    Args:
        owner: the attention module; for hooks on the decoder, the binding.
        act: the hook function.
    """

    def __init__(self, owner: object, act: Callable[..., Any]) -> None:
        self.owner = owner
        self._act = act

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._act(*args, **kwargs)


@contextmanager
def attached(binding: Binding) -> Iterator[None]:
    """Hook the decoder and each layer of the method until the context ends, however it ends."""
    try:
        with opening(binding):
            _attach(binding)
            yield
    finally:
        sweep(binding.decoder)


def _attach(binding: Binding) -> None:
    """Hook the decoder and the attention modules of an open binding; bindings share the hooks of a module."""

    def enter(decoder: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> Any:
        if binding.is_open:
            return binding.enter(decoder, args, kwargs)
        sweep(decoder)  # an interrupt left this hook
        return None

    decoder = binding.decoder
    with _lock:
        sweep(decoder)
        shared = _needed(decoder)
        decoder.register_forward_pre_hook(Hook(binding, enter), with_kwargs=True)
        decoder.register_forward_hook(Hook(binding, binding.leave))
        for module in binding.layers:
            if module not in shared:
                _hook(module, binding.architecture)


def sweep(decoder: nn.Module) -> None:
    """Remove every hook and replacement that no open binding needs."""
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
    """The open bindings on a decoder, and their modules."""
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
    """Restore the module's own config and forward."""
    for name in ("config", "forward"):
        ours: Any = vars(module).get(name)
        if not hasattr(ours, "ragbias_original"):
            continue
        if ours.ragbias_original is None:  # the class's own forward
            vars(module).pop(name, None)
        else:
            setattr(module, name, ours.ragbias_original)


def _before_attention(architecture: Architecture) -> Callable[..., Any]:
    # torch omits kwargs if another thread removes the hook while it runs; no binding is active then
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
    """Replace queries and keys in the output by those of changed inputs."""

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
    """The module with its original config, which attention functions read the implementation's name from."""

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
        unhooked = _Original(module)
        active = active_binding_of(module)
        if active is None:
            return original(unhooked, query, key, value, mask, **kwargs)

        def plain(query: Tensor, key: Tensor, value: Tensor = value) -> Tensor:
            return original(unhooked, query, key, value, mask, **kwargs)[0]

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
