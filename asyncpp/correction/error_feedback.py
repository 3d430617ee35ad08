"""Error feedback (EF): add what the last delayed step got wrong to this one.

u_t is the optimizer's update from batch t, which was differentiated one version too early. The error of step t-1,
u_t - u_{t-1}, is what should have been applied then minus what was. With strength lambda:

    x_{t+1} = W(x_t) - u_t - lambda (u_t - u_{t-1})

(arXiv 2606.30634; lambda = 1 there.) Only a delayed update has an error: an update with staleness 0, such as the
first one of every run, is applied as it is and only remembered. So EF changes nothing in a synchronous run, up to
the rounding of form C. Batches 0 and 1 are both differentiated at x_0, and with lambda = 1 u_1 takes the place of u_0.
A skipped batch has u_t = 0, and the rule still gives back lambda u_{t-1}. Under a longer delay the rule is the same:
the error of one step is fed back. A delay that varies from batch to batch has no such error.

Decoupled weight decay W(x) = d x leaves three forms:

    A   x_{t+1} = d x_t - (1 + lambda) u_t + lambda d u_{t-1}     the decay acts on z; at a delay of one exactly
                                                                  weight prediction
    B   x_{t+1} = d x_t - (1 + lambda) u_t + lambda u_{t-1}       the decay acts on x, outside EF
    C   the whole change, delta_t = u_t + (1 - d) x_t, takes the place of u_t and the decay is inside EF

The weights can also be read at z_t = x_t + lambda u_{t-1}, the point that x_t predicts from.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from asyncpp.correction.base import Correction
from asyncpp.correction.config import ErrorFeedbackConfig

if TYPE_CHECKING:
    from asyncpp.optim.base import UpdateRule


class ErrorFeedback(Correction):
    def __init__(self, config: ErrorFeedbackConfig, weights: list[Tensor], delay: int, num_steps: int) -> None:
        super().__init__(config, weights, delay, num_steps)
        self.strength = config.strength
        self.decay_form = config.decay_form
        self.previous = [torch.zeros_like(weight) for weight in weights]
        self.state["previous_update"] = self.previous

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
        decay = rule.decay_factor(lr)
        if self.decay_form == "C":
            torch._foreach_add_(updates, weights, alpha=1.0 - decay)
            decay = 1.0
        previous = [self.previous[index] for index in indices]
        torch._foreach_mul_(weights, decay)
        if staleness == 0:
            torch._foreach_sub_(weights, updates)
        else:
            carry = decay if self.decay_form == "A" else 1.0
            torch._foreach_add_(weights, updates, alpha=-(1.0 + self.strength))
            torch._foreach_add_(weights, previous, alpha=self.strength * carry)
        torch._foreach_copy_(previous, updates)

    def z_weights(self, weights: list[Tensor], staleness: int) -> list[Tensor]:
        ahead = self.strength if staleness > 0 else 0.0
        return list(torch._foreach_add(list(weights), self.previous, alpha=ahead))
