"""What the delay costs each optimizer, and what is left of it with error feedback, beside the paper's."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from figures.style import WIDTH_IN, condition_looks, in_style, legend_above
from gaps import SMALLEST_GAP, paper_comparison
from labels import CONDITIONS, in_order, optimizer_title

ROW_IN, MARGIN_IN = 0.3, 0.85
OFFSET = 0.13  # of a row: how far a condition's mark stands from its middle
PAPER_SUFFIX = ", paper"


def draw_optimizer_gap(frame: pd.DataFrame) -> Figure:
    """frame: ``optimizer series seed gap``, a row a run, whose series is its condition, as of sweep_series.

    Means over seeds, with a standard deviation each way where there are several. Where no seed has a gap, no mark.
    """
    optimizers = in_order(frame["optimizer"])
    late = [name for name in CONDITIONS if name != "sync"]
    with in_style():
        figure = Figure((WIDTH_IN[1], len(optimizers) * ROW_IN + MARGIN_IN), layout="constrained")
        panel = figure.subplots()
        looks = condition_looks()
        for place, condition in enumerate(late):
            offset = OFFSET * (2 * place - 1)
            own = frame[frame["series"] == condition].dropna(subset=["gap"])
            gaps = own.groupby("optimizer")["gap"].agg(["mean", "std"])
            rows = [optimizers.index(name) + offset for name in gaps.index]
            look: dict[str, Any] = looks[condition] | {"linestyle": ""}
            if rows:
                panel.errorbar(
                    gaps["mean"], rows, xerr=gaps["std"], label=CONDITIONS[condition], capsize=2, markersize=4, **look
                )
            _draw_paper(panel, optimizers, condition, offset, look["color"], look["marker"])
        panel.set_xscale("symlog", linthresh=SMALLEST_GAP, linscale=0.5)  # robust optimizers' and others' on one axis
        panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        panel.axvline(0.0, color="black", linewidth=0.6)
        panel.set_yticks(range(len(optimizers)), [optimizer_title(name) for name in optimizers])
        panel.set_ylim(len(optimizers) - 0.5, -0.5)
        has_bars = frame.duplicated(["optimizer", "series"]).any()
        bars = ";\nbars: ±1 standard deviation over seeds" if has_bars else ""
        panel.set_xlabel(f"gap to sync (nats per token){bars}")
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
