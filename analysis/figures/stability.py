"""How large a step the delayed quadratic allows: theory as lines, asyncpp's own update as marks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from figures.axes import momentum_axis
from figures.style import WIDTH_IN, in_style, legend_above, letter, series_looks

if TYPE_CHECKING:
    from quadratic import Method

MOMENTA = (0.0, 0.5, 0.8, 0.9, 0.95, 0.98)
DELAYS = (0, 1, 2, 4, 8)
STRENGTHS = (0.0, 0.5, 1.0, 1.5, 2.0)
HEIGHT_IN = 2.5
NUM_POINTS = 40  # of a line of theory


@dataclass(frozen=True)
class Line:
    """A series of a panel. method: of a value on the panel's axis. smooth: whether values in between mean anything."""

    title: str
    method: Callable[[float], Method]
    values: Sequence[float]
    smooth: bool = True


def draw_stability() -> Figure:
    """The largest stable effective step over momentum, over the delay, and over the strength of error feedback."""
    from quadratic import Method  # imports torch, for which the other figures need not wait

    plain, late, fed_back = Method(), Method(delay=1), Method(delay=1, strength=1.0)
    over_momentum = [
        Line("sync", lambda momentum: replace(plain, momentum=momentum), MOMENTA),
        Line("async", lambda momentum: replace(late, momentum=momentum), MOMENTA),
        Line("async + EF", lambda momentum: replace(fed_back, momentum=momentum), MOMENTA),
    ]
    over_delay = [
        Line("async", lambda delay: Method(0.9, int(delay)), DELAYS, smooth=False),
        Line("async + EF", lambda delay: Method(0.9, int(delay), 1.0), DELAYS, smooth=False),
        Line("async, μ = 0", lambda delay: Method(0.0, int(delay)), DELAYS, smooth=False),
    ]
    over_strength = [
        Line("async + EF", lambda strength: Method(0.9, 1, strength), STRENGTHS),
        Line("async + EF, μ = 0", lambda strength: Method(0.0, 1, strength), STRENGTHS),
    ]
    titles = ["sync", "async", "async + EF", "async, μ = 0", "async + EF, μ = 0"]
    with in_style():
        figure = Figure((WIDTH_IN[3], HEIGHT_IN), layout="constrained")
        panels = figure.subplots(1, 3, sharey=True)
        looks = series_looks(titles)
        for panel, lines in zip(panels, (over_momentum, over_delay, over_strength), strict=True):
            for line in lines:
                _draw_line(panel, line, looks[line.title])
        momentum_axis(panels[0], MOMENTA, label="momentum μ")
        panels[0].set_title("τ = 1")
        panels[1].set_title("μ = 0.9 or 0")
        panels[1].set_xlabel("delay τ (updates)")
        panels[2].set_title("τ = 1, μ = 0.9 or 0")
        panels[2].set_xlabel("strength of EF, λ")
        letter(panels)
        panels[0].set_yscale("log")
        panels[0].set_ylabel("largest stable step\nηh / (1 - μ)")
        legend_above(figure, titles)
    return figure


def _draw_line(panel: Axes, line: Line, look: dict[str, Any]) -> None:
    from quadratic import largest_stable_step, measured_largest_stable_step

    def effective(of: Callable[[Method], float], value: float) -> float:
        method = line.method(value)
        return method.effective(of(method))

    low, high = min(line.values), max(line.values)
    steps = range(NUM_POINTS + 1) if line.smooth else ()
    points = [low + (high - low) * i / NUM_POINTS for i in steps] or line.values
    panel.plot(points, [effective(largest_stable_step, value) for value in points], color=look["color"], ls="-")
    measured = [effective(measured_largest_stable_step, value) for value in line.values]
    panel.plot(line.values, measured, linestyle="", **look, fillstyle="none", label=line.title)
