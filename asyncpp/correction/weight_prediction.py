"""Weight prediction: differentiate at the weights that the update will meet.

The optimizer moves the weights z; a batch whose update comes tau versions later is differentiated at

    x = z - lambda tau u,        z_{t+1} = W(z_t) - u_t

with tau the part's delay and u the last update that made this version of z (SpecTrain, Chen et al., arXiv 1809.02839;
XPipe, Guan et al., arXiv 1911.04610). What is extrapolated is the optimizer's update itself, not a raw momentum.

After an update that was not late, such as the first one of a run, nothing needs a prediction: x_{t+1} = W(x_t) - u_t,
and z_{t+1} = x_{t+1} + lambda tau u_t is the point that this would have been predicted from. With tau = 1 the sequence
of x is that of error feedback (decay form A) with the same lambda; EF stores u where this stores z.

The versions that a run holds are x; the weights that the optimizer moves are the reading z.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from asyncpp.correction.base import Correction
from asyncpp.correction.config import WeightPredictionConfig

if TYPE_CHECKING:
    from asyncpp.optim.base import UpdateRule


class WeightPrediction(Correction):
    def __init__(self, config: WeightPredictionConfig, weights: list[Tensor], delay: int, num_steps: int) -> None:
        super().__init__(config, weights, delay, num_steps)
        self.horizon = config.strength * delay
        self.z = [weight.clone() for weight in weights]
        self.state["z"] = self.z

    def apply(
        self,
        rule: UpdateRule,
        indices: Sequence[int],
        gradients: list[Tensor],
        weights: list[Tensor],
        lr: float,
        staleness: int,
    ) -> None:
        z = [self.z[index] for index in indices]
        updates = rule.update(gradients, weights, lr)
        decay = rule.decay_factor(lr)
        if staleness == 0:
            torch._foreach_mul_(weights, decay)
            torch._foreach_sub_(weights, updates)
            torch._foreach_copy_(z, weights)
            torch._foreach_add_(z, updates, alpha=self.horizon)
        else:
            torch._foreach_mul_(z, decay)
            torch._foreach_sub_(z, updates)
            torch._foreach_copy_(weights, z)
            torch._foreach_sub_(weights, updates, alpha=self.horizon)

    def z_weights(self, weights: list[Tensor], staleness: int) -> list[Tensor]:
        return list(self.z if staleness > 0 else weights)
