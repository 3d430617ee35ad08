"""NorMuon (Li et al., arXiv 2510.05491): Muon whose rows are brought to one size by their own second moment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from asyncpp.optim.muon import Muon

if TYPE_CHECKING:
    from asyncpp.optim.config import NorMuonConfig

EPS = 1e-10  # of the authors' code


class NorMuon(Muon):
    """O = Muon's orthogonal momentum;  v <- EMA(row mean of O²; β2), from zero, its bias left as it is

    O' = O / (√v + eps), brought back to the norm of O;  u = lr * scale * O'. State: 1 + 1/n copies.
    Workspace: as Muon's.
    """

    def __init__(self, config: NorMuonConfig, weights: Sequence[Tensor]) -> None:
        super().__init__(config, weights)
        self.beta2 = config.beta2
        self.second_moment = self.momentum.new_zeros((*self.momentum.shape[:-1], 1))
        self.state["second_moment"] = list(self.second_moment.unbind())

    def compute(self, gradients: list[Tensor], weights: Sequence[Tensor], lr: float) -> list[Tensor]:
        orthogonal = self.orthogonal_momentum(gradients, scale=1.0)
        self.second_moment.lerp_(orthogonal.square().mean(dim=-1, keepdim=True), 1.0 - self.beta2)
        norm = _frobenius_norm(orthogonal)
        normalized = orthogonal.div_(self.second_moment.sqrt().add_(EPS))
        size = lr * self.scale * norm / (_frobenius_norm(normalized) + EPS)
        return list(normalized.mul_(size).unbind())


def _frobenius_norm(matrices: Tensor) -> Tensor:
    return torch.linalg.vector_norm(matrices, dim=(-2, -1), keepdim=True)
