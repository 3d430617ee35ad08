"""How much a late gradient differs from a fresh one: over the steps, and layer by layer."""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from figures.style import WIDTH_IN, in_style, legend_above, series_looks
from labels import CONDITIONS, in_order, optimizer_title
from probes import QUANTITIES

HEIGHT_IN = 4.2
NUM_MARKS = 6  # on a line over the steps, about
SETTLED_FROM_FRACTION = 0.1  # of the steps: before, while the learning rate warms up, are no part of a layer's mean


def draw_staleness_probes(rows: pd.DataFrame) -> Figure:
    """rows: of probes.staleness_probes. Above the mean over layers and seeds, below over steps after the warm-up."""
    rows = rows.assign(series=[_title(*pair) for pair in zip(rows["optimizer"], rows["condition"], strict=True)])
    order = [_title(optimizer, name) for optimizer in in_order(rows["optimizer"]) for name in CONDITIONS]
    titles = [title for title in order if title in set(rows["series"])]
    layers = list(dict.fromkeys(rows["layer"]))  # as the run lists them: the way of the data
    settled = rows[rows["step"] >= SETTLED_FROM_FRACTION * rows["step"].max()]
    with in_style():
        figure = Figure((WIDTH_IN[3], HEIGHT_IN), layout="constrained")
        panels = figure.subplots(2, len(QUANTITIES))
        looks = series_looks(titles)
        for (over_steps, over_layers), (quantity, label) in zip(panels.T, QUANTITIES.items(), strict=True):
            for title in titles:
                look: dict[str, Any] = looks[title] | {"linestyle": "-", "label": title, "markersize": 4}
                own = rows[(rows["series"] == title) & (rows["quantity"] == quantity)]
                by_step = own.groupby("step")["value"].mean()
                over_steps.plot(by_step.index, by_step, markevery=max(1, len(by_step) // NUM_MARKS), **look)
                own = settled[(settled["series"] == title) & (settled["quantity"] == quantity)]
                by_layer = own.groupby("layer")["value"].mean().reindex(layers)
                over_layers.plot(range(len(layers)), by_layer, **look)
            over_steps.set_title(label)
            over_steps.set_xlabel("step (updates)")
            over_layers.set_xticks(range(len(layers)), [_short(layer) for layer in layers], rotation=90)
        panels[0, 0].set_ylabel("mean over layers")
        panels[1, 0].set_ylabel("mean over steps\nafter the warm-up")
        legend_above(figure, titles, num_columns=min(len(titles), 4))
    return figure


def _title(optimizer: str, condition: str) -> str:
    return f"{optimizer_title(optimizer)} {CONDITIONS.get(condition, condition)}"


def _short(layer: str) -> str:
    return layer.replace("layers.", "layer ")
