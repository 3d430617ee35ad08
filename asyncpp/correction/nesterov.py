"""Nesterov look-ahead around the optimizer's update, as a delay correction (Ajanthan et al., arXiv 2505.01099).

The weights keep a velocity, and gradients are taken ahead of the weights along it; the new term is discounted by
1 - gamma, so that a constant u moves the weights as fast as without the correction:

    v_{t+1} = gamma v_t - (1 - gamma) u_t        x_{t+1} = x_t + v_{t+1}        y_{t+1} = x_{t+1} + gamma v_{t+1}

A run's versions are the look-ahead points y, as in the usual implementations of Nesterov's method:

    y_{t+1} = W(y_t) - (1 - gamma) u_t + gamma v_{t+1}

and the reading z is x = y - gamma v. The paper has NAdam's adaptive step inside (``optimizer=nadam
optimizer.betas=[0.99,0.999] correction=none`` is its method); here any optimizer's u takes that place, so an optimizer
with a momentum of its own then has two.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from asyncpp.correction.base import Correction
from asyncpp.correction.config import NesterovConfig

if TYPE_CHECKING:
    from asyncpp.optim.base import UpdateRule


class Nesterov(Correction):
    def __init__(self, config: NesterovConfig, weights: list[Tensor], delay: int, num_steps: int) -> None:
        super().__init__(config, weights, delay, num_steps)
        self.gamma = config.strength
        self.velocity = [torch.zeros_like(weight) for weight in weights]
        self.state["velocity"] = self.velocity

    def apply(
        self,
        rule: UpdateRule,
        indices: Sequence[int],
        gradients: list[Tensor],
        weights: list[Tensor],
        lr: float,
        staleness: int,
    ) -> None:
        updates = rule.update(gradients, weights, lr)
        velocity = [self.velocity[index] for index in indices]
        torch._foreach_mul_(velocity, self.gamma)
        torch._foreach_sub_(velocity, updates, alpha=1.0 - self.gamma)
        torch._foreach_mul_(weights, rule.decay_factor(lr))
        torch._foreach_sub_(weights, updates, alpha=1.0 - self.gamma)
        torch._foreach_add_(weights, velocity, alpha=self.gamma)

    def z_weights(self, weights: list[Tensor], staleness: int) -> list[Tensor]:
        return list(torch._foreach_sub(list(weights), self.velocity, alpha=self.gamma))
