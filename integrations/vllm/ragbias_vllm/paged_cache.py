"""Read and write keys and values in vLLM's paged cache, whatever the layout of its blocks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ragbias.errors import UnsupportedModelError

BASE = 128  # integers below this are exact in every dtype


class PagedLayer:
    """The paged cache of one attention layer.

    Args:
        layer: vLLM's attention layer.
        cache: keys and values ``[blocks, G, block size, 2 d]`` for ``G`` KV heads of size ``d``. The order of numbers
            within a block depends on the backend.
    """

    def __init__(self, layer: Any, cache: Tensor) -> None:
        self.layer, self.cache = layer, cache
        self.heads, self.block_size = cache.shape[1], cache.shape[2]
        self.head_dim = cache.shape[3] // 2

    def write(self, keys: Tensor, values: Tensor, slots: Tensor) -> None:
        """Write keys and values ``[G, T, d]`` to slots, int64 ``[T]``."""
        keys, values = (part.transpose(0, 1).contiguous().to(self.cache.device) for part in (keys, values))
        self.layer.impl.do_kv_cache_update(self.layer, keys, values, self.cache, slots.to(self.cache.device))

    def read(self, blocks: Tensor, begin: int, end: int, layout: Tensor) -> tuple[Tensor, Tensor]:
        """Return keys and values ``[G, end - begin, d]`` of a request. ``layout`` is the result of ``layout()``."""
        first = begin // self.block_size
        last = -(-end // self.block_size)
        data = self.cache[blocks[first:last].to(self.cache.device)].flatten(2)
        ordered = data[..., layout.flatten().to(data.device)].unflatten(-1, layout.shape)
        tokens = ordered.transpose(0, 1).flatten(1, 2)
        offset = first * self.block_size
        tokens = tokens[:, begin - offset : end - offset]
        return tokens[:, :, 0].cpu(), tokens[:, :, 1].cpu()

    def layout(self) -> Tensor:
        """Return the indices of keys and values in a flattened block of one head, int64 ``[block size, 2, d]``.

        Backends use different layouts. To find the layout, the backend writes numbers into a copy of a block.
        """
        marks = torch.arange(self.block_size * 2 * self.head_dim).view(self.block_size, 2, self.head_dim)
        scratch = PagedLayer(self.layer, self.cache[:1].clone())
        found = torch.zeros(marks.numel(), dtype=torch.int64)
        scale = 1
        while scale < marks.numel():
            digits = (marks // scale % BASE).to(self.cache.dtype).expand(self.heads, -1, -1, -1)
            scratch.write(digits[:, :, 0], digits[:, :, 1], torch.arange(self.block_size))
            found += scratch.cache[0, 0].flatten().cpu().long() * scale
            scale *= BASE
        layout = found.argsort()
        if not torch.equal(found[layout], marks.flatten()):
            raise UnsupportedModelError(f"{type(self.layer.impl).__name__} has no layout that can be read")
        return layout.view(marks.shape)
