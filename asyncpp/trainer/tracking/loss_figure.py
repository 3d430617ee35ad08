"""A run's losses as one picture, for trackers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from asyncpp import records


def draw_losses(folder: Path) -> np.ndarray:
    """Training and validation loss (nats a token) by step, from the metrics file of the run folder.

    Returns pixels, of shape (height, width, 4), in uint8.
    """
    rows = records.read_metrics(folder / records.METRICS_FILE)
    figure = Figure((5.2, 3.4), dpi=150, layout="constrained")
    canvas = FigureCanvasAgg(figure)
    axes = figure.subplots()
    for key, marker in (("train/loss", ""), ("val/loss", "o")):
        points = [(row["step"], row[key]) for row in rows if row.get(key) is not None]
        axes.plot([step for step, _ in points], [loss for _, loss in points], marker=marker, linewidth=0.8, label=key)
    axes.set_xlabel("step (updates)")
    axes.set_ylabel("loss (nats per token)")
    axes.set_title(folder.name, fontsize="small")
    axes.legend()
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())
