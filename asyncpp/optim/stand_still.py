"""No step."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from asyncpp.optim.base import UpdateRule


class StandStill(UpdateRule):
    """Takes the place of ``rule`` for a batch whose gradients are not finite: u = 0, while W still applies.

    The rule's own state, its count of updates included, stays as it is.
    """

    def __init__(self, rule: UpdateRule) -> None:
        self.rule = rule
        self.dtype = rule.dtype
        self.num_updates = rule.num_updates

    def compute(self, gradients: list[Tensor], weights: Sequence[Tensor], lr: float) -> list[Tensor]:
        return [torch.zeros_like(weight, dtype=self.dtype) for weight in weights]

    def decay_factor(self, lr: float) -> float:
        return self.rule.decay_factor(lr)
