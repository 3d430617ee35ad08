"""The update: clipping by the norm of the whole model, and steps that are skipped."""

from __future__ import annotations

import math

import pytest
import torch

from asyncpp.pipeline.update import clipping_factor, global_norm
from asyncpp.trainer.setup import build_simulator


def test_norms_3_and_4_with_limit_1_are_scaled_by_a_fifth():
    gradients = [torch.full((9,), 1.0), torch.full((2, 2), 2.0)]
    assert global_norm(gradients) == 5.0
    assert clipping_factor(5.0, 1.0) == 0.2
    assert clipping_factor(0.5, 1.0) == 1.0
    assert clipping_factor(0.0, 1.0) == 1.0


def test_squares_are_summed_in_double_precision():
    assert global_norm([torch.full((4,), 1e30)]) == pytest.approx(2e30)
    assert global_norm([torch.full((4,), 1e-30)]) == pytest.approx(2e-30)


def test_clipping_is_by_the_norm_over_all_stages(make_config):
    """Cut into three stages or not, the same weights come out: no stage is clipped by its own norm."""
    results = []
    for num_stages in (1, 3):
        simulator = build_simulator(make_config("trainer.max_grad_norm=0.1", f"pipeline.num_stages={num_stages}"))
        for step in range(3):
            record = simulator.train_batch(step, torch.arange(40).view(4, 10) + step, 1.0)
            assert record.update.grad_norm > 0.1
            assert record.update.clip_factor == 0.1 / record.update.grad_norm
        results.append(simulator.newest_weights())
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


@pytest.mark.parametrize("correction", ["none", "ef"])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_gradient_that_is_not_finite_skips_the_step_and_the_rule_still_holds(make_config, bad, correction):
    simulator = build_simulator(make_config(f"correction={correction}", "trainer.dtype=float64"))
    for step in range(3):
        simulator.train_batch(step, torch.arange(40).view(4, 10) + step, 1.0)
    stage = simulator.stages[0]
    before = [weight.clone() for weight in simulator.newest_weights()]
    state = {key: value.clone() for key, value in stage.optimizer.state_dict().items()}
    last_update = [u.clone() for u in stage.correction.state.get("previous_update", [])]
    honest = simulator.differentiate

    def poisoned(weights, windows):
        loss, gradients = honest(weights, windows)
        gradients[3][0] = bad
        return loss, gradients

    simulator.differentiate = poisoned
    record = simulator.train_batch(3, torch.arange(40).view(4, 10), 1.0)
    assert record.update.skipped
    decay = 1.0 - 3e-3 * 0.1
    expected = [decay * (x + u) for x, u in zip(before, last_update, strict=True)] if last_update else None
    expected = expected or [decay * x for x in before]
    for weight, wanted in zip(simulator.newest_weights(), expected, strict=True):
        torch.testing.assert_close(weight, wanted, rtol=0, atol=1e-15)
    assert all(torch.equal(state[key], value) for key, value in stage.optimizer.state_dict().items())


def test_staleness_is_measured_from_the_versions(make_config):
    for delay, wanted in (("sync", [0, 0, 0, 0]), ("one_step", [0, 1, 1, 1]), ("constant", [0, 1, 2, 2])):
        simulator = build_simulator(make_config(f"delay={delay}"))
        windows = torch.arange(40).view(4, 10)
        measured = [simulator.train_batch(step, windows, 1.0).update.staleness_updates for step in range(4)]
        assert measured == wanted


@pytest.mark.parametrize(("correction", "wanted"), [("none", 0.0), ("ef", 1.0)])
def test_measured_state_is_the_documented_one(make_config, correction, wanted):
    config = make_config(f"correction={correction}", "pipeline.num_stages=2")
    measured = build_simulator(config).measurements()
    assert measured["optimizer_state_copies"] == 2.0
    assert measured["correction_state_copies"] == wanted == config.correction.state_copies
