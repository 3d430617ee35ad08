"""MARS-AdamW, approximate form (Yuan et al., arXiv 2411.10438): AdamW on a variance-reduced gradient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from asyncpp.optim.adamw import AdamW
from asyncpp.optim.base import UpdateRule

if TYPE_CHECKING:
    from asyncpp.optim.config import MARSConfig


class MARS(AdamW):
    """c = g + γ β1/(1-β1) (g - g_prev);  c <- c / max(1, ‖c‖₂), tensor by tensor;  AdamW of c

    g_prev is the gradient of the step before (Algorithm 2; the exact form would differentiate this batch at the last
    weights), and zero at the first. For hidden matrices. State: 3 copies. Workspace: u and c; for ``step`` only c.
    """

    max_elements_on_cpu = UpdateRule.max_elements_on_cpu

    def __init__(self, config: MARSConfig, weights: Sequence[Tensor]) -> None:
        super().__init__(config, weights)
        self.correction_scale = config.gamma * config.betas[0] / (1.0 - config.betas[0])
        self.previous_gradient = self.new_state("previous_gradient", weights)

    def torch_step(self, targets: list[Tensor], gradients: list[Tensor], lr: float, weight_decay: float) -> None:
        reduced = [self._reduced(*pair) for pair in zip(gradients, self.previous_gradient, strict=True)]
        super().torch_step(targets, reduced, lr, weight_decay)

    def _reduced(self, gradient: Tensor, previous: Tensor) -> Tensor:
        """c; the norm in fp64, where no fp32 square over- or underflows. ``previous`` becomes the gradient."""
        reduced = torch.sub(gradient, previous).mul_(self.correction_scale).add_(gradient)
        previous.copy_(gradient)
        norm = torch.linalg.vector_norm(reduced, dtype=torch.float64).clamp_(min=1.0)
        return reduced.div_(norm)
