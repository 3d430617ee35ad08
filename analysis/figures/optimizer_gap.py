"""What the delay costs each optimizer, and what is left of it with error feedback, beside the paper's."""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from figures.gap_rows import OFFSET, draw_gaps, panel_of_rows
from figures.style import condition_looks, in_style, legend_above
from gaps import paper_comparison
from labels import CONDITIONS, in_order, optimizer_title

PAPER_SUFFIX = ", paper"


def draw_optimizer_gap(frame: pd.DataFrame) -> Figure:
    """frame: ``optimizer series seed gap``, a row a run, whose series is its condition, as of sweep_series."""
    optimizers = in_order(frame["optimizer"])
    places = frame["optimizer"].map({name: row for row, name in enumerate(optimizers)})
    late = [name for name in CONDITIONS if name != "sync"]
    with in_style():
        has_bars = bool(frame.duplicated(["optimizer", "series"]).any())
        figure, panel = panel_of_rows([optimizer_title(name) for name in optimizers], has_bars)
        looks = condition_looks()
        for index, condition in enumerate(late):
            offset, look = OFFSET * (2 * index - 1), looks[condition]
            own = frame["series"] == condition
            draw_gaps(panel, places[own] + offset, frame.loc[own, "gap"], CONDITIONS[condition], look)
            _draw_paper(panel, optimizers, condition, offset, look["color"], look["marker"])
        titles = [CONDITIONS[name] for name in late]
        legend_above(figure, [*titles, *(title + PAPER_SUFFIX for title in titles)], num_columns=2)
    return figure


def _draw_paper(panel: Axes, optimizers: Iterable[str], condition: str, offset: float, color: str, marker: str) -> None:
    """Hollow marks, slightly outside ours, where the paper gives both losses."""
    gaps, rows = [], []
    for row, optimizer in enumerate(optimizers):
        theirs, _ = paper_comparison(optimizer) or (None, None)
        sync, late = (theirs.losses[name] if theirs else None for name in ("sync", condition))
        if sync and late:
            gaps.append(late.mean - sync.mean)
            rows.append(row + 2 * offset)
    if gaps:
        label = CONDITIONS[condition] + PAPER_SUFFIX
        hollow = {"linestyle": "", "marker": marker, "color": color, "fillstyle": "none", "markersize": 3.5}
        panel.plot(gaps, rows, label=label, zorder=3, **hollow)
