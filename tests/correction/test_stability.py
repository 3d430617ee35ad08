"""Error feedback on the quadratic h x² / 2 by SGD with an averaged momentum: where it converges, what it sums to.

The brackets are the limits of lr * h at which the linear recursion's largest root leaves the unit circle.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from asyncpp.correction.base import Correction
from asyncpp.correction.config import CorrectionConfig, ErrorFeedbackConfig
from asyncpp.correction.error_feedback import ErrorFeedback
from asyncpp.optim.base import UpdateRule
from asyncpp.optim.config import SGDConfig
from asyncpp.pipeline.delay import version_of
from asyncpp.pipeline.weights import WeightVersions


class AveragedMomentum(UpdateRule):
    """m <- beta m + (1 - beta) g;  u = lr m."""

    def __init__(self, weights, beta):
        super().__init__(SGDConfig(lr=1.0, weight_decay=0.0), weights)
        self.beta = beta
        (self.momentum,) = self.new_state("momentum", weights)

    def compute(self, gradients, weights, lr):
        self.momentum.mul_(self.beta).add_(gradients[0], alpha=1.0 - self.beta)
        return [lr * self.momentum]


def final_size(lr: float, beta: float, delay: int, corrected: bool, num_batches: int = 3000) -> float:
    """|x| after many steps from x = 1 with h = 1."""
    x = torch.ones(1, dtype=torch.float64)
    versions = WeightVersions([x], delay)
    rule = AveragedMomentum([x], beta)
    if corrected:
        correction = ErrorFeedback(ErrorFeedbackConfig("ef", strength=1.0, decay_form="A"), [x], 1, num_batches)
    else:
        correction = Correction(CorrectionConfig("none"), [x], 1, num_batches)
    for batch in range(num_batches):
        version = version_of(batch, delay)
        gradient = versions.at(version)[0].clone()
        correction.apply(rule, [0], [gradient], versions.open_next(), lr, batch - version)
    return versions.at(num_batches)[0].abs().nan_to_num(posinf=1e300, nan=1e300).item()


# beta, then the last stable and the first unstable lr * h: synchronous, delayed, delayed with EF
BRACKETS = [
    (0.0, (1.99, 2.01), (0.99, 1.01), (0.61, 0.63)),
    (0.5, (5.95, 6.05), (0.99, 1.01), (0.99, 1.01)),
    (0.9, (37.5, 38.5), (0.99, 1.01), (2.6, 2.8)),
    (0.95, (77.0, 79.0), (0.99, 1.01), (3.95, 4.05)),
]


@pytest.mark.parametrize(("beta", "sync", "late", "fed_back"), BRACKETS)
def test_it_converges_below_the_limit_and_diverges_above(beta, sync, late, fed_back):
    for (stable, unstable), delay, corrected in ((sync, 0, False), (late, 1, False), (fed_back, 1, True)):
        assert final_size(stable, beta, delay, corrected) < 1.0
        assert final_size(unstable, beta, delay, corrected) > 1.0


def test_updates_telescope():
    """Each u_t is applied once in the end: x_N = x_0 - sum of u_t - (u_{N-1} - u_0), with no decay."""
    rng = np.random.default_rng(0)
    x = torch.zeros(5, dtype=torch.float64)
    correction = ErrorFeedback(ErrorFeedbackConfig("ef", strength=1.0, decay_form="A"), [x], 1, 30)
    rule = AveragedMomentum([x], 0.5)
    updates = []
    for batch in range(30):
        gradient = torch.from_numpy(rng.standard_normal(5))
        updates.append(0.5 * (updates[-1] if updates else 0.0) + 0.5 * gradient)
        correction.apply(rule, [0], [gradient], [x], 1.0, staleness=min(batch, 1))
    torch.testing.assert_close(x, -(sum(updates) + updates[-1] - updates[0]), rtol=0, atol=1e-13)
