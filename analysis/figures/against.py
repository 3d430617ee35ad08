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

LOSS_LABEL = "validation loss\n(nats per token)"
GAP_LABEL = "gap to sync\n(nats per token)"


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
    """A row an optimizer, losses left and gaps right: means over seeds, with a standard deviation each way."""
    frame = series.frame
    optimizers = in_order(frame["optimizer"])
    with in_style():
        size = (WIDTH_IN[2], len(optimizers) * ROW_HEIGHT_IN + LEGEND_HEIGHT_IN)
        figure = Figure(size, layout="constrained")
        rows = figure.subplots(len(optimizers), 2, sharex="col", squeeze=False)
        looks = series_looks(list(series.titles))
        for optimizer, (losses, gaps) in zip(optimizers, rows, strict=True):
            own = frame[frame["optimizer"] == optimizer]
            for name, title in series.titles.items():
                _draw_series(losses, own[own["series"] == name], "val_loss", title, looks[name])
                _draw_series(gaps, own[own["series"] == name], "gap", title, looks[name])
            losses.set_ylabel(LOSS_LABEL)
            gaps.set_ylabel(GAP_LABEL)
            gaps.axhline(0.0, color="black", linewidth=0.6)
            for panel in (losses, gaps):
                panel.set_title(optimizer_title(optimizer))
        for panel in rows[-1]:
            series.axis(panel, sorted(frame["x"].dropna().unique()))
        legend_above(figure, list(series.titles.values()))
    return figure


def _draw_series(panel: Axes, frame: pd.DataFrame, quantity: str, title: str, look: Mapping[str, Any]) -> None:
    level = frame.loc[frame["x"].isna(), quantity].dropna()
    if not level.empty:
        panel.axhline(level.mean(), label=title, color=look["color"], linestyle=":")
    seeds = frame.dropna(subset=["x", quantity]).groupby("x")[quantity]
    if len(seeds) > 0:
        spread = seeds.std(ddof=1).fillna(0.0)
        panel.errorbar(seeds.mean().index, seeds.mean(), yerr=spread, label=title, linestyle="-", capsize=2, **look)
