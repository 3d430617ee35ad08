"""Identities 5 and 8: EF of strength 0 is none to the bit, and EF is weight prediction, in fp64 to 1e-12."""

from __future__ import annotations

import pytest
import torch
from reference.weight_prediction import error_feedback, weight_prediction

from asyncpp.model.layout import parameter_infos
from asyncpp.optim.groups import build_optimizer
from asyncpp.trainer.setup import build_simulator
from parity.conftest import NUM_STEPS
from parity.test_hand_written_loops import simulate

STEPS = f"trainer.num_steps={NUM_STEPS}"


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize("decay_form", ["A", "B", "C"])
def test_strength_zero_is_none(make_config, windows_by_step, optimizer, decay_form):
    none = simulate(make_config(STEPS, f"optimizer={optimizer}"), windows_by_step)
    overrides = ("correction=ef", "correction.strength=0", f"correction.decay_form={decay_form}")
    zero = simulate(make_config(STEPS, f"optimizer={optimizer}", *overrides), windows_by_step)
    if decay_form == "C":  # it subtracts the decay with the update, which rounds in another place
        assert zero[0] == pytest.approx(none[0], rel=1e-5)
        return
    assert zero[0] == none[0]
    assert all(torch.equal(a, b) for a, b in zip(zero[1], none[1], strict=True))


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_without_a_delay_it_changes_nothing(make_config, windows_by_step, optimizer):
    overrides = (STEPS, "delay=sync", f"optimizer={optimizer}")
    none = simulate(make_config(*overrides), windows_by_step)
    corrected = simulate(make_config(*overrides, "correction=ef"), windows_by_step)
    assert corrected[0] == none[0]
    assert all(torch.equal(a, b) for a, b in zip(corrected[1], none[1], strict=True))


@pytest.mark.parametrize("strength", [1.0, 0.5])
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_it_is_weight_prediction(make_config, windows_by_step, optimizer, strength):
    """The program's EF against hand-written EF and hand-written weight prediction, on the real model in fp64."""
    config = make_config(
        STEPS,
        f"optimizer={optimizer}",
        "correction=ef",
        f"correction.strength={strength}",
        "trainer.dtype=float64",
        "trainer.max_grad_norm=null",
        "lr_schedule=constant",
        "lr_schedule.lr_warmup_fraction=0",
    )
    lr, decay = config.optimizer.lr, 1.0 - config.optimizer.lr * config.optimizer.weight_decay
    simulator = build_simulator(config)

    def gradient_of(batch, weights):
        return simulator.differentiate(weights, windows_by_step[batch])[1]

    def fresh_rule():
        parameters = parameter_infos(config.model)
        start = [weight.clone() for weight in simulator.newest_weights()]
        groups = build_optimizer(config.optimizer, parameters, start).groups

        def update_of(gradients, weights):
            updates = [torch.empty(0)] * len(gradients)
            for group in groups:
                parts = group.rule.update(group.select(gradients), group.select(weights), lr)
                for index, update in zip(group.indices, parts, strict=True):
                    updates[index] = update.clone()
            return updates

        return start, update_of

    # One learning rate for all parameters, as the references take one decay factor.
    if optimizer == "muon":
        config.optimizer.adamw.lr = lr
        simulator = build_simulator(config)
    start, update_of = fresh_rule()
    predictions = weight_prediction(start, gradient_of, update_of, NUM_STEPS, decay, strength)
    start, update_of = fresh_rule()
    fed_back = error_feedback(start, gradient_of, update_of, NUM_STEPS, decay, strength)
    for step, windows in enumerate(windows_by_step):
        simulator.train_batch(step, windows, 1.0)
    for ours, predicted, by_hand in zip(simulator.newest_weights(), predictions[-1], fed_back[-1], strict=True):
        torch.testing.assert_close(ours, predicted, rtol=0, atol=1e-12)
        torch.testing.assert_close(ours, by_hand, rtol=0, atol=1e-12)
    largest_move = max((a - b).abs().max().item() for a, b in zip(predictions[0], predictions[-1], strict=True))
    assert largest_move > 1e-2


def test_z_is_the_point_that_x_predicts_from(make_config, windows_by_step):
    config = make_config(STEPS, "correction=ef", "trainer.dtype=float64")
    simulator = build_simulator(config)
    assert all(torch.equal(x, z) for x, z in zip(simulator.newest_weights(), simulator.z_weights(), strict=True))
    for step, windows in enumerate(windows_by_step):
        simulator.train_batch(step, windows, 1.0)
    stage = simulator.stages[0]
    for x, z, last in zip(simulator.newest_weights(), simulator.z_weights(), stage.correction.previous, strict=True):
        torch.testing.assert_close(z - last, x, rtol=0, atol=1e-15)
        assert not torch.equal(z, x)
