"""AdamW (Loshchilov and Hutter, arXiv 1711.05101), by torch's own kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor
from torch.optim.adamw import adamw

from asyncpp.optim.torch_step import TorchStepRule

if TYPE_CHECKING:
    from asyncpp.optim.config import AdamWRuleConfig


class AdamW(TorchStepRule):
    """m <- β1 m + (1-β1) g;  v <- β2 v + (1-β2) g²;  u = lr m̂ / (√v̂ + eps)

    with m̂ = m / (1-β1^t), v̂ = v / (1-β2^t). State: 2 copies. Workspace: u; none for ``step``.
    """

    max_elements_on_cpu = 2**22  # one kernel without a workspace gains from few calls: benchmarks/optimizer_step.py

    def __init__(self, config: AdamWRuleConfig, weights: Sequence[Tensor]) -> None:
        super().__init__(config, weights)
        self.betas = config.betas
        self.eps = config.eps
        self.first_moment = self.new_state("first_moment", weights)
        self.second_moment = self.new_state("second_moment", weights)

    def step(self, gradients: Sequence[Tensor], weights: Sequence[Tensor], lr: float) -> None:
        if weights[0].dtype != self.dtype:  # torch's kernel wants weights and state of one dtype
            super().step(gradients, weights, lr)
            return
        self.num_updates += 1
        self.torch_step(list(weights), list(gradients), lr, self.weight_decay)

    def torch_step(self, targets: list[Tensor], gradients: list[Tensor], lr: float, weight_decay: float) -> None:
        fused = self.fused(targets)
        adamw(
            targets,
            gradients,
            self.first_moment,
            self.second_moment,
            [],
            self.counters(targets),
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
