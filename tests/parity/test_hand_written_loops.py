"""Identities 1, 2, 3, 7: the simulator is the plain loop, gradient accumulation and the delayed loop, to the bit."""

from __future__ import annotations

import pytest
import torch
from reference.loops import delayed_loop, plain_loop

from asyncpp.trainer.setup import build_simulator
from parity.conftest import NUM_STEPS, learning_rates, loss_of, module_with_weights

ADAMW = {"betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1, "fused": True}


def simulate(config, windows_by_step):
    simulator = build_simulator(config)
    losses = []
    for step, windows in enumerate(windows_by_step):
        factor = config.lr_schedule.factor(step, config.trainer.num_steps)
        losses.append(simulator.train_batch(step, windows, factor).loss)
    return losses, simulator.newest_weights()


def assert_same(weights, module):
    for weight, (name, parameter) in zip(weights, module.named_parameters(), strict=True):
        assert torch.equal(weight, parameter), name


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("num_micro_batches", [1, 2, 4])
def test_no_delay_is_the_plain_loop(make_config, windows_by_step, num_micro_batches, dtype):
    config = make_config(
        "delay=sync",
        f"trainer.num_steps={NUM_STEPS}",
        f"trainer.num_micro_batches={num_micro_batches}",
        f"trainer.dtype={dtype}",
    )
    module = module_with_weights(config)
    expected = plain_loop(module, loss_of, windows_by_step, learning_rates(config), num_micro_batches, **ADAMW)
    losses, weights = simulate(config, windows_by_step)
    assert losses == expected
    assert losses[-1] < losses[0]
    assert_same(weights, module)


@pytest.mark.parametrize("num_stages", [1, 3])
@pytest.mark.parametrize("delay", [1, 2, 5])
def test_a_delay_is_the_delayed_loop(make_config, windows_by_step, delay, num_stages):
    config = make_config(
        "delay=constant",
        f"delay.updates={delay}",
        f"trainer.num_steps={NUM_STEPS}",
        "trainer.num_micro_batches=2",
        f"pipeline.num_stages={num_stages}",
    )
    module = module_with_weights(config)
    expected = delayed_loop(module, loss_of, windows_by_step, learning_rates(config), 2, delay, **ADAMW)
    losses, weights = simulate(config, windows_by_step)
    assert losses == expected
    assert_same(weights, module)


def test_one_step_is_a_constant_delay_of_one(make_config, windows_by_step):
    runs = [
        simulate(make_config(f"delay={delay}", f"trainer.num_steps={NUM_STEPS}", *more), windows_by_step)
        for delay, more in (("one_step", ()), ("auto", ()), ("constant", ("delay.updates=1",)))
    ]
    assert runs[0][0] == runs[1][0] == runs[2][0]


def test_a_delay_changes_the_result_from_the_third_batch_on(make_config, windows_by_step):
    """Batches 0 and 1 both differentiate the initial weights; batch 1 of a synchronous run does not."""
    sync, _ = simulate(make_config("delay=sync", f"trainer.num_steps={NUM_STEPS}"), windows_by_step)
    late, _ = simulate(make_config("delay=one_step", f"trainer.num_steps={NUM_STEPS}"), windows_by_step)
    assert sync[0] == late[0]
    assert all(a != b for a, b in zip(sync[1:], late[1:], strict=True))
