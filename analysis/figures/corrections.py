"""What is left of the delay's cost with each correction."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from figures.gap_rows import OFFSET, draw_gaps, panel_of_rows
from figures.style import in_style, legend_above, series_looks
from labels import CORRECTIONS, in_order, optimizer_title


def draw_corrections(frame: pd.DataFrame) -> Figure:
    """frame: ``optimizer series seed gap``, a row a run, whose series is its condition, as of sweep_series."""
    optimizers = in_order(frame["optimizer"])
    shown = [name for name in CORRECTIONS if name in set(frame["series"])]
    places = frame["series"].map({name: row for row, name in enumerate(shown)})
    with in_style():
        has_bars = bool(frame.duplicated(["optimizer", "series"]).any())
        figure, panel = panel_of_rows([CORRECTIONS[name] for name in shown], has_bars)
        titles = [optimizer_title(name) for name in optimizers]
        looks = series_looks(titles)
        for index, (optimizer, title) in enumerate(zip(optimizers, titles, strict=True)):
            own = frame["optimizer"] == optimizer
            offset = OFFSET * (2 * index - len(optimizers) + 1)
            draw_gaps(panel, places[own] + offset, frame.loc[own, "gap"], title, looks[title])
        legend_above(figure, titles)
    return figure
