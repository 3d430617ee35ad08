"""AdamW with only one of its moments delayed: the ablation that tells which of them suffers from the delay."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from asyncpp.optim.base import ElementwiseRule

if TYPE_CHECKING:
    from asyncpp.optim.config import AdamWSplitConfig


class AdamWSplit(ElementwiseRule):
    """AdamW whose ``delayed_moment`` sees the delayed gradient and whose other one sees the fresh gradient.

    Both gradients are of the same batch, at the weights of its delayed version and at the newest weights. Without a
    delay they are equal, and so is this to AdamW. State: 2 copies. Workspace: 3 copies of the group.
    """

    def __init__(self, config: AdamWSplitConfig, weights: Sequence[Tensor]) -> None:
        super().__init__(config, weights)
        self.betas = config.betas
        self.eps = config.eps
        self.delayed_moment = config.delayed_moment
        self.first_moment = self.new_vector_state("first_moment")
        self.second_moment = self.new_vector_state("second_moment")
        self._observed = False

    def observe_fresh_gradients(self, gradients: Sequence[Tensor]) -> None:
        """Advance the moment that is not delayed."""
        fresh = self.vector(gradients).to(self.dtype)
        self._advance("second" if self.delayed_moment == "first" else "first", fresh)
        self._observed = True

    def update_vector(self, gradient: Tensor, lr: float) -> Tensor:
        if not self._observed:
            raise RuntimeError("AdamWSplit.update wants the batch's fresh gradients first: observe_fresh_gradients")
        self._observed = False
        self._advance(self.delayed_moment, gradient)
        first_correction = 1.0 - self.betas[0] ** self.num_updates
        second_correction = 1.0 - self.betas[1] ** self.num_updates
        denominator = self.second_moment.sqrt().div_(math.sqrt(second_correction)).add_(self.eps)
        return self.first_moment.mul(lr / first_correction).div_(denominator)

    def _advance(self, moment: str, gradient: Tensor) -> None:
        if moment == "first":
            self.first_moment.lerp_(gradient, 1.0 - self.betas[0])
        else:
            self.second_moment.mul_(self.betas[1]).addcmul_(gradient, gradient, value=1.0 - self.betas[1])
