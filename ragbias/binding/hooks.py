"""Hooks on an attention module: what it reads, which positions it applies, and which attention it calls.

While at least one binding uses a module, the module carries hooks and, where transformers lets an attention function be
named, a copy of its config that names one of ours; MPT's module, which calls none, carries a forward of ours. The
active binding is looked up at each call, so threads with different bindings (or none) share a model without mixing.
When the last binding is closed, the module is as it was.

``Binding.attached`` attaches them, with two more on the decoder, which tell where a forward pass begins and ends.
"""

from __future__ import annotations

import copy
import sys
import threading
from collections.abc import Callable
from typing import Any, Literal
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from ragbias.binding.active import active_binding_of
from ragbias.binding.architectures import Architecture
from ragbias.binding.mpt import forward_of

PREFIX = "ragbias-over-"
PROJECTIONS: tuple[Literal["query", "key"], ...] = ("query", "key")
PlainAttention = Callable[..., tuple[Tensor, Tensor | None]]

_lock = threading.Lock()
_hooked: WeakKeyDictionary[nn.Module, _HookedModule] = WeakKeyDictionary()


class _HookedModule:
    def __init__(self, module: nn.Module, architecture: Architecture) -> None:
        self.users = 0
        self._before = {name: value for name, value in vars(module).items() if name in ("config", "forward")}
        self._handles: list[Any] = []
        try:
            self._attach(module, architecture)
        except BaseException:
            self.remove(module)
            raise

    def _attach(self, module: nn.Module, architecture: Architecture) -> None:
        # handles one by one, so that an interrupt in between loses none
        if architecture.fused is not None:
            fused = module.get_submodule(architecture.fused)
            self._handles.append(fused.register_forward_hook(_after_fused_projection(module, architecture)))
        else:
            for of in PROJECTIONS:
                projection = module.get_submodule(f"{of[0]}_proj")
                self._handles.append(projection.register_forward_pre_hook(_before_projection(module, of)))
        if architecture.positions == "alibi":
            module.forward = forward_of(module, architecture)
            return
        self._handles.append(module.register_forward_pre_hook(_before_attention(architecture), with_kwargs=True))
        config: Any = copy.copy(self._before["config"])
        config.ragbias_original = self._before["config"]
        config._attn_implementation = _register(config._attn_implementation)
        module.config = config

    def remove(self, module: nn.Module) -> None:
        for name in ("config", "forward"):
            if name in self._before:
                setattr(module, name, self._before[name])
            else:
                vars(module).pop(name, None)
        for handle in self._handles:
            handle.remove()


def acquire(module: nn.Module, architecture: Architecture) -> None:
    """Hook an attention module, or share it if it is hooked already."""
    with _lock:
        hooked = _hooked.get(module)
        if hooked is not None and hooked.users == 0:  # an interrupt stopped its removal
            hooked.remove(module)
        if hooked is None or hooked.users == 0:
            _hooked[module] = _HookedModule(module, architecture)
        _hooked[module].users += 1


def release(module: nn.Module) -> None:
    """Give a module back; the last one restores it."""
    with _lock:
        hooked = _hooked[module]
        hooked.users -= 1
        if hooked.users == 0:
            hooked.remove(module)
            del _hooked[module]


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
