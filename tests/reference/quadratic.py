"""The obvious twin of analysis/quadratic.py's largest stable step: the roots of the recurrence themselves."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from quadratic import Method


def characteristic(method: Method, step_size: float) -> NDArray[np.floating]:
    """Coefficients of p, the highest power first."""
    strength = method.strength if method.delay > 0 else 0.0
    inertia = np.polymul([1.0, -1.0], [1.0, -method.momentum])
    delayed = np.polymul(inertia, [1.0] + [0.0] * method.delay)
    return np.polyadd(delayed, step_size * np.array([1.0 + strength, -strength]))


def spectral_radius(method: Method, step_size: float) -> float:
    """The largest absolute root: what a step multiplies the distance from the minimum by, in the long run."""
    return float(np.abs(np.roots(characteristic(method, step_size))).max())
