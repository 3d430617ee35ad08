"""Each correction's formula, on numbers small enough to check by hand."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hydra.utils import get_class

from asyncpp.correction.base import Correction
from asyncpp.correction.config import (
    DelayCompensationConfig,
    LRDampingConfig,
    NesterovConfig,
    SyncStartConfig,
    WeightPredictionConfig,
)
from asyncpp.correction.dc_asgd import DelayCompensation
from asyncpp.correction.lr_damping import LRDamping
from asyncpp.correction.nesterov import Nesterov
from asyncpp.correction.sync_start import SyncStart
from asyncpp.correction.weight_prediction import WeightPrediction
from asyncpp.optim.config import SGDConfig
from asyncpp.optim.sgd import SGD
from asyncpp.trainer.setup import build_simulator

CONF = Path(__file__).parents[2] / "conf"


def tensor(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def plain_sgd() -> SGD:
    """u = lr g."""
    return SGD(SGDConfig(lr=1.0, weight_decay=0.0, name="sgd", momentum=0.0, nesterov=False), [tensor(0.0)])


def test_dc_asgd_adds_the_squared_gradient_times_the_distance():
    config = DelayCompensationConfig("dc_asgd", strength=0.5, adaptive=False, ema=0.95, eps=1e-14)
    correction = DelayCompensation(config, [tensor(0.0, 0.0)], 1, 10)
    (corrected,) = correction.correct_gradients([tensor(2.0, -3.0)], [tensor(1.0, 1.0)], [tensor(0.0, 3.0)])
    assert corrected.tolist() == [2.0 + 0.5 * 4.0 * 1.0, -3.0 + 0.5 * 9.0 * -2.0]
    assert correction.num_state_elements() == 0


def test_adaptive_dc_asgd_divides_by_the_root_mean_square():
    config = DelayCompensationConfig("dc_asgd", strength=2.0, adaptive=True, ema=0.95, eps=1e-6)
    correction = DelayCompensation(config, [tensor(0.0)], 1, 10)
    mean_square = 0.0
    for gradient in (2.0, -3.0, 1e-4):
        (corrected,) = correction.correct_gradients([tensor(gradient)], [tensor(1.5)], [tensor(1.0)])
        mean_square = 0.95 * mean_square + 0.05 * gradient**2
        wanted = gradient + 2.0 / math.sqrt(mean_square + 1e-6) * gradient**2 * 0.5
        assert corrected.item() == pytest.approx(wanted, rel=1e-14)
    assert correction.num_state_elements() == 1


def test_lr_damping_starts_at_one_over_tau_and_ends_at_one():
    damping = LRDamping(LRDampingConfig("lr_damping", strength=1.0, horizon_fraction=0.25), [tensor(0.0)], 1, 40)
    assert damping.lr_factor(0, 4) == 0.25
    assert damping.lr_factor(5, 4) == 0.5
    assert damping.lr_factor(10, 4) == damping.lr_factor(39, 4) == 1.0
    assert damping.lr_factor(0, 1) == damping.lr_factor(0, 0) == 1.0


def test_nesterov_is_its_two_sequences():
    """The look-ahead points y by the textbook's x and v."""
    gamma, y, x, v = 0.8, tensor(1.0), 1.0, 0.0
    correction = Nesterov(NesterovConfig("nesterov", strength=gamma), [y], 1, 10)
    rule = plain_sgd()
    for gradient in (0.5, -0.25, 2.0, 0.125):
        correction.apply(rule, [0], [tensor(gradient)], [y], 1.0, staleness=1)
        v = gamma * v - (1.0 - gamma) * gradient
        x = x + v
        assert y.item() == pytest.approx(x + gamma * v, rel=1e-14)
        (z,) = correction.z_weights([y], staleness=1)
        assert z.item() == pytest.approx(x, rel=1e-14)


def test_weight_prediction_looks_as_far_ahead_as_the_delay():
    x = tensor(1.0)
    correction = WeightPrediction(WeightPredictionConfig("weight_prediction", strength=1.0), [x], 3, 10)
    rule = plain_sgd()
    correction.apply(rule, [0], [tensor(0.5)], [x], 1.0, staleness=0)
    assert x.item() == 0.5  # not late: the plain step
    assert correction.z[0].item() == 0.5 + 3 * 0.5
    correction.apply(rule, [0], [tensor(0.25)], [x], 1.0, staleness=3)
    assert correction.z[0].item() == 2.0 - 0.25
    assert x.item() == 1.75 - 3 * 0.25


@pytest.mark.parametrize(("strength", "copies"), [(0.0, 0.0), (1.0, 1.0)])
def test_sync_start_delays_after_its_steps(strength, copies):
    config = SyncStartConfig("sync_start", strength=strength, decay_form="A", sync_fraction=0.3)
    correction = SyncStart(config, [tensor(0.0)], 1, 10)
    assert [correction.delay(step, 2) for step in range(10)] == [0] * 3 + [2] * 7
    assert config.state_copies == copies == correction.num_state_elements()


def test_sync_start_is_synchronous_then_late_and_ef_starts_from_the_last_synchronous_update(make_config):
    """Batch K differentiates version K-1 again, and its error is against u_{K-1}."""
    steps = ("trainer.num_steps=10", "trainer.dtype=float64")
    windows = [(torch.arange(40).view(4, 10) + 3 * step) % 61 for step in range(10)]
    sync = build_simulator(make_config("delay=sync", *steps))
    late = build_simulator(make_config("correction=sync_start", "correction.sync_fraction=0.4", *steps))
    fed_back = build_simulator(
        make_config("correction=sync_start", "correction.sync_fraction=0.4", "correction.strength=1", *steps)
    )
    records = SimpleNamespace(
        **{
            name: [simulator.train_batch(step, windows[step], 1.0) for step in range(10)]
            for name, simulator in {"sync": sync, "late": late, "fed_back": fed_back}.items()
        }
    )
    assert [record.update.staleness_updates for record in records.late] == [0] * 4 + [1] * 6
    for name in ("late", "fed_back"):
        losses = [record.loss for record in getattr(records, name)]
        assert losses[:4] == [record.loss for record in records.sync][:4]
        assert losses[4] != records.sync[4].loss
    # Batch 5 is the first at weights that an update from a late batch made, and EF doubled that one.
    assert records.late[5].loss == records.fed_back[5].loss
    assert records.late[6].loss != records.fed_back[6].loss


@pytest.mark.parametrize(
    ("correction", "copies"),
    [("none", 0), ("ef", 1), ("weight_prediction", 1), ("dc_asgd", 0), ("lr_damping", 0), ("nesterov", 1)],
)
def test_measured_state_is_the_documented_one(make_config, correction, copies):
    config = make_config(f"correction={correction}", "pipeline.num_stages=2")
    measured = build_simulator(config).measurements()
    assert measured["correction_state_copies"] == copies == config.correction.state_copies


@pytest.mark.parametrize("correction", [path.stem for path in (CONF / "correction").glob("*.yaml")])
def test_a_config_says_whether_gradients_are_corrected(make_config, correction):
    config = make_config(f"correction={correction}").correction
    overrides_it = get_class(config.correction).correct_gradients is not Correction.correct_gradients
    assert config.corrects_gradients == overrides_it
