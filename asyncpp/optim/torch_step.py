"""Rules whose arithmetic is torch.optim's own.

torch's step is taken from the origin: applied to zeros with the learning rate negated it leaves u itself, what
torch would subtract from the weights.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from asyncpp.optim.base import UpdateRule

FUSED_DEVICES = ("cpu", "cuda")  # where torch has fused steps for every floating dtype


class TorchStepRule(UpdateRule):
    """Workspace: u."""

    @abstractmethod
    def torch_step(self, targets: list[Tensor], gradients: list[Tensor], lr: float, weight_decay: float) -> None:
        """torch's step on ``targets``, in place; num_updates counts this step."""

    def compute(self, gradients: list[Tensor], weights: Sequence[Tensor], lr: float) -> list[Tensor]:
        updates = [torch.zeros_like(weight, dtype=self.dtype) for weight in weights]
        self.torch_step(updates, gradients, -lr, weight_decay=0.0)
        return updates

    def counters(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The updates before this one, as torch wants them: a scalar a tensor, which it raises before its use."""
        return list(torch.full((len(tensors),), self.num_updates - 1.0, device=tensors[0].device).unbind())

    def fused(self, tensors: Sequence[Tensor]) -> bool:
        return tensors[0].device.type in FUSED_DEVICES
