"""Losses over steps: a panel an optimizer, a line a condition."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from curves import LossCurves
from figures.style import LEGEND_HEIGHT_IN, ROW_HEIGHT_IN, WIDTH_IN, condition_looks, in_style, legend_above
from labels import CONDITIONS, in_order, optimizer_title

RANGE_FROM_FRACTION = 0.1  # of the steps: losses before, while the learning rate warms up, do not stretch the range


def draw_loss_curves(curves: LossCurves) -> Figure:
    """The mean over seeds, in a band of one sample standard deviation where there are several."""
    optimizers = in_order(curves.frame["optimizer"])
    num_columns = 2 if len(optimizers) == 4 else min(len(optimizers), max(WIDTH_IN))
    num_rows = -(-len(optimizers) // num_columns)
    with in_style():
        size = (WIDTH_IN[num_columns], num_rows * ROW_HEIGHT_IN + LEGEND_HEIGHT_IN)
        figure = Figure(size, layout="constrained")
        panels = figure.subplots(num_rows, num_columns, sharex=True, sharey=True, squeeze=False)
        for index, panel in enumerate(panels.flat):
            if index < len(optimizers):
                _draw_panel(panel, curves.frame[curves.frame["optimizer"] == optimizers[index]])
                panel.set_title(optimizer_title(optimizers[index]))
            else:  # an empty place in the last row: the panel above it shows the steps
                panel.remove()
                panels[-2, index % num_columns].tick_params(labelbottom=True)
        panels[0, 0].set_xlim(left=0)
        panels[0, 0].set_ylim(_loss_range(curves.frame))
        legend_above(figure, list(CONDITIONS.values()))
        has_bands = any(panel.collections for panel in figure.axes)
        figure.supxlabel("step (updates)" + ("; bands: ±1 standard deviation over seeds" if has_bands else ""))
        figure.supylabel(f"{curves.quantity}\n(nats per token)")
    return figure


def _draw_panel(panel: Axes, frame: pd.DataFrame) -> None:
    for condition, look in condition_looks().items():
        seeds = frame[frame["condition"] == condition].groupby("step")["loss"]
        if len(seeds) == 0:
            continue
        mean, spread = seeds.mean(), seeds.std(ddof=1)
        panel.plot(mean.index, mean, label=CONDITIONS[condition], color=look["color"], linestyle=look["linestyle"])
        if spread.notna().any():
            panel.fill_between(mean.index, mean - spread, mean + spread, color=look["color"], alpha=0.2, linewidth=0)


def _loss_range(frame: pd.DataFrame) -> tuple[float, float]:
    """From the lowest to the highest mean curve after the warm-up, with a margin."""
    late = frame[frame["step"] >= RANGE_FROM_FRACTION * frame["step"].max()]
    means = late.groupby(["optimizer", "condition", "step"])["loss"].mean()
    margin = 0.05 * (means.max() - means.min()) or 0.05
    return means.min() - margin, means.max() + margin
