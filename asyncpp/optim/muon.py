"""Muon (Jordan et al. 2024; at scale: Liu et al., arXiv 2502.16982): momentum, orthogonalised, for hidden matrices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from asyncpp.optim.base import UpdateRule
from asyncpp.optim.newton_schulz import ITERATIONS, orthogonalize_

if TYPE_CHECKING:
    from asyncpp.optim.config import MuonConfig


def update_scale(scale: str, shape: Sequence[int]) -> float:
    """What an orthogonal m x n matrix is multiplied by.

    match_rms: 0.2 √max(m, n), a root mean square of 0.2 as AdamW's updates have, so that its learning rate and
    weight decay carry over (arXiv 2502.16982, equation 4). original: √max(1, m/n), of the first Muon.
    """
    num_rows, num_columns = shape[-2:]
    if scale == "match_rms":
        return 0.2 * math.sqrt(max(num_rows, num_columns))
    return math.sqrt(max(1.0, num_rows / num_columns))


class Muon(UpdateRule):
    """B <- μB + (1-μ)g;  u = lr * scale * orthogonal((1-μ)g + μB), or orthogonal(B) without Nesterov.

    The weights have one shape, (..., m, n); leading dimensions (the experts of a layer) count as more matrices.
    State: 1 copy, the stacked momentum; ``state`` holds views of it. Workspace: 3 copies of the group and 3 of its
    Gram matrices.
    """

    def __init__(self, config: MuonConfig, weights: Sequence[Tensor]) -> None:
        super().__init__(config, weights)
        self.momentum_decay = config.momentum
        self.nesterov = config.nesterov
        self.iteration = ITERATIONS[config.newton_schulz]
        self.products_dtype = getattr(torch, config.newton_schulz_dtype)
        self.scale = update_scale(config.scale, weights[0].shape)
        self.momentum = weights[0].new_zeros((len(weights), *weights[0].shape), dtype=self.dtype)
        self.state["momentum"] = list(self.momentum.unbind())

    def compute(self, gradients: list[Tensor], weights: Sequence[Tensor], lr: float) -> list[Tensor]:
        return list(self.orthogonal_momentum(gradients, lr * self.scale).unbind())

    def orthogonal_momentum(self, gradients: list[Tensor], scale: float) -> Tensor:
        """Advance the momentum and return scale times it orthogonalised: new, shaped like the stacked weights."""
        ahead = torch.empty_like(self.momentum)
        share = self.momentum_decay if self.nesterov else 1.0  # of the momentum, beside the gradient
        for gradient, momentum, out in zip(gradients, self.state["momentum"], ahead, strict=True):
            momentum.lerp_(gradient, 1.0 - self.momentum_decay)
            torch.lerp(gradient, momentum, share, out=out)
        orthogonal = orthogonalize_(ahead.flatten(0, -3), self.iteration, self.products_dtype, scale)
        return orthogonal.to(self.dtype).view_as(self.momentum)
