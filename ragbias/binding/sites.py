"""One attention module, hooked: what it reads, which positions it applies, and which attention it calls.

While at least one binding uses a site, the module carries three pre-hooks and a copy of its config that names an
attention function of ours. Who is asked is looked up at each call, so threads with different bindings (or none) share
a model without mixing. When the last binding leaves, the module is as it was.
"""

from __future__ import annotations

import copy
import sys
import threading
from collections.abc import Callable
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from ragbias.binding.architectures import Architecture

PREFIX = "ragbias-over-"
PlainAttention = Callable[..., tuple[Tensor, Tensor | None]]


class Guest(Protocol):
    """What a binding answers for a site."""

    wants_positions: bool

    def note(self, module: nn.Module, hidden: Tensor, rotation: tuple[Tensor, Tensor]) -> None: ...
    def query_input(self, hidden: Tensor) -> Tensor: ...
    def key_input(self, hidden: Tensor) -> Tensor: ...
    def attention(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        plain: Callable[[Tensor, Tensor], Tensor],
        scale: float,
        window: int | None,
    ) -> Tensor: ...


FindGuest = Callable[[nn.Module], Guest | None]

_lock = threading.Lock()
_sites: WeakKeyDictionary[nn.Module, _Site] = WeakKeyDictionary()


class _Site:
    def __init__(self, module: nn.Module, architecture: Architecture, find: FindGuest) -> None:
        self.users = 0
        self._config: Any = module.config
        self._handles: list[Any] = []
        try:
            self._attach(module, architecture, find)
        except BaseException:
            self.remove(module)
            raise

    def _attach(self, module: nn.Module, architecture: Architecture, find: FindGuest) -> None:
        query = _before_projection(module, find, lambda guest, hidden: guest.query_input(hidden))
        key = _before_projection(module, find, lambda guest, hidden: guest.key_input(hidden))
        # one by one, so that an interrupt in between loses no handle
        self._handles.append(module.register_forward_pre_hook(_before_attention(find), with_kwargs=True))
        self._handles.append(module.get_submodule(architecture.query).register_forward_pre_hook(query))
        self._handles.append(module.get_submodule(architecture.key).register_forward_pre_hook(key))
        config: Any = copy.copy(self._config)
        config.ragbias_original = self._config
        config._attn_implementation = _register(self._config._attn_implementation, find)
        module.config = config

    def remove(self, module: nn.Module) -> None:
        module.config = self._config
        for handle in self._handles:
            handle.remove()


def acquire(module: nn.Module, architecture: Architecture, find: FindGuest) -> None:
    """Hook an attention module, or share it if it is hooked already."""
    with _lock:
        if module not in _sites:
            _sites[module] = _Site(module, architecture, find)
        _sites[module].users += 1


def release(module: nn.Module) -> None:
    """Give a module back; the last one restores it."""
    with _lock:
        site = _sites[module]
        site.users -= 1
        if site.users == 0:
            del _sites[module]
            site.remove(module)


def _before_attention(find: FindGuest) -> Callable[..., Any]:
    # torch omits kwargs if another thread takes the hook away while it runs; then there is no guest either
    def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> Any:
        guest = find(module)
        if guest is None or kwargs is None:
            return None
        hidden = kwargs["hidden_states"] if "hidden_states" in kwargs else args[0]
        cos, sin = kwargs["position_embeddings"]
        half = cos.shape[-1] // 2
        guest.note(module, hidden, (cos[:, None, :, :half].float(), sin[:, None, :, :half].float()))
        if guest.wants_positions:
            return None
        identity = torch.ones_like(cos[:, :1]), torch.zeros_like(sin[:, :1])
        return args, {**kwargs, "position_embeddings": identity}

    return hook


def _before_projection(
    attention: nn.Module, find: FindGuest, read: Callable[[Guest, Tensor], Tensor]
) -> Callable[..., Any]:
    def hook(module: nn.Module, args: tuple[Tensor, ...]) -> Any:
        guest = find(attention)
        return None if guest is None else (read(guest, args[0]), *args[1:])

    return hook


class _Original:
    """The module with its own config, for attention functions that read the implementation's name from it."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self.config = getattr(module.config, "ragbias_original", module.config)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


def _register(implementation: str, find: FindGuest) -> str:
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
        guest = find(module)
        if guest is None:
            return original(own, query, key, value, mask, **kwargs)

        def plain(query: Tensor, key: Tensor) -> Tensor:
            return original(own, query, key, value, mask, **kwargs)[0]

        return guest.attention(module, query, key, value, plain, kwargs["scaling"], kwargs.get("sliding_window")), None

    ALL_ATTENTION_FUNCTIONS.register(name, attention)
    return name
