"""The routers' auxiliary loss reaches the gradient of a run, once, whatever the micro-batches."""

from __future__ import annotations

import pytest
import torch
from torch.func import functional_call

from asyncpp.config import from_hydra
from asyncpp.hydra_command import compose_overrides
from asyncpp.model.auxiliary import Auxiliary
from asyncpp.trainer.setup import build_simulator

SHAPE = ["model=tiny_moe", "model.num_layers=2", "model.vocab_size=2048", "trainer.dtype=float64"]


@pytest.mark.parametrize("num_micro_batches", [1, 2, 4])
def test_a_batch_differentiates_cross_entropy_and_auxiliary_loss(num_micro_batches: int) -> None:
    overrides = [*SHAPE, "model.load_balancing=1.0", f"trainer.num_micro_batches={num_micro_batches}"]
    simulator = build_simulator(from_hydra(compose_overrides(overrides)))
    windows = torch.randint(2048, (4, 9), generator=torch.Generator().manual_seed(0))
    weights = simulator.newest_weights()
    loss, gradients, _ = simulator.differentiate(weights, windows)

    leaves = {name: weight.detach().requires_grad_() for name, weight in zip(simulator.names, weights, strict=True)}
    auxiliary = Auxiliary()
    expected_loss = functional_call(simulator.module, leaves, (windows[:, :-1], windows[:, 1:], auxiliary))
    assert auxiliary.loss is not None
    assert loss == pytest.approx(expected_loss.item(), rel=1e-12)
    expected = torch.autograd.grad(expected_loss + auxiliary.loss, list(leaves.values()))
    for gradient, other in zip(gradients, expected, strict=True):
        torch.testing.assert_close(gradient, other, rtol=1e-10, atol=1e-12)
