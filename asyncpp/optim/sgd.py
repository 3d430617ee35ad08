"""Stochastic gradient descent with momentum, by torch's own kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.optim.sgd import sgd

from asyncpp.optim.torch_step import TorchStepRule

if TYPE_CHECKING:
    from asyncpp.optim.config import SGDConfig


class SGD(TorchStepRule):
    """g <- g + ω x;  b <- μ b + g;  u = lr b, or lr (g + μ b) with Nesterov

    Weight decay ω is coupled: a part of the gradient, so of u too, and W is the identity. State: 1 copy, or none
    without momentum. Workspace: u, and with weight decay the gradient.
    """

    def __init__(self, config: SGDConfig, weights: Sequence[Tensor]) -> None:
        super().__init__(config, weights)
        self.momentum_decay = config.momentum
        self.nesterov = config.nesterov
        if self.momentum_decay > 0.0:
            self.new_state("momentum", weights)

    def compute(self, gradients: list[Tensor], weights: Sequence[Tensor], lr: float) -> list[Tensor]:
        if self.weight_decay > 0.0:
            pairs = zip(gradients, weights, strict=True)
            gradients = [torch.add(gradient, weight, alpha=self.weight_decay) for gradient, weight in pairs]
        return super().compute(gradients, weights, lr)

    def decay_factor(self, lr: float) -> float:
        return 1.0

    def torch_step(self, targets: list[Tensor], gradients: list[Tensor], lr: float, weight_decay: float) -> None:
        buffers: list[Tensor | None] = [None] * len(targets)
        if self.momentum_decay > 0.0:
            buffers = list(self.state["momentum"])
        fused = self.fused(targets)
        sgd(
            targets,
            gradients,
            buffers,
            foreach=not fused,
            fused=fused,
            weight_decay=weight_decay,
            momentum=self.momentum_decay,
            lr=lr,
            dampening=0.0,
            nesterov=self.nesterov,
            maximize=False,
        )
