"""Approximate orthogonalisation of matrices by Newton-Schulz iterations, batched.

For X = U S Vᵀ each step takes X <- aX + (bA + cA²)X with A = XXᵀ, an odd polynomial of the singular values that
drives them towards one. Five steps of the constant quintic leave them in about [0.7, 1.2], which serves training
as well as exact ones (Jordan et al. 2024, "Muon"); Polar Express chooses each step's polynomial to be the best
for the interval that the last one left (Amsel et al., arXiv 2505.16932).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Iteration:
    """coefficients: (a, b, c) of each step; the input is divided by margin * its Frobenius norm + eps."""

    coefficients: tuple[tuple[float, float, float], ...]
    margin: float
    eps: float


ITERATIONS = {
    "quintic": Iteration(coefficients=((3.4445, -4.7750, 2.0315),) * 5, margin=1.0, eps=1e-7),
    "polar_express": Iteration(
        coefficients=(
            (8.15655, -22.48329, 15.87877),
            (4.04293, -2.80892, 0.50002),
            (3.89167, -2.77248, 0.50606),
            (3.28575, -2.36813, 0.46449),
            (2.34654, -1.70978, 0.42324),
        ),
        margin=1.02,
        eps=1e-6,
    ),
}


def orthogonalize_(matrices: Tensor, iteration: Iteration, dtype: torch.dtype, scale: float = 1.0) -> Tensor:
    """scale * U Vᵀ of each matrix, approximately.

    matrices: batch x m x n, at least fp32; overwritten. The result has their shape and the ``dtype`` of the products.
    A zero matrix gives zeros, and so, nearly, does one whose norm is far below eps.
    """
    norm = torch.linalg.vector_norm(matrices, dim=(-2, -1), keepdim=True)
    if norm.isinf().any():  # the sum of the squares is beyond fp32
        norm = torch.linalg.vector_norm(matrices, dim=(-2, -1), keepdim=True, dtype=torch.float64)
    inverse = 1.0 / (iteration.margin * norm + iteration.eps)
    x = matrices.mul_(inverse.to(matrices.dtype)).to(dtype)
    tall = x.size(-2) > x.size(-1)
    *first, last = iteration.coefficients
    for a, b, c in (*first, [scale * coefficient for coefficient in last]):
        gram = torch.bmm(x.mT, x) if tall else torch.bmm(x, x.mT)  # the smaller of the two
        polynomial = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        factors = (x, polynomial) if tall else (polynomial, x)
        x = torch.baddbmm(x, *factors, beta=a)
    return x
