"""Rotary position embedding at positions of our choice, with the model's own frequencies.

RoPE depends on differences of positions only: ``<R(p) q, R(s + t) k> = <R(p - s) q, R(t) k>``. A key is therefore
rotated once, by its offset ``t`` inside its segment; moving the segment to start at ``s`` rotates the query by ``-s``.

Source: Su et al., RoFormer, arXiv 2104.09864.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the pairs ``(x[i], x[i + d/2])``, in float32, and return ``x.dtype``.

    Args:
        x: ``[..., d]``.
        cos, sin: ``[..., d/2]``, broadcast over the leading dimensions of ``x``.
    """
    left, right = x.float().chunk(2, dim=-1)
    return torch.cat((left * cos - right * sin, right * cos + left * sin), dim=-1).to(x.dtype)


class Rotary:
    """cos and sin of a model's rotary module for positions 0, 1, ..., kept in float32 and grown on demand.

    Args:
        module: the model's rotary embedding; called with position ids, so its frequencies and scaling are the model's.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._tables: dict[torch.device, tuple[Tensor, Tensor]] = {}

    def table(self, length: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """``(cos, sin)``, each ``[>= length, d/2]`` in float32."""
        cos, sin = self._tables.get(device, (torch.empty(0), torch.empty(0)))
        if cos.shape[0] < length:
            size = max(length, 2 * cos.shape[0], 256)
            positions = torch.arange(size, device=device)[None]
            full_cos, full_sin = self._module(torch.zeros(1, 1, 1, device=device), position_ids=positions)
            half = full_cos.shape[-1] // 2
            cos, sin = full_cos[0, :, :half].contiguous(), full_sin[0, :, :half].contiguous()
            self._tables[device] = (cos, sin)
        return cos, sin

    def __call__(self, x: Tensor, positions: Tensor) -> Tensor:
        """``R(positions) x``.

        Args:
            x: ``[..., d]``.
            positions: int64, non-negative, broadcast against ``x.shape[:-1]``.
        """
        if positions.numel() == 0:
            return x
        cos, sin = self.table(int(positions.max()) + 1, x.device)
        return rotate(x, cos[positions], sin[positions])
