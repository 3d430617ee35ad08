"""Sync start: the first K steps are synchronous, and the delay sets in after them (a baseline of arXiv 2606.30634).

Optimizer state carries over. With a positive strength, error feedback corrects the delayed steps, and finds the last
synchronous update u_{K-1} as its u_{t-1}.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from asyncpp.correction.base import Correction
from asyncpp.correction.config import SyncStartConfig
from asyncpp.correction.error_feedback import ErrorFeedback

if TYPE_CHECKING:
    from asyncpp.optim.base import UpdateRule


class SyncStart(Correction):
    """State: none, or that of error feedback where the strength is positive."""

    def __init__(self, config: SyncStartConfig, weights: list[Tensor], delay: int, num_steps: int) -> None:
        super().__init__(config, weights, delay, num_steps)
        self.num_sync_steps = config.num_sync_steps(num_steps)
        kind = ErrorFeedback if config.strength > 0.0 else Correction
        self.update_correction = kind(config, weights, delay, num_steps)
        self.state = self.update_correction.state

    def delay(self, step: int, delay: int) -> int:
        return 0 if step < self.num_sync_steps else delay

    def apply(
        self,
        rule: UpdateRule,
        indices: Sequence[int],
        gradients: list[Tensor],
        weights: list[Tensor],
        lr: float,
        staleness: int,
    ) -> None:
        self.update_correction.apply(rule, indices, gradients, weights, lr, staleness)

    def z_weights(self, weights: list[Tensor], staleness: int) -> list[Tensor] | None:
        return self.update_correction.z_weights(weights, staleness)
