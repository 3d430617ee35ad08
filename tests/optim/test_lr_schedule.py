"""The learning rate over a run."""

from __future__ import annotations

import pytest

from asyncpp.errors import ConfigError
from asyncpp.optim.lr_schedule import CosineConfig, LRScheduleConfig


def cosine(fraction=0.1, steps=None, final=0.1):
    return CosineConfig("cosine", fraction, steps, final)


def test_warm_up_peak_middle_and_end():
    factors = [cosine().factor(step, 101) for step in range(101)]
    assert factors[:10] == pytest.approx([(step + 1) / 10 for step in range(10)])
    assert factors[10] == 1.0
    assert factors[55] == pytest.approx(0.55)
    assert factors[100] == pytest.approx(0.1)
    assert factors[10:] == sorted(factors[10:], reverse=True)


def test_a_number_of_steps_takes_the_fractions_place():
    assert cosine(steps=3).num_warmup_steps(100) == 3
    assert cosine(steps=0).factor(0, 100) == 1.0


@pytest.mark.parametrize("num_steps", [1, 2, 3, 10])
@pytest.mark.parametrize("steps", [None, 0, 1])
def test_short_runs_stay_within_bounds(num_steps, steps):
    assert all(0.0 < cosine(steps=steps).factor(step, num_steps) <= 1.0 for step in range(num_steps))


def test_a_run_that_is_all_warm_up_ends_at_the_peak():
    assert cosine(steps=5).factor(4, 5) == 1.0


def test_constant_stays_at_the_peak():
    assert LRScheduleConfig("constant", 0.1, None).factor(99, 100) == 1.0


def test_wrong_values_are_refused():
    with pytest.raises(ConfigError, match=r"lr_schedule.lr_warmup_steps=11: expected 0 to trainer.num_steps=10"):
        cosine(steps=11).check("lr_schedule", 10)
    with pytest.raises(ConfigError, match=r"lr_warmup_fraction=1.5"):
        cosine(fraction=1.5).check("lr_schedule", 10)
    with pytest.raises(ConfigError, match="final_lr_fraction=-1"):
        cosine(final=-1).check("lr_schedule", 10)
