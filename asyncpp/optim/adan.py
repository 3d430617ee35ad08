"""Adan (Xie et al., arXiv 2208.06677): Adam with Nesterov momentum estimated from gradient differences."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from asyncpp.optim.base import ElementwiseRule

if TYPE_CHECKING:
    from asyncpp.optim.config import AdanConfig


class Adan(ElementwiseRule):
    """d = g - g_prev, zero at the first step;  m <- EMA(g; β1);  v <- EMA(d; β2);  n <- EMA((g + β2 d)²; β3)

    Δ = lr [m / (1-β1^t) + β2 v / (1-β2^t)] / (√(n / (1-β3^t)) + eps)

    The betas are decay rates, as in the authors' code; the paper's are one minus them. Weight decay ω is proximal,
    x <- (x - Δ) / (1 + lr ω), as in Algorithm 1, or decoupled as in AdamW. State: 4 copies. Workspace: 4 copies of
    the group.
    """

    def __init__(self, config: AdanConfig, weights: Sequence[Tensor]) -> None:
        super().__init__(config, weights)
        self.betas = config.betas
        self.eps = config.eps
        self.proximal_decay = config.proximal_decay
        self.first_moment = self.new_vector_state("first_moment")
        self.difference_moment = self.new_vector_state("difference_moment")
        self.second_moment = self.new_vector_state("second_moment")
        self.previous_gradient = self.new_vector_state("previous_gradient")

    def update_vector(self, gradient: Tensor, lr: float) -> Tensor:
        if self.num_updates == 1:
            self.previous_gradient.copy_(gradient)
        beta1, beta2, beta3 = self.betas
        difference = gradient - self.previous_gradient
        self.previous_gradient.copy_(gradient)
        self.first_moment.lerp_(gradient, 1.0 - beta1)
        self.difference_moment.lerp_(difference, 1.0 - beta2)
        ahead = gradient.add_(difference, alpha=beta2)
        self.second_moment.mul_(beta3).addcmul_(ahead, ahead, value=1.0 - beta3)

        corrections = [1.0 - beta**self.num_updates for beta in self.betas]
        denominator = self.second_moment.sqrt().div_(math.sqrt(corrections[2])).add_(self.eps)
        update = self.first_moment.mul(lr / corrections[0])
        update.add_(self.difference_moment, alpha=lr * beta2 / corrections[1]).div_(denominator)
        return update.mul_(self.decay_factor(lr)) if self.proximal_decay else update

    def decay_factor(self, lr: float) -> float:
        return 1.0 / (1.0 + lr * self.weight_decay) if self.proximal_decay else super().decay_factor(lr)
