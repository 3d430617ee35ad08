"""NAdam (Dozat 2016), by torch's own arithmetic; with β1 = 0.99 the look-ahead of asynchronous Nesterov methods."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.optim.nadam import nadam

from asyncpp.optim.torch_step import TorchStepRule

if TYPE_CHECKING:
    from asyncpp.optim.config import NAdamConfig


class NAdam(TorchStepRule):
    """u = lr [(1-μ_t) g / (1-Π_t) + μ_{t+1} m / (1-Π_t μ_{t+1})] / (√v̂ + eps)

    with AdamW's m and v, μ_t = β1 (1 - 0.96^(tψ) / 2) and Π_t = μ_1 ... μ_t. State: 2 copies and Π, a scalar a tensor.
    Workspace: u and 3 times its largest tensor.
    """

    def __init__(self, config: NAdamConfig, weights: Sequence[Tensor]) -> None:
        super().__init__(config, weights)
        self.betas = config.betas
        self.eps = config.eps
        self.momentum_decay = config.momentum_decay
        self.first_moment = self.new_state("first_moment", weights)
        self.second_moment = self.new_state("second_moment", weights)
        self.mu_product = [torch.ones((), device=weight.device) for weight in weights]  # fp32, as in torch
        self.state["mu_product"] = self.mu_product

    def torch_step(self, targets: list[Tensor], gradients: list[Tensor], lr: float, weight_decay: float) -> None:
        nadam(
            targets,
            gradients,
            self.first_moment,
            self.second_moment,
            self.mu_product,
            self.counters(targets),
            decoupled_weight_decay=True,
            beta1=self.betas[0],
            beta2=self.betas[1],
            lr=lr,
            weight_decay=weight_decay,
            momentum_decay=self.momentum_decay,
            eps=self.eps,
        )
