"""Axes that several figures share."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FixedFormatter, FixedLocator, NullFormatter, NullLocator

PANEL_IN = 1.05  # the width of the narrowest panel
CHARACTER_IN = 0.065  # of a tick's label, in the style's size
MARGIN = 0.15  # of a momentum axis, in factors of ten of updates


def momentum_axis(panel: Axes, momenta: Sequence[float], label: str) -> None:
    """x is a momentum mu, spaced by the number of updates that it averages over, 1 / (1 - mu), on a log scale."""
    panel.set_xscale("function", functions=(_log_horizon, _momentum_of))
    _ticks(panel, momenta)
    low, high = _log_horizon(min(momenta)) - MARGIN, _log_horizon(max(momenta)) + MARGIN
    panel.set_xlim(float(_momentum_of(low)), float(_momentum_of(high)))
    panel.set_xlabel(label)


def log_axis(panel: Axes, values: Sequence[float], label: str) -> None:
    """x on a log scale with a tick at each of ``values``, as it is printed in a configuration."""
    panel.set_xscale("log")
    _ticks(panel, values)
    panel.set_xlabel(label)


def linear_axis(panel: Axes, values: Sequence[float], label: str) -> None:
    """x on a linear scale with a tick at each of ``values``."""
    _ticks(panel, values)
    panel.set_xlabel(label)


def _log_horizon(momentum: np.ndarray | float) -> np.ndarray:
    return -np.log10(np.maximum(1.0 - np.asarray(momentum, dtype=float), 1e-9))


def _momentum_of(log_horizon: np.ndarray | float) -> np.ndarray:
    return 1.0 - 10.0 ** -np.asarray(log_horizon, dtype=float)


def _ticks(panel: Axes, values: Sequence[float]) -> None:
    ordered = sorted(set(values))
    panel.xaxis.set_major_locator(FixedLocator(ordered))
    panel.xaxis.set_major_formatter(FixedFormatter([f"{value:g}" for value in ordered]))
    panel.xaxis.set_minor_locator(NullLocator())
    panel.xaxis.set_minor_formatter(NullFormatter())
    if _run_into_each_other(panel, ordered):
        panel.tick_params(axis="x", labelrotation=90)


def _run_into_each_other(panel: Axes, ordered: Sequence[float]) -> bool:
    """Whether labels beside each other would, in a panel of the narrowest kind, if they were written level."""
    places = panel.xaxis.get_transform().transform(np.array(ordered, dtype=float))
    apart_in = np.diff(places) / np.ptp(places) * PANEL_IN if len(ordered) > 1 else np.array([])
    widths_in = np.array([len(f"{value:g}") for value in ordered]) * CHARACTER_IN
    return bool((apart_in < (widths_in[:-1] + widths_in[1:]) / 2).any())
