"""The figures, drawn from pandas frames in one style. Every figure is written as PNG and as SVG."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from matplotlib import rcParams, style
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from curves import LossCurves
from labels import CONDITIONS, in_order, optimizer_title

STYLE = Path(__file__).with_name("asyncpp.mplstyle")
SUFFIXES = (".png", ".svg")

WIDTH_IN = {1: 3.4, 2: 5.2, 3: 6.9}  # by number of columns: a journal's column, half-way, and its full width
ROW_HEIGHT_IN = 1.7
LEGEND_HEIGHT_IN = 0.6  # with the label of the steps
RANGE_FROM_FRACTION = 0.1  # of the steps: losses before, while the learning rate warms up, do not stretch the range


def draw_loss_curves(curves: LossCurves) -> Figure:
    """A panel an optimizer, a line a condition: the mean over seeds, in a band of one sample standard deviation."""
    optimizers = in_order(curves.frame["optimizer"])
    num_columns = 2 if len(optimizers) == 4 else min(len(optimizers), max(WIDTH_IN))
    num_rows = -(-len(optimizers) // num_columns)
    with style.context(STYLE):
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
        lines = {line.get_label(): line for panel in figure.axes for line in panel.get_lines()}
        shown = [title for title in CONDITIONS.values() if title in lines]
        figure.legend([lines[title] for title in shown], shown, loc="outside upper center", ncols=len(shown))
        has_bands = curves.frame["seed"].nunique() > 1
        figure.supxlabel("step (updates)" + ("; bands: ±1 standard deviation over seeds" if has_bands else ""))
        figure.supylabel(f"{curves.quantity}\n(nats per token)")
    return figure


def save(figure: Figure, out: Path, name: str) -> list[Path]:
    """Write ``figure`` as out/name with each of SUFFIXES; the same figure gives the same bytes."""
    paths = [out / f"{name}{suffix}" for suffix in SUFFIXES]
    with style.context(STYLE):
        for path in paths:
            figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    return paths


def _draw_panel(panel: Axes, frame: pd.DataFrame) -> None:
    looks = list(rcParams["axes.prop_cycle"])
    for look, (condition, title) in zip(looks, CONDITIONS.items(), strict=True):
        seeds = frame[frame["condition"] == condition].groupby("step")["loss"]
        if len(seeds) == 0:
            continue
        mean, spread = seeds.mean(), seeds.std(ddof=1).fillna(0.0)
        panel.plot(mean.index, mean, label=title, **look)
        panel.fill_between(mean.index, mean - spread, mean + spread, color=look["color"], alpha=0.2, linewidth=0)


def _loss_range(frame: pd.DataFrame) -> tuple[float, float]:
    """From the lowest to the highest mean curve after the warm-up, with a margin."""
    late = frame[frame["step"] >= RANGE_FROM_FRACTION * frame["step"].max()]
    means = late.groupby(["optimizer", "condition", "step"])["loss"].mean()
    margin = 0.05 * (means.max() - means.min()) or 0.05
    return means.min() - margin, means.max() + margin
