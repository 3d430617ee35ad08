"""AdamW (Loshchilov and Hutter, arXiv 1711.05101), by torch's own kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.optim.adamw import adamw

from asyncpp.optim.base import UpdateRule

if TYPE_CHECKING:
    from asyncpp.optim.config import AdamWRuleConfig

FUSED_DEVICES = ("cpu", "cuda")  # where torch has a fused AdamW for every floating dtype


class AdamW(UpdateRule):
    """m <- β1 m + (1-β1) g;  v <- β2 v + (1-β2) g²;  u = lr m̂ / (√v̂ + eps), with m̂, v̂ free of the zero start's bias.

    torch's step is taken from the origin: applied to zeros with the learning rate negated, it leaves u itself,
    bit for bit what torch subtracts from the weights. State: 2 copies. Workspace: u.
    """

    def __init__(self, config: AdamWRuleConfig, weights: Sequence[Tensor]) -> None:
        super().__init__(config, weights)
        self.betas = config.betas
        self.eps = config.eps
        self.first_moment = self.new_state("first_moment", weights)
        self.second_moment = self.new_state("second_moment", weights)

    def update(self, gradients: Sequence[Tensor], weights: Sequence[Tensor], lr: float) -> list[Tensor]:
        updates = [torch.zeros_like(weight) for weight in weights]
        self._torch_step(updates, gradients, lr=-lr, weight_decay=0.0)
        return updates

    def step(self, gradients: Sequence[Tensor], weights: Sequence[Tensor], lr: float) -> None:
        self._torch_step(weights, gradients, lr=lr, weight_decay=self.weight_decay)

    def _torch_step(
        self, targets: Sequence[Tensor], gradients: Sequence[Tensor], lr: float, weight_decay: float
    ) -> None:
        """torch's AdamW step on ``targets``, in place."""
        # A counter a tensor, which torch raises by one before it uses it. It holds num_updates and nothing else.
        counters = torch.full((len(targets),), float(self.num_updates), device=targets[0].device)
        fused = targets[0].device.type in FUSED_DEVICES
        adamw(
            list(targets),
            list(gradients),
            self.first_moment,
            self.second_moment,
            [],
            list(counters.unbind()),
            foreach=not fused,
            fused=fused,
            amsgrad=False,
            beta1=self.betas[0],
            beta2=self.betas[1],
            lr=lr,
            weight_decay=weight_decay,
            eps=self.eps,
            maximize=False,
        )
        self.num_updates += 1

    def state_copies(self, shape: Sequence[int]) -> float:
        return 2.0
