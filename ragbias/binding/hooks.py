"""One attention module, hooked: what it reads, which positions it applies, and which attention it calls.

While at least one binding uses a site, the module carries hooks and, where transformers lets an attention function be
named, a copy of its config that names one of ours; MPT's module, which calls none, carries a forward of ours. Who is
asked is looked up at each call, so threads with different bindings (or none) share a model without mixing. When the
last binding leaves, the module is as it was.
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
OF: tuple[Literal["query", "key"], ...] = ("query", "key")
PlainAttention = Callable[..., tuple[Tensor, Tensor | None]]

_lock = threading.Lock()
_sites: WeakKeyDictionary[nn.Module, _Site] = WeakKeyDictionary()


class _Site:
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
            for of in OF:
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
        site = _sites.get(module)
        if site is not None and site.users == 0:  # an interrupt stopped its removal
            site.remove(module)
        if site is None or site.users == 0:
            _sites[module] = _Site(module, architecture)
        _sites[module].users += 1


def release(module: nn.Module) -> None:
    """Give a module back; the last one restores it."""
    with _lock:
        site = _sites[module]
        site.users -= 1
        if site.users == 0:
            site.remove(module)
            del _sites[module]


def _before_attention(architecture: Architecture) -> Callable[..., Any]:
    # torch omits kwargs if another thread takes the hook away while it runs; then there is no guest either
    def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> Any:
        guest = active_binding_of(module)
        if guest is None or kwargs is None:
            return None
        hidden = kwargs["hidden_states"] if "hidden_states" in kwargs else args[0]
        cos, sin = kwargs["position_embeddings"]
        guest.note(hidden, (architecture.angles(cos), architecture.angles(sin)))
        if guest.wants_positions:
            return None
        identity = torch.ones_like(cos[:, :1]), torch.zeros_like(sin[:, :1])
        return args, {**kwargs, "position_embeddings": identity}

    return hook


def _before_projection(attention: nn.Module, of: Literal["query", "key"]) -> Callable[..., Any]:
    def hook(module: nn.Module, args: tuple[Tensor, ...]) -> Any:
        guest = active_binding_of(attention)
        return None if guest is None else (guest.projection_input(attention, args[0], of), *args[1:])

    return hook


def _after_fused_projection(attention: nn.Module, architecture: Architecture) -> Callable[..., Any]:
    """Queries and keys of changed inputs take their places in the output."""

    def hook(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Any:
        guest = active_binding_of(attention)
        if guest is None:
            return None
        query, key = (guest.projection_input(attention, args[0], of) for of in OF)
        if query is args[0] and key is args[0]:
            return None
        parts = list(architecture.split(attention, output))
        for index, changed in enumerate((query, key)):
            if changed is not args[0]:
                with guest.projecting():
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
        guest = active_binding_of(module)
        if guest is None:
            return original(own, query, key, value, mask, **kwargs)

        def plain(query: Tensor, key: Tensor, value: Tensor = value) -> Tensor:
            return original(own, query, key, value, mask, **kwargs)[0]

        output = guest.attention(
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
