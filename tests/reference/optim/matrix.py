"""Muon, NorMuon and SOAP as their equations read, for one matrix and no speed. ``step`` is as in elementwise.py."""

from __future__ import annotations

import math

import torch
from reference.optim.elementwise import Twin, ema
from torch import Tensor

QUINTIC = [(3.4445, -4.7750, 2.0315)] * 5
POLAR_EXPRESS = [
    (8.15655, -22.48329, 15.87877),
    (4.04293, -2.80892, 0.50002),
    (3.89167, -2.77248, 0.50606),
    (3.28575, -2.36813, 0.46449),
    (2.34654, -1.70978, 0.42324),
]


def newton_schulz(matrix: Tensor, iteration: str) -> Tensor:
    x = matrix.T if matrix.size(0) > matrix.size(1) else matrix
    if iteration == "quintic":
        coefficients, x = QUINTIC, x / (x.norm() + 1e-7)
    else:
        coefficients, x = POLAR_EXPRESS, x / (1.02 * x.norm() + 1e-6)
    for a, b, c in coefficients:
        gram = x @ x.T
        x = a * x + b * gram @ x + c * gram @ gram @ x
    return x.T if matrix.size(0) > matrix.size(1) else x


class Muon(Twin):
    def start(self, zeros: Tensor) -> None:
        self.b = zeros

    def orthogonal(self, g: Tensor) -> Tensor:
        self.b = ema(self.b, g, self.c.momentum)
        return newton_schulz(ema(g, self.b, 1 - self.c.momentum) if self.c.nesterov else self.b, self.c.newton_schulz)

    def scale(self, x: Tensor) -> float:
        num_rows, num_columns = x.shape
        if self.c.scale == "original":
            return max(1, num_rows / num_columns) ** 0.5
        return 0.2 * max(num_rows, num_columns) ** 0.5

    def equation(self, x: Tensor, g: Tensor, lr: float) -> Tensor:
        return (1 - lr * self.c.weight_decay) * x - lr * self.scale(x) * self.orthogonal(g)


class NorMuon(Muon):
    def start(self, zeros: Tensor) -> None:
        super().start(zeros)
        self.v = zeros[:, :1]

    def orthogonal(self, g: Tensor) -> Tensor:
        o = super().orthogonal(g)
        self.v = ema(self.v, (o**2).mean(dim=1, keepdim=True), self.c.beta2)
        normalized = o / (self.v.sqrt() + 1e-10)
        return normalized * o.norm() / (normalized.norm() + 1e-10)


class SOAP(Twin):
    """The first moment is carried in the eigenbasis, out of the old one and into the new one at every step."""

    def start(self, zeros: Tensor) -> None:
        num_rows, num_columns = zeros.shape
        self.m = self.v = zeros
        self.left = zeros.new_zeros(num_rows, num_rows)
        self.right = zeros.new_zeros(num_columns, num_columns)
        self.q_left = torch.eye(num_rows, dtype=zeros.dtype)
        self.q_right = torch.eye(num_columns, dtype=zeros.dtype)

    def equation(self, x: Tensor, g: Tensor, lr: float) -> Tensor:
        c, k = self.c, self.t - 1
        updated = x
        if k > 0:
            rotated = self.q_left.T @ g @ self.q_right
            self.m = ema(self.m, rotated, c.betas[0])
            self.v = ema(self.v, rotated**2, c.betas[1])
            correction = math.sqrt(1 - c.betas[1] ** k) / (1 - c.betas[0] ** k)
            step = self.q_left @ (self.m / (self.v.sqrt() + c.eps)) @ self.q_right.T
            updated = (1 - lr * c.weight_decay) * (x - lr * correction * step)
        momentum = self.q_left @ self.m @ self.q_right.T
        self.left = ema(self.left, g @ g.T, c.shampoo_beta)
        self.right = ema(self.right, g.T @ g, c.shampoo_beta)
        if k == 0:
            self.q_left, self.q_right = self.eigenvectors(self.left), self.eigenvectors(self.right)
        elif k % c.precondition_frequency == 0:
            left_order, self.q_left = self.power_step(self.left, self.q_left)
            right_order, self.q_right = self.power_step(self.right, self.q_right)
            self.v = self.v[left_order][:, right_order]
        self.m = self.q_left.T @ momentum @ self.q_right
        return updated

    def eigenvectors(self, gram: Tensor) -> Tensor:
        if len(gram) > self.c.max_precondition_dim:
            return torch.eye(len(gram), dtype=gram.dtype)
        return torch.linalg.eigh(gram).eigenvectors.flip(1)

    def power_step(self, gram: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
        if len(gram) > self.c.max_precondition_dim:
            return torch.arange(len(gram)), q
        order = (q.T @ gram @ q).diagonal().argsort(descending=True)
        return order, torch.linalg.qr(gram @ q[:, order]).Q
