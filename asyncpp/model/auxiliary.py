"""What a part's layers report beside its output: the routers' loss and the experts' load."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass
class Auxiliary:
    """Passed to a part's forward, which fills it. A dense part leaves it empty; an evaluation passes none.

    losses: one a mixture layer, 0-dim and differentiable, already with its coefficient and as its share of the mean
    over the whole model's layers. So the sum over all parts is the model's auxiliary loss, whatever the split, and
    the mean over micro-batches of equal size is the batch's. It is added to the cross-entropy with weight one:
    whoever scales a micro-batch's cross-entropy by 1/m scales these likewise, in the part where they arise.
    expert_loads: one a mixture layer, int64 (experts): how many choices went to each expert.
    """

    losses: list[Tensor] = field(default_factory=list)
    expert_loads: list[Tensor] = field(default_factory=list)

    def add(self, loss: Tensor, expert_load: Tensor) -> None:
        self.losses.append(loss)
        self.expert_loads.append(expert_load)

    @property
    def loss(self) -> Tensor | None:
        """The part's auxiliary loss, 0-dim, or None where no layer has one."""
        return torch.stack(self.losses).sum() if self.losses else None

    @property
    def expert_load(self) -> Tensor | None:
        """int64 (mixture layers of the part, experts), or None. Loads of micro-batches and replicas add up."""
        return torch.stack(self.expert_loads) if self.expert_loads else None


def load_metrics(expert_load: Tensor) -> dict[str, float]:
    """What a run records of int64 (layers, experts) choices.

    moe/load_max_over_mean: of the layer where the busiest expert has most (1 is balanced).
    moe/load_entropy_fraction: entropy of a layer's load over that of a uniform one, mean over layers (1 is balanced).
    moe/idle_experts_fraction: experts that no token chose. moe/dropped_tokens: 0, as experts have no capacity.
    """
    load = expert_load.double()
    shares = load / load.sum(1, keepdim=True)
    num_experts = load.shape[1]
    entropies = torch.special.entr(shares).sum(1)
    uniform = torch.tensor(num_experts).double().log()
    return {
        "moe/load_max_over_mean": (shares.amax() * num_experts).item(),
        "moe/load_entropy_fraction": (entropies.mean() / uniform).item() if num_experts > 1 else 1.0,
        "moe/idle_experts_fraction": (load == 0).double().mean().item(),
        "moe/dropped_tokens": 0.0,
    }
