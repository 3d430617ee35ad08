"""Gaps as marks on rows, a row a name, on an axis on which small and large ones are told apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from figures.style import WIDTH_IN
from gaps import SMALLEST_GAP

ROW_IN, MARGIN_IN = 0.3, 0.85
OFFSET = 0.13  # of a row: how far the marks of two series stand from its middle


def panel_of_rows(titles: Sequence[str], has_bars: bool) -> tuple[Figure, Axes]:
    """A figure of one panel with a row for each of ``titles``, from the top; to be asked for in_style."""
    figure = Figure((WIDTH_IN[1], len(titles) * ROW_IN + MARGIN_IN), layout="constrained")
    panel = figure.subplots()
    panel.set_xscale("symlog", linthresh=SMALLEST_GAP, linscale=0.5)
    panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    panel.axvline(0.0, color="black", linewidth=0.6)
    panel.set_yticks(range(len(titles)), titles)
    panel.set_ylim(len(titles) - 0.5, -0.5)
    bars = ";\nbars: ±1 standard deviation over seeds" if has_bars else ""
    panel.set_xlabel(f"gap to sync (nats per token){bars}")
    return figure, panel


def draw_gaps(panel: Axes, rows: pd.Series, gaps: pd.Series, title: str, look: Mapping[str, Any]) -> None:
    """A series: of each row the mean of its gaps, with a standard deviation each way where there are several.

    rows: where each gap stands, from the top, NaN for one that has no row. A gap that is NaN is left out.
    """
    seeds = gaps.dropna().groupby(rows)
    if len(seeds):
        mean, spread = seeds.mean(), seeds.std(ddof=1)
        marks = {"linestyle": "", "markersize": 4, "capsize": 2}
        panel.errorbar(mean, mean.index, xerr=spread, label=title, **{**look, **marks})
