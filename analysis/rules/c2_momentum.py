"""C2: higher momentum means more robustness to a delay."""

from __future__ import annotations

import numpy as np
import pandas as pd

from asyncpp.errors import require
from labels import in_order, optimizer_title
from rules.verdicts import Rule, Statement, judge, names_of
from sweep_series import over_momentum


def judge_momentum(frame: pd.DataFrame) -> list[Statement]:
    """The slope of the gap over the momentum's horizon, by optimizer."""
    frame = frame[frame["condition"].isin(["sync", "async"])]
    points = over_momentum(frame)
    points = points[points["series"] == "async"]
    statements = []
    for optimizer in in_order(frame["optimizer"]):
        own = points[points["optimizer"] == optimizer]
        once = not own.duplicated(["seed", "x"]).any()
        require(once, "runs", optimizer, "expected one delayed run for each seed and momentum")
        gaps = own.pivot(index="seed", columns="x", values="gap").dropna(axis="columns", how="all")
        if len(gaps.columns) > 1:
            whole = gaps.dropna()  # slopes over other momenta are no repetitions of one another
            slopes = pd.Series([slope(row) for _, row in whole.iterrows()], index=whole.index, dtype=float)
            values = ", ".join(f"{value:g}" for value in gaps.columns)
            text = f"{optimizer_title(optimizer)}: the gap falls as momentum rises ({values})"
            unit = "nats per doubling of 1 / (1 - momentum)"
            runs = names_of(frame[frame["optimizer"] == optimizer])
            statements.append(judge(text, slopes, -slopes, unit=unit, threshold="< 0", runs=runs))
    return statements


def slope(gaps: pd.Series) -> float:
    """Of the least-squares line through one seed's gaps, two or more, over log2(1 / (1 - momentum))."""
    doublings = np.log2(1.0 / (1.0 - gaps.index.to_numpy(dtype=float)))
    return float(np.polyfit(doublings, gaps.to_numpy(dtype=float), deg=1)[0])


RULE = Rule(
    name="C2",
    rule="For every seed that has all of the momenta a line is laid through the gaps (async - sync) over the logarithm "
    "of 1 / (1 - momentum), the number of gradients that momentum averages. The claim holds where its slope is below "
    "zero for every optimizer whose momentum was varied, and does not hold where it is above zero for one. A better "
    "loss under delay alone counts for nothing, as the synchronous loss changes with momentum, too.",
    experiments=("momentum",),
    judge=judge_momentum,
)
