"""Lion (Chen et al., arXiv 2302.06675): the sign of an interpolated momentum."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from asyncpp.optim.base import ElementwiseRule

if TYPE_CHECKING:
    from asyncpp.optim.config import LionConfig


class Lion(ElementwiseRule):
    """u = lr sign(β1 m + (1-β1) g);  then m <- β2 m + (1-β2) g

    State: 1 copy. Workspace: 2 copies of the group.
    """

    def __init__(self, config: LionConfig, weights: Sequence[Tensor]) -> None:
        super().__init__(config, weights)
        self.betas = config.betas
        self.momentum = self.new_vector_state("momentum")

    def update_vector(self, gradient: Tensor, lr: float) -> Tensor:
        direction = self.momentum.mul(self.betas[0]).add_(gradient, alpha=1.0 - self.betas[0])
        self.momentum.mul_(self.betas[1]).add_(gradient, alpha=1.0 - self.betas[1])
        return direction.sign_().mul_(lr)
