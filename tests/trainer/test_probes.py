"""Staleness probes: what they say, when, and that they change nothing."""

from __future__ import annotations

import pytest
import torch

from asyncpp.trainer.probes import StalenessProbe
from asyncpp.trainer.setup import build_simulator

GROUPS = {"embedding", "layers.0", "layers.1", "layers.2", "norm", "head"}


def run(config, every, num_steps=9, shift=3):
    simulator = build_simulator(config)
    probe = StalenessProbe(simulator, every)
    rows = []
    for step in range(num_steps):
        windows = (torch.arange(40).view(4, 10) + shift * step) % 61
        probe.before_update(step, windows)
        simulator.train_batch(step, windows, 1.0)
        rows.append(probe.after_update(step))
    return simulator, rows


def test_a_fresh_gradient_is_equal_to_itself(make_config):
    _, rows = run(make_config("delay=sync"), every=4)
    assert [step for step, row in enumerate(rows) if row] == [0, 4, 8]
    for name in ("gradient_cosine", "gradient_norm_ratio"):
        values = {key: value for key, value in rows[4].items() if f"/{name}/" in key}
        assert {key.rpartition("/")[2] for key in values} == GROUPS
        assert list(values.values()) == pytest.approx([1.0] * len(GROUPS), abs=1e-12)


def test_a_stale_gradient_is_not(make_config):
    _, rows = run(make_config("delay=one_step"), every=4)
    cosines = [value for key, value in rows[4].items() if "/gradient_cosine/" in key]
    assert all(-1.0 <= cosine < 0.9999 for cosine in cosines)


def test_successive_updates_are_compared(make_config):
    """With one batch for ever and steps too small to change its gradient, each update points where the last did."""
    overrides = ("optimizer=sgd", "optimizer.lr=1e-8", "optimizer.weight_decay=0", "lr_schedule=constant")
    config = make_config(*overrides, "delay=sync", "trainer.dtype=float64")
    _, rows = run(config, every=4, shift=0)
    assert not any("update_cosine" in key for key in rows[0])
    cosines = {key.rpartition("/")[2]: value for key, value in rows[4].items() if "/update_cosine/" in key}
    assert cosines == pytest.approx(dict.fromkeys(GROUPS, 1.0), abs=1e-6)
    _, rows = run(config, every=4, shift=3)
    assert all(value < 0.999 for key, value in rows[4].items() if "/update_cosine/embedding" in key)


@pytest.mark.parametrize("every", [1, 3, None])
def test_probes_change_nothing(make_config, every):
    config = make_config("correction=ef")
    probed, rows = run(config, every)
    plain, _ = run(config, None)
    assert all(torch.equal(a, b) for a, b in zip(probed.newest_weights(), plain.newest_weights(), strict=True))
    assert [bool(row) for row in rows] == [every is not None and step % every == 0 for step in range(9)]
