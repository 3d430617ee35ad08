"""Identities 5 and 8: strength 0 is none to the bit, and EF is weight prediction, in fp64 to 1e-12."""

from __future__ import annotations

import pytest
import torch
from options import CORRECTIONS, OPTIMIZERS
from reference.weight_prediction import error_feedback, weight_prediction

from asyncpp.model.layout import parameter_infos
from asyncpp.optim.groups import build_optimizer
from asyncpp.trainer.setup import build_simulator
from parity.conftest import NUM_STEPS
from parity.test_hand_written_loops import simulate

STEPS = f"trainer.num_steps={NUM_STEPS}"


ZERO_STRENGTH = {
    "ef": ("correction.strength=0",),
    "ef, decay form B": ("correction.strength=0", "correction.decay_form=B"),
    "weight_prediction": ("correction.strength=0",),
    "dc_asgd": ("correction.strength=0",),
    "dc_asgd, adaptive": ("correction.strength=0", "correction.adaptive=true"),
    "lr_damping": ("correction.strength=0",),
    "nesterov": ("correction.strength=0",),
    "sync_start": ("correction.sync_fraction=0",),
    "sync_start, EF": ("correction.sync_fraction=0", "correction.strength=1e-300"),
}


def test_every_correction_has_a_strength_of_zero():
    assert {name.partition(",")[0] for name in ZERO_STRENGTH} == set(CORRECTIONS)


@pytest.mark.parametrize("optimizer", ["adamw", "muon", "sgd"])
@pytest.mark.parametrize("correction", ZERO_STRENGTH)
def test_strength_zero_is_none(make_config, windows_by_step, optimizer, correction):
    shared = (STEPS, f"optimizer={optimizer}", "delay=constant")
    none = simulate(make_config(*shared), windows_by_step)
    overrides = (f"correction={correction.partition(',')[0]}", *ZERO_STRENGTH[correction])
    zero = simulate(make_config(*shared, *overrides), windows_by_step)
    assert zero[0] == none[0]
    assert all(torch.equal(a, b) for a, b in zip(zero[1], none[1], strict=True))


def test_strength_zero_of_decay_form_c_is_none_up_to_rounding(make_config, windows_by_step):
    """It subtracts the decay with the update, and so rounds in another place."""
    none = simulate(make_config(STEPS, "trainer.dtype=float64"), windows_by_step)
    overrides = ("correction=ef", "correction.strength=0", "correction.decay_form=C", "trainer.dtype=float64")
    zero = simulate(make_config(STEPS, *overrides), windows_by_step)
    for a, b in zip(zero[1], none[1], strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-13)


ACT_WITHOUT_DELAY = ("nesterov",)


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize("correction", [name for name in CORRECTIONS if name not in ACT_WITHOUT_DELAY])
def test_without_a_delay_it_changes_nothing(make_config, windows_by_step, optimizer, correction):
    overrides = (STEPS, "delay=sync", f"optimizer={optimizer}")
    none = simulate(make_config(*overrides), windows_by_step)
    corrected = simulate(make_config(*overrides, f"correction={correction}"), windows_by_step)
    assert corrected[0] == none[0]
    assert all(torch.equal(a, b) for a, b in zip(corrected[1], none[1], strict=True))


# fp32 products in Newton-Schulz would turn a difference of 1e-16 into one of 1e-9.
FP64_PRODUCTS = "optimizer.newton_schulz_dtype=float64"
IN_FP64 = {"muon": (FP64_PRODUCTS,), "normuon": (FP64_PRODUCTS,)}


@pytest.mark.parametrize("strength", [1.0, 0.5])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_ef_is_weight_prediction(make_config, windows_by_step, optimizer, strength):
    """The two corrections of the program, on the real model in fp64 with everything on, for every optimizer."""
    shared = (STEPS, f"optimizer={optimizer}", *IN_FP64.get(optimizer, ()), "trainer.dtype=float64")
    corrected = (*shared, f"correction.strength={strength}")
    fed_back = simulate(make_config(*corrected, "correction=ef"), windows_by_step)
    predicted = simulate(make_config(*corrected, "correction=weight_prediction"), windows_by_step)
    none = simulate(make_config(*shared), windows_by_step)
    assert fed_back[0] == pytest.approx(predicted[0], rel=0, abs=1e-12)
    for a, b in zip(fed_back[1], predicted[1], strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)
    assert max(abs(a - b) for a, b in zip(fed_back[0], none[0], strict=True)) > 1e-4


@pytest.mark.parametrize("correction", ["ef", "weight_prediction"])
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_both_are_what_is_written_by_hand(make_config, windows_by_step, optimizer, correction):
    """One learning rate for all parameters and no clipping, as the references take one decay factor."""
    strength = 0.75
    overrides = [
        STEPS, f"optimizer={optimizer}", f"correction={correction}", f"correction.strength={strength}",
        "trainer.dtype=float64", "trainer.max_grad_norm=null", "lr_schedule=constant",
        "lr_schedule.lr_warmup_fraction=0",
    ]  # fmt: skip
    if optimizer == "muon":
        overrides += ["optimizer.lr=3e-3", FP64_PRODUCTS]
    config = make_config(*overrides)
    lr, decay = config.optimizer.lr, 1.0 - config.optimizer.lr * config.optimizer.weight_decay
    simulator = build_simulator(config)
    start = [weight.clone() for weight in simulator.newest_weights()]
    reference = {"ef": error_feedback, "weight_prediction": weight_prediction}[correction]
    by_hand = reference(
        start,
        lambda batch, weights: simulator.differentiate(weights, windows_by_step[batch]).gradients,
        update_with(build_optimizer(config.optimizer, parameter_infos(config.model), start), lr),
        NUM_STEPS,
        decay,
        strength,
    )[-1]
    for step, windows in enumerate(windows_by_step):
        simulator.train_batch(step, windows, 1.0)
    for ours, wanted, first in zip(simulator.newest_weights(), by_hand, start, strict=True):
        torch.testing.assert_close(ours, wanted, rtol=0, atol=1e-12)
        assert (ours - first).abs().max() > 1e-3


def update_with(optimizer, lr):
    """u of the whole model, in canonical order, by ``optimizer``."""

    def update_of(gradients, weights):
        updates = [torch.empty(0)] * len(gradients)
        for group in optimizer.groups:
            parts = group.rule.update(group.select(gradients), group.select(weights), lr)
            for index, update in zip(group.indices, parts, strict=True):
                updates[index] = update
        return updates

    return update_of


def test_z_is_the_point_that_x_predicts_from(make_config, windows_by_step):
    config = make_config(STEPS, "correction=ef", "trainer.dtype=float64")
    simulator = build_simulator(config)
    assert all(torch.equal(x, z) for x, z in zip(simulator.newest_weights(), simulator.z_weights(), strict=True))
    for step, windows in enumerate(windows_by_step):
        simulator.train_batch(step, windows, 1.0)
    part = simulator.states[0]
    for x, z, last in zip(simulator.newest_weights(), simulator.z_weights(), part.correction.previous, strict=True):
        torch.testing.assert_close(z - last, x, rtol=0, atol=1e-15)
        assert not torch.equal(z, x)
