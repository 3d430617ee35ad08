"""Rotary positions (Su et al., arXiv 2104.09864), in the layout of Llama's public checkpoints.

Channel i of a head is paired with channel i + head_dim/2, and the pair is turned by the angle
position * theta^(-2i / head_dim).
"""

from __future__ import annotations

import torch
from torch import Tensor


def rotate(heads: Tensor, tables: tuple[Tensor, Tensor]) -> Tensor:
    """Turn every head, (B, heads, S, head_dim), by its position's angles."""
    cosine, signed_sine = tables
    half = heads.shape[-1] // 2
    return torch.addcmul(heads * cosine, heads.roll(half, -1), signed_sine)


class RotaryTables:
    """Cosines and sines of all positions, kept for each (length, device, dtype) that was asked for.

    Not parameters nor buffers: they follow from the config, so no checkpoint and no weight version has them.
    """

    def __init__(self, head_dim: int, theta: float) -> None:
        self.head_dim = head_dim
        self.theta = theta
        self._cache: dict[tuple[int, torch.device, torch.dtype], tuple[Tensor, Tensor]] = {}

    def tables(self, num_positions: int, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """(cosine, signed sine), each (num_positions, head_dim); the sine's first half is negated for ``rotate``."""
        key = (num_positions, device, dtype)
        if key not in self._cache:
            with torch.inference_mode(False):  # tables first asked for by an evaluation must serve a backward later
                self._cache[key] = self._compute(num_positions, device, dtype)
        return self._cache[key]

    def _compute(self, num_positions: int, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        # On the CPU in fp64: a product of position and frequency in fp32 is off by 1e-4 at position 2000.
        exponents = torch.arange(0, self.head_dim, 2, dtype=torch.float64, device="cpu") / self.head_dim
        positions = torch.arange(num_positions, dtype=torch.float64, device="cpu")
        angles = torch.outer(positions, self.theta**-exponents)
        cosine, sine = angles.cos(), angles.sin()
        return (
            torch.cat((cosine, cosine), -1).to(device, dtype),
            torch.cat((-sine, sine), -1).to(device, dtype),
        )
