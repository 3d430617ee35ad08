"""DC-ASGD: carry a stale gradient to the newest weights by a first-order term (Zheng et al., arXiv 1609.08326).

    g~ = g + lambda g ⊙ g ⊙ (x_now - x_stale)

where g ⊙ g stands for the diagonal of the Hessian. Adaptive: lambda_0 / sqrt(MS + eps) takes lambda's place, with
MS <- ema MS + (1 - ema) g ⊙ g.
"""

from __future__ import annotations

import torch
from torch import Tensor

from asyncpp.correction.base import Correction
from asyncpp.correction.config import DelayCompensationConfig


class DelayCompensation(Correction):
    """State: none, or 1 copy where adaptive."""

    def __init__(self, config: DelayCompensationConfig, weights: list[Tensor], delay: int, num_steps: int) -> None:
        super().__init__(config, weights, delay, num_steps)
        self.strength = config.strength
        self.ema = config.ema
        self.eps = config.eps
        self.mean_square: list[Tensor] | None = None
        if config.adaptive:
            self.mean_square = [torch.zeros_like(weight) for weight in weights]
            self.state["mean_square"] = self.mean_square

    def correct_gradients(self, gradients: list[Tensor], newest: list[Tensor], stale: list[Tensor]) -> list[Tensor]:
        squares = torch._foreach_mul(gradients, gradients)
        corrections = torch._foreach_sub(list(newest), list(stale))
        torch._foreach_mul_(corrections, squares)
        if self.mean_square is not None:
            torch._foreach_mul_(self.mean_square, self.ema)
            torch._foreach_add_(self.mean_square, squares, alpha=1.0 - self.ema)
            roots = torch._foreach_add(self.mean_square, self.eps)
            torch._foreach_sqrt_(roots)
            torch._foreach_div_(corrections, roots)
        return list(torch._foreach_add(gradients, corrections, alpha=self.strength))
