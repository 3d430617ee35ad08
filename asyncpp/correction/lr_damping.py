"""Learning-rate damping of PipeMare (Yang et al., arXiv 1910.05124): smaller steps while a delay hurts most.

    lr_k = lr / tau^(strength (1 - min(k / K, 1)))

with tau the delay of the part in updates and K the horizon in steps. At tau = 1, that is under PipeDream-2BW, the
factor is 1: there it changes nothing.
"""

from __future__ import annotations

from torch import Tensor

from asyncpp.correction.base import Correction
from asyncpp.correction.config import LRDampingConfig


class LRDamping(Correction):
    def __init__(self, config: LRDampingConfig, weights: list[Tensor], delay: int, num_steps: int) -> None:
        super().__init__(config, weights, delay, num_steps)
        self.strength = config.strength
        self.horizon = config.horizon_fraction * num_steps

    def lr_factor(self, step: int, staleness: int) -> float:
        exponent = self.strength * (1.0 - min(step / self.horizon, 1.0))
        return max(staleness, 1) ** -exponent
