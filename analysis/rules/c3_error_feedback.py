"""C3: error feedback recovers a large part of the gap."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pandas as pd

from gaps import NO_GAP, compare, paper
from labels import CONDITIONS, in_order, optimizer_title
from rules.divergence import told_divergence
from rules.verdicts import Rule, Statement, Verdict, cost, judge, losses_by_seed


def smallest_share() -> float:
    """The lower end of the range that the paper states."""
    return paper()["recovered_fraction_range"]["low"]


def judge_error_feedback(frame: pd.DataFrame) -> list[Statement]:
    """What EF gains, held against the paper's smallest share of the gap, by optimizer."""
    frame = frame[frame["condition"].isin(list(CONDITIONS))]
    known = paper()["small_model"]["losses"]
    fed_back = [name for name, entry in known.items() if entry["async_ef"] is not None]
    statements = []
    for optimizer in in_order([*fed_back, *frame.loc[frame["condition"] == "async_ef", "optimizer"]]):
        own = frame[frame["optimizer"] == optimizer]
        losses = losses_by_seed(own)
        gap, left = cost(losses, "async", "sync"), cost(losses, "async_ef", "sync")
        gain = gap - left
        support = (gain - smallest_share() * gap).where(np.isfinite(gap))
        support = support.mask(np.isinf(left) & gap.notna(), -math.inf)  # EF that diverges recovers nothing of any gap
        comparison = compare(losses.where(np.isfinite(losses)))
        statement = judge(
            f"{optimizer_title(optimizer)}: EF recovers half of the gap or more",
            comparison.recovered,
            support,
            unit="of the gap",
            threshold=f">= {smallest_share():g}",
            runs=own,
            counts=optimizer in known,
        )
        if comparison.undefined and not np.isinf(support).any():
            told = told_divergence(own)
            reason = "; ".join(filter(None, [f"nothing to recover: {comparison.undefined}", told]))
            # More seeds may yet show a gap in noise, and a run that diverged is no absence of one.
            counts = statement.counts and (comparison.undefined != NO_GAP or bool(told))
            statement = replace(statement, verdict=Verdict.OPEN, reason=reason, counts=counts)
        statements.append(statement)
    return statements


RULE = Rule(
    name="C3",
    rule="For every seed, what EF gains less half of that seed's gap. The claim holds where its mean is above zero for "
    "each of the paper's optimizers that has a gap, those with a known loss under EF among them, and does not hold "
    "where it is below zero for one. More than 90 % counts in favour. The share is shown with its bootstrap interval, "
    "which is too narrow with few seeds, so that the verdict does not rest on it. Where async is not worse than sync, "
    "EF is not judged. An infinite gap, of an async run that diverged, has no half: EF that ended says nothing there, "
    "and EF that diverged has recovered nothing.",
    experiments=("optimizers",),
    judge=judge_error_feedback,
)
