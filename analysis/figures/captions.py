"""What a caption says of the seeds behind a figure's points, by the frame that the figure draws."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd


def seeds_sentence(points: pd.DataFrame, point: Sequence[str], spread: str = "") -> str:
    """Over how many seeds the means are taken, and what shows how far these are apart.

    points: a row a value that is drawn, with its ``seed``. point: the columns that tell one point from another.
    spread: what shows a standard deviation, "bars" or "bands"; empty where nothing does.
    """
    counts = points.groupby(list(point), dropna=False)["seed"].nunique()
    fewest, most = int(counts.min()), int(counts.max())
    if most == 1:
        seeds = ", ".join(str(seed) for seed in sorted(set(points["seed"])))
        return f"Each point is one seed ({seeds}){f': no {spread}' if spread else ''}."
    number = f"n = {most}" if fewest == most else f"n = {fewest} to {most}"
    shown = f"; {spread} are one sample standard deviation each way" if spread else ""
    return f"Means over {number} seeds{shown}{', and none at n = 1' if shown and fewest == 1 else ''}."
