"""Losses and gaps against one number: momentum, depth, batch size, learning rate, strength of a correction."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from figures.style import LEGEND_HEIGHT_IN, ROW_HEIGHT_IN, WIDTH_IN, in_style, legend_above, series_looks
from labels import in_order, optimizer_title

LABELS = {"val_loss": "validation loss", "gap": "gap to sync"}  # in nats per token
MARK_SIZE = 3.5  # points; hollow, so that series which lie on one another are all seen


@dataclass(frozen=True)
class Series:
    """frame: ``optimizer series x seed val_loss gap``, a row a run; gap is to the same seed's synchronous run, NaN for
    that run itself and where there is none. x is NaN for a run that does not depend on it: a level line.

    titles: printed names by series, in order. axis: turns a panel's x axis into one of the numbers given, with label.
    """

    frame: pd.DataFrame
    titles: Mapping[str, str]
    axis: Callable[[Axes, Sequence[float]], None]


def draw_against(series: Series) -> Figure:
    """A row an optimizer, losses left and gaps right: means over seeds, with a standard deviation each way where
    there are several.

    Where no run has a gap there are losses alone, a panel an optimizer.
    """
    frame = series.frame
    optimizers = in_order(frame["optimizer"])
    quantities = list(LABELS) if frame["gap"].notna().any() else ["val_loss"]
    cells = [(optimizer, quantity) for optimizer in optimizers for quantity in quantities]
    num_columns = min(len(cells), 2)
    num_rows = -(-len(cells) // num_columns)
    with in_style():
        figure = Figure((WIDTH_IN[1], num_rows * ROW_HEIGHT_IN + LEGEND_HEIGHT_IN), layout="constrained")
        panels = figure.subplots(num_rows, num_columns, squeeze=False)
        looks = series_looks(list(series.titles))
        for index, panel in enumerate(panels.flat):
            if index >= len(cells):
                panel.remove()
                continue
            optimizer, quantity = cells[index]
            own = frame[frame["optimizer"] == optimizer]
            for name, title in series.titles.items():
                _draw_series(panel, own[own["series"] == name], quantity, title, looks[name])
            if quantity == "gap":
                panel.axhline(0.0, color="black", linewidth=0.6)
            series.axis(panel, sorted(own["x"].dropna().unique()))
            if index + num_columns < len(cells):
                panel.set_xlabel("")
            panel.set_title(f"{optimizer_title(optimizer)}: {LABELS[quantity]}")
        figure.supylabel("nats per token")
        legend_above(figure, list(series.titles.values()), num_columns=2)
    return figure


def _draw_series(panel: Axes, frame: pd.DataFrame, quantity: str, title: str, look: Mapping[str, Any]) -> None:
    level = frame.loc[frame["x"].isna(), quantity].dropna()
    if not level.empty:
        panel.axhline(level.mean(), label=title, color=look["color"], linestyle=":")
    seeds = frame.dropna(subset=["x", quantity]).groupby("x")[quantity]
    if len(seeds) > 0:
        mean, spread = seeds.mean(), seeds.std(ddof=1)
        bars = spread if spread.notna().any() else None
        marks = {"fillstyle": "none", "markersize": MARK_SIZE}
        panel.errorbar(mean.index, mean, yerr=bars, label=title, linestyle="-", capsize=2, **look, **marks)
