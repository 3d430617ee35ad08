"""SOAP (Vyas et al., arXiv 2409.11321): Adam in the slowly changing eigenbasis of Shampoo's preconditioner."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from asyncpp.optim.base import UpdateRule

if TYPE_CHECKING:
    from asyncpp.optim.config import SOAPConfig

MAX_ELEMENT = 1e14  # larger ones of a gradient are cut: its Gram matrices must stay finite in fp32


class _Side:
    """One side of the preconditioner: a running Gram matrix and the basis of its eigenvectors, batch x size x size."""

    def __init__(self, gram: Tensor, basis: Tensor) -> None:
        self.gram = gram
        self.basis = basis

    def start(self, gram: Tensor, beta: float) -> None:
        self.gram.copy_(gram).mul_(1.0 - beta)
        self.basis.copy_(torch.linalg.eigh(self.gram).eigenvectors.flip(-1))  # the largest eigenvalue first

    def refresh(self) -> Tensor:
        """One step of the power method, on columns sorted by their estimated eigenvalues; returns that order."""
        product = self.gram @ self.basis
        order = (self.basis * product).sum(dim=-2).argsort(dim=-1, descending=True)
        self.basis.copy_(torch.linalg.qr(product.gather(-1, order.unsqueeze(-2).expand_as(product))).Q)
        return order


class SOAP(UpdateRule):
    """With L <- EMA(g gᵀ), R <- EMA(gᵀ g) and their eigenvectors Q_L, Q_R, for m x n matrices:

    m <- EMA(g; β1);  v <- EMA((Q_Lᵀ g Q_R)²; β2);  u = lr √(1-β2^k) / (1-β1^k) Q_L [Q_Lᵀ m Q_R / (√v + eps)] Q_Rᵀ

    after which W decays what u has changed, x <- (1 - lr ω)(x - u), ω the weight decay. The first call sets up the
    bases and changes no weight, so k is one less than the calls. The first moment is kept in the weights' own basis:
    rotating it when it is used is the same as carrying it from basis to basis. Q is brought up to date every
    ``precondition_frequency`` updates, and v reordered with its columns. A side longer than ``max_precondition_dim``
    has the identity.

    State: 2 + 2 (m/n + n/m) copies. Workspace: 2 copies of the group and both its Gram matrices; when the bases are
    brought up to date, 6 of the larger one.
    """

    def __init__(self, config: SOAPConfig, weights: Sequence[Tensor]) -> None:
        super().__init__(config, weights)
        self.betas = config.betas
        self.shampoo_beta = config.shampoo_beta
        self.eps = config.eps
        self.precondition_frequency = config.precondition_frequency
        self.max_precondition_dim = config.max_precondition_dim
        self.shape = weights[0].shape
        self._device = weights[0].device
        self._num_weights = len(weights)
        num_rows, num_columns = self.shape[-2:]
        self.first_moment = self._new("first_moment", num_rows, num_columns)
        self.second_moment = self._new("second_moment", num_rows, num_columns)
        self.left = self._new_side("left", num_rows)
        self.right = self._new_side("right", num_columns)

    def _new(self, name: str, num_rows: int, num_columns: int) -> Tensor:
        """Zeros, matrices x rows x columns; ``state`` has a view a weight under ``name``."""
        shape = (self._num_weights, *self.shape[:-2], num_rows, num_columns)
        zeros = torch.zeros(shape, dtype=self.dtype, device=self._device)
        self.state[name] = list(zeros.unbind())
        return zeros.view(-1, num_rows, num_columns)

    def _new_side(self, name: str, size: int) -> _Side | None:
        if size > self.max_precondition_dim:
            return None
        return _Side(self._new(f"{name}_gram", size, size), self._new(f"{name}_basis", size, size))

    def compute(self, gradients: list[Tensor], weights: Sequence[Tensor], lr: float) -> list[Tensor]:
        gradient = torch.stack(gradients).view_as(self.first_moment).clamp_(-MAX_ELEMENT, MAX_ELEMENT)
        if self.num_updates == 1:
            for side, gram in self._grams(gradient):
                side.start(gram, self.shampoo_beta)
            return list(torch.zeros_like(gradient).view(self._num_weights, *self.shape).unbind())
        update = self._adam(gradient, lr).mul_(self.decay_factor(lr))
        for side, gram in self._grams(gradient):
            side.gram.lerp_(gram, 1.0 - self.shampoo_beta)
        if (self.num_updates - 1) % self.precondition_frequency == 0:
            self._refresh()
        return list(update.view(self._num_weights, *self.shape).unbind())

    def decay_factor(self, lr: float) -> float:
        return 1.0 if self.num_updates <= 1 else super().decay_factor(lr)

    def _adam(self, gradient: Tensor, lr: float) -> Tensor:
        """u before decay, matrices x m x n."""
        beta1, beta2 = self.betas
        self.first_moment.lerp_(gradient, 1.0 - beta1)
        rotated = self._rotate(gradient)
        self.second_moment.mul_(beta2).addcmul_(rotated, rotated, value=1.0 - beta2)
        num_steps = self.num_updates - 1
        step_size = lr * math.sqrt(1.0 - beta2**num_steps) / (1.0 - beta1**num_steps)
        update = self._rotate(self.first_moment).div_(self.second_moment.sqrt().add_(self.eps))
        return self._rotate_back(update).mul_(step_size)

    def _grams(self, gradient: Tensor) -> list[tuple[_Side, Tensor]]:
        """The sides that are not the identity, each with its Gram matrix of this gradient."""
        grams = []
        if self.left is not None:
            grams.append((self.left, gradient @ gradient.mT))
        if self.right is not None:
            grams.append((self.right, gradient.mT @ gradient))
        return grams

    def _refresh(self) -> None:
        """Bring both bases up to date, and the second moment into the order of their columns."""
        if self.left is not None:
            order = self.left.refresh().unsqueeze(-1).expand_as(self.second_moment)
            self.second_moment.copy_(self.second_moment.gather(-2, order))
        if self.right is not None:
            order = self.right.refresh().unsqueeze(-2).expand_as(self.second_moment)
            self.second_moment.copy_(self.second_moment.gather(-1, order))

    def _rotate(self, matrices: Tensor) -> Tensor:
        """Q_Lᵀ X Q_R; new where a side is there, and a copy where none is."""
        if self.left is not None:
            matrices = self.left.basis.mT @ matrices
        if self.right is not None:
            return matrices @ self.right.basis
        return matrices.clone() if self.left is None else matrices

    def _rotate_back(self, matrices: Tensor) -> Tensor:
        """Q_L X Q_Rᵀ."""
        if self.left is not None:
            matrices = self.left.basis @ matrices
        if self.right is not None:
            matrices = matrices @ self.right.basis.mT
        return matrices
