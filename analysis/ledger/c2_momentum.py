"""C2: higher momentum means more robustness to a delay."""

from __future__ import annotations

import numpy as np
import pandas as pd

from labels import in_order, optimizer_title
from ledger.verdicts import Rule, Statement, column, judge, losses_by_seed, names_of


def judge_momentum(frame: pd.DataFrame) -> list[Statement]:
    """The slope of the gap over the momentum's horizon, by optimizer."""
    frame = frame[frame["condition"].isin(["sync", "async"])].assign(momentum=momentum(frame))
    statements = []
    for optimizer in in_order(frame["optimizer"]):
        own = frame[frame["optimizer"] == optimizer]
        gaps = gaps_by_momentum(own)
        if len(gaps.columns) > 1:
            slopes = gaps.apply(slope, axis=1)
            values = ", ".join(f"{value:g}" for value in gaps.columns)
            text = f"{optimizer_title(optimizer)}: the gap falls as momentum rises ({values})"
            unit = "nats per doubling of 1 / (1 - momentum)"
            statements.append(judge(text, slopes, -slopes, unit=unit, threshold="< 0", runs=names_of(own)))
    return statements


def momentum(frame: pd.DataFrame) -> pd.Series:
    """Of each run: optimizer.momentum where the optimizer has one, else the first of its betas."""
    pairs = zip(frame["optimizer.momentum"], frame["optimizer.betas"], strict=True)
    values = [own if not pd.isna(own) else betas[0] for own, betas in pairs]
    return pd.Series(values, index=frame.index, dtype=float)


def gaps_by_momentum(own: pd.DataFrame) -> pd.DataFrame:
    """async - sync of one optimizer's runs: a row a seed, a column a momentum that has both, in rising order."""
    losses = losses_by_seed(own, ["condition", "momentum"])
    values = sorted(set(own["momentum"]))
    gaps = {value: column(losses, ("async", value)) - column(losses, ("sync", value)) for value in values}
    return pd.DataFrame(gaps).dropna(axis="columns", how="all")


def slope(gaps: pd.Series) -> float:
    """Of the least-squares line through one seed's gaps over log2(1 / (1 - momentum)); NaN for fewer than two."""
    gaps = gaps.dropna()
    if len(gaps) < 2:
        return float("nan")
    doublings = np.log2(1.0 / (1.0 - gaps.index.to_numpy(dtype=float)))
    return float(np.polyfit(doublings, gaps.to_numpy(dtype=float), deg=1)[0])


RULE = Rule(
    name="C2",
    rule="For every seed a line is laid through the gaps (async - sync) over the logarithm of 1 / (1 - momentum), the "
    "number of gradients that momentum averages. The claim holds where its slope is below zero for every optimizer "
    "whose momentum was varied, and does not hold where it is above zero for one. A better loss under delay alone "
    "counts for nothing, as the synchronous loss changes with momentum, too.",
    experiments=("momentum",),
    judge=judge_momentum,
)
