"""The delayed quadratic: the theory's known cases, and that asyncpp's own update does what the theory says."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference.quadratic import spectral_radius

from quadratic import (
    STEPS_TRIED,
    Method,
    converges,
    largest_stable_step,
    measured_largest_stable_step,
)

RESOLUTION = STEPS_TRIED[1] / STEPS_TRIED[0]  # of the experiment


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9, 0.98])
def test_without_a_delay_it_is_the_textbooks(momentum: float) -> None:
    assert largest_stable_step(Method(momentum)) == pytest.approx(2 * (1 + momentum), rel=1e-6)


@pytest.mark.parametrize("delay", range(1, 9))
def test_without_momentum_it_is_the_known_sine(delay: int) -> None:
    assert largest_stable_step(Method(delay=delay)) == pytest.approx(2 * math.sin(math.pi / (4 * delay + 2)), rel=1e-6)


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9, 0.98])
def test_one_step_late_the_effective_step_is_one_at_every_momentum(momentum: float) -> None:
    method = Method(momentum, delay=1)
    assert method.effective(largest_stable_step(method)) == pytest.approx(1.0, rel=1e-6)


@settings(max_examples=60, deadline=None)
@given(st.floats(0.0, 0.98), st.integers(0, 8), st.floats(0.0, 2.0))
def test_the_roots_leave_the_unit_circle_at_the_largest_stable_step(momentum, delay, strength) -> None:
    method = Method(momentum, delay, strength)
    limit = largest_stable_step(method)
    assert spectral_radius(method, 0.999 * limit) < 1.0
    assert spectral_radius(method, 1.001 * limit) > 1.0


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize(("delay", "strength"), [(0, 0.0), (1, 0.0), (1, 0.5), (1, 1.0), (4, 0.0), (4, 1.0)])
def test_the_experiment_agrees(momentum: float, delay: int, strength: float) -> None:
    method = Method(momentum, delay, strength)
    ratio = measured_largest_stable_step(method) / largest_stable_step(method)
    assert 1 / RESOLUTION < ratio < RESOLUTION


def test_feedback_changes_nothing_where_nothing_is_late() -> None:
    fed_back = Method(0.9, delay=0, strength=1.0)
    assert largest_stable_step(fed_back) == largest_stable_step(Method(0.9))
    assert measured_largest_stable_step(fed_back) == measured_largest_stable_step(Method(0.9))


def test_a_weight_that_overflows_does_not_converge() -> None:
    assert list(converges(Method(), np.array([0.5, 1.0, 3.0, 1e6]))) == [True, True, False, False]
